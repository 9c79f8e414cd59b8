// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ir/grammar/writer.h"
#include "ir/op.h"

namespace kiln::ir::grammar {
namespace {

ReduceKind SomeKind(Writer& writer, DType type) {
  using enum ReduceKind;
  if (writer.Odd(40)) return ReduceKind(1 + writer.Below(int(kBitXor)));
  if (type == DType::kBool) return writer.Pick<ReduceKind>({kBitAnd, kBitOr, kBitXor});
  if (IsFloat(type)) return writer.Pick<ReduceKind>({kSum, kMax, kMin, kAbsMax, kAbsSum});
  if (IsUnsigned(type)) return writer.Pick<ReduceKind>({kSum, kMax, kMin, kBitAnd, kBitOr, kBitXor});
  return ReduceKind(1 + writer.Below(int(kBitXor)));
}

Space SomeSpace(Writer& writer) { return writer.OneIn(4) ? Space::kShared : Space::kFragment; }

BufferId Source(Writer& writer) {
  for (int tries = 0; tries < 4; ++tries) {
    const BufferId id = writer.SomeBuffer();
    const Space space = writer.module[id].space;
    if ((space == Space::kFragment || space == Space::kShared) && !writer.module[id].shape.empty()) return id;
  }
  const Space space = SomeSpace(writer);
  return writer.AddTile(space, writer.Shape(size_t(1 + writer.Below(3)), writer.sizes().elements));
}

}  // namespace

int Weight(const Writer& writer, Tag<Reduce>) {
  if (writer.place.parallel || writer.sizes().flat) return 0;
  return writer.place.some_threads ? 1 : 5;
}
Op Write(Writer& writer, Tag<Reduce>) {
  Reduce reduce{.kind = {}, .src = writer.Part(Source(writer)), .dst = {}, .dim = 0, .clear = writer.OneIn(2), .scratch = {}};
  const DType type = writer.module[reduce.src.buffer].dtype;
  reduce.kind = SomeKind(writer, type);
  reduce.dim = int32_t(writer.Below(std::ssize(reduce.src.extents)));
  std::vector<int64_t> left = reduce.src.extents;
  writer.Coin() ? void(left[size_t(reduce.dim)] = 1) : void(left.erase(left.begin() + reduce.dim));
  reduce.dst = writer.Whole(writer.AddTile(SomeSpace(writer), type, left));
  if (!writer.decisions()) return reduce;
  reduce.cluster = writer.Coin();
  if (writer.Coin())
    reduce.scratch = writer.module.AddBuffer({.space = Space::kShared,
                                              .dtype = DType::kF32,
                                              .shape = {writer.module.exprs.Int(4)},
                                              .strides = {},
                                              .pad_value = {},
                                              .name = writer.Name(),
                                              .layout = {},
                                              .shared_offset = 64});
  return reduce;
}

}  // namespace kiln::ir::grammar
