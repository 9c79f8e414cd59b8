// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ir/op.h"
#include "ir/verify/verifier.h"

namespace kiln::ir {
namespace {

void CheckShapes(Verifier& verifier, const Reduce& op) {
  std::vector<int64_t> kept = op.src.extents, dropped = op.src.extents;
  if (op.dim < 0 || size_t(op.dim) >= kept.size()) {
    return verifier.Error(fmt::format("dimension {} of a source with {} dimensions", op.dim, kept.size()), "dimensions count from 0");
  }
  kept[size_t(op.dim)] = 1;
  dropped.erase(dropped.begin() + op.dim);
  if (op.dst.extents == kept || op.dst.extents == dropped) return;
  verifier.Error(fmt::format("the destination is {}, the source {} reduced along dimension {}", fmt::join(op.dst.extents, " × "),
                             fmt::join(op.src.extents, " × "), op.dim),
                 fmt::format("make the destination {} or {}", fmt::join(dropped, " × "), fmt::join(kept, " × ")));
}

bool Applies(ReduceKind kind, DType type) {
  if (kind >= ReduceKind::kBitAnd) return !IsFloat(type);
  if (type == DType::kBool) return false;
  return (kind != ReduceKind::kAbsMax && kind != ReduceKind::kAbsSum) || !IsUnsigned(type);
}

}  // namespace

void Check(Verifier& verifier, const Reduce& op) {
  verifier.CheckTogether("a reduce");
  bool src = verifier.CheckRegion(op.src, "the source");
  bool dst = verifier.CheckRegion(op.dst, "the destination");
  if (src && dst) CheckShapes(verifier, op);
  const Buffer& from = verifier.module()[op.src.buffer];
  const Buffer& to = verifier.module()[op.dst.buffer];
  if (from.dtype != to.dtype)
    verifier.Error(fmt::format("a reduce of {} into {}", Name(from.dtype), Name(to.dtype)), "convert the source in a parallel loop first");
  if (!Applies(op.kind, from.dtype))
    verifier.Error(fmt::format("reduce {} does not apply to {}", Name(op.kind), Name(from.dtype)),
                   "bit operations take integers or bool, the others numbers, absmax and abssum signed ones");
  if (op.scratch && verifier.module()[*op.scratch].space != Space::kShared)
    verifier.Error(fmt::format("the scratch {} is not shared", verifier.Name(*op.scratch)), "leave it out: the compiler finds one");
  for (const Buffer* buffer : {&from, &to}) {
    if (buffer->space == Space::kFragment || buffer->space == Space::kShared) continue;
    verifier.Error(fmt::format("a reduce on {} memory", Name(buffer->space)), "copy it to a fragment first");
  }
}

}  // namespace kiln::ir
