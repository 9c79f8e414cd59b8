// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ir/op.h"
#include "ir/verifier.h"

namespace kiln::ir {

void Check(Verifier& verifier, const Let& op) {
  verifier.CheckTyped(op.value, verifier.module()[op.var].dtype, "the value");
  verifier.Bind(op.var, VarKind::kLet, "by let");  // even with a wrong value, or every use would be reported
}

void Check(Verifier& verifier, const Store& op) {
  verifier.CheckElement(op.buffer, op.indices);
  verifier.CheckTyped(op.value, verifier.module()[op.buffer].dtype, "the stored value");
}

void Check(Verifier& verifier, const Assume& op) { verifier.CheckCondition(op.cond); }

void Check(Verifier& verifier, const Atomic& op) {
  const Buffer& buffer = verifier.module()[op.buffer];
  verifier.CheckElement(op.buffer, op.indices);
  verifier.CheckTyped(op.value, buffer.dtype, "the value");
  if (buffer.space != Space::kGlobal && buffer.space != Space::kShared) {
    verifier.Error(fmt::format("an atomic on {}, which is in {} memory", verifier.Name(op.buffer), Name(buffer.space)),
                   "threads share global and shared memory only; use store");
  }
  if (buffer.dtype == DType::kBool || Bits(buffer.dtype) < 16) {
    verifier.Unsupported(fmt::format("an atomic on elements of type {}", Name(buffer.dtype)), "use 16 bits or more");
  }
}

}  // namespace kiln::ir
