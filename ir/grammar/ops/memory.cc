// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "ir/grammar/writer.h"
#include "ir/op.h"

namespace kiln::ir::grammar {
namespace {

CopyPlan SomePlan(Writer& writer) {
  const auto groups = uint32_t(writer.Below(3));
  CopyPlan plan{.instruction = CopyInstruction(writer.Below(3)),
                .vector = 1 << writer.Below(4),
                .layout = writer.SomeLayout({16, 8}),
                .ring = {},
                .multicast = writer.Coin(),
                .panels = writer.Coin(),
                .adds = writer.OneIn(8),
                .groups_m = groups,
                .groups_n = uint32_t(groups > 0)};
  if (writer.Coin()) plan.ring = writer.AddRing();
  return plan;
}

}  // namespace

int Weight(const Writer& writer, Tag<Alloc>) { return writer.place.parallel ? 2 : writer.Together(3); }
Op Write(Writer& writer, Tag<Alloc>) {
  const Space space = writer.place.parallel ? Space::kLocal : writer.Pick<Space>({Space::kShared, Space::kFragment, Space::kFragment, Space::kLocal});
  const size_t rank = writer.Odd(12) ? 0 : size_t(1 + writer.Below(writer.OneIn(5) ? 4 : 2));
  const int64_t most = space == Space::kLocal && !writer.OneIn(10) ? 64 : writer.sizes().elements;
  const BufferId id = writer.AddTile(space, writer.Shape(rank, most));
  if (writer.module[id].space == Space::kLocal || writer.place.parallel)
    return writer.HasElements(id) ? Op(Store{id, writer.Indices(id), writer.Value(writer.module[id].dtype)}) : Write(writer, Tag<Assume>());
  return Fill{writer.Whole(id), writer.Value(writer.module[id].dtype, 0)};
}

int Weight(const Writer& writer, Tag<Copy>) { return writer.Together(writer.sizes().flat ? 8 : 12); }
Op Write(Writer& writer, Tag<Copy>) {
  Copy copy{.src = writer.Part(writer.SomeBuffer()), .dst = {}, .coalesced_width = uint32_t(writer.OneIn(6) ? 1 << writer.Below(5) : 0), .plan = {}};
  std::vector<int64_t> extents;
  std::ranges::copy_if(copy.src.extents, std::back_inserter(extents), [](int64_t extent) { return extent != 1; });
  copy.dst = writer.Fitting(extents, writer.OneIn(3) ? std::vector{Space::kGlobal, Space::kLocal, Space::kFragment}
                                                     : std::vector{Space::kGlobal, Space::kShared, Space::kFragment});
  if (writer.module[copy.src.buffer].space != Space::kGlobal && writer.Coin()) std::swap(copy.src, copy.dst);
  if (writer.decisions()) copy.plan = SomePlan(writer);
  if (writer.signals() && writer.OneIn(4)) copy.signals = Element{writer.AddBarriers(), {writer.Index(2)}};
  return copy;
}

}  // namespace kiln::ir::grammar
