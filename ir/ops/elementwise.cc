// SPDX-License-Identifier: Apache-2.0
#include "ir/elementwise.h"

#include "ir/verify/verifier.h"

namespace kiln::ir {

void Check(Verifier& verifier, const Fill& op) {
  verifier.CheckTogether("a fill");
  verifier.CheckRegion(op.dst, "the destination");
  verifier.CheckTyped(op.value, verifier.module()[op.dst.buffer].dtype, "the value");
}
ExprId Becomes(Module&, const Fill& op, const ElementOf&) { return op.value; }

}  // namespace kiln::ir
