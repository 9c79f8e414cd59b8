// SPDX-License-Identifier: Apache-2.0
#include "compiler/accesses/vectors.h"

#include <algorithm>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/vector_width.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::LoadForm;

// Neighbours along a variable before the last, whose first digit is the registers'.
bool TakeAcross(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, std::span<const ExprId> indices, int64_t alignment,
                ir::LoadPlan& plan) {
  for (size_t v = 0; v + 1 < loop.extents.size(); ++v) {
    const auto& digits = loop.layout.dim(int(v));
    if (digits.empty() || digits[0].place != ir::Place::kRegister) continue;
    const int64_t width = VectorWidthIn(module, facts, *loop.loop, v, plan.buffer, indices, digits[0].size, alignment);
    if (width <= 1 || digits[0].size % width != 0) continue;
    plan.form = LoadForm::kAcross, plan.width = int32_t(width), plan.across = uint32_t(v);
    return true;
  }
  return false;
}

// Vectors of shared memory of which the thread needs each element. The registers need not be neighbours.
void TakeGathered(const ir::Module& module, const ThreadLoop& loop, const SplitAccess& access, ir::LoadPlan& plan) {
  const ir::Buffer& buffer = module[plan.buffer];
  const ir::Swizzle& swizzle = buffer.layout->swizzle();
  const bool aligned = loop.SharedDivisor(plan.buffer, access) % kWidest == 0 && *buffer.shared_offset % kWidest == 0;
  if (!aligned || (swizzle.bits > 0 && int64_t{1} << swizzle.base < kWidest)) return;
  for (int64_t width = kWidest / ir::Bytes(buffer.dtype); width > 1; width /= 2) {
    if (!PlacesGathered(loop, module, plan.buffer, access, width)) continue;
    plan.form = LoadForm::kGathered, plan.width = int32_t(width);
    return;
  }
}

// Whether the address of neighbours may be computed from the indices of the first, as those of quotients and remainders are, and of rows whose
// places are in registers.
bool HasOwnAddress(const ir::Module& module, const ThreadLoop& loop, BufferId id, std::span<const ExprId> indices) {
  const auto loads = [&](ExprId part) {
    const ir::ExprNode& node = module.exprs[part];
    return node.op == ir::ExprOp::kLoad && (module[BufferId(node.ref)].space != ir::Space::kFragment || loop.stored.contains(BufferId(node.ref)));
  };
  return module[id].space == ir::Space::kGlobal && std::ranges::none_of(indices, [&](ExprId index) { return Contains(module.exprs, index, loads); });
}

// Vectors of which some elements are not wanted: those beyond a row's end, or where a mask does not hold. Of a tile, all are inside. What has an
// address of its own, as behind quotients, takes whole vectors.
void TakeClipped(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, std::span<const ExprId> indices, int64_t alignment,
                 ir::LoadPlan& plan) {
  if ((plan.form != LoadForm::kEach && plan.form != LoadForm::kVector) || loop.stored.contains(plan.buffer)) return;
  const bool is_tile = module[plan.buffer].space == ir::Space::kShared;
  if (is_tile ? !ProvablyInside(module, facts, plan.buffer, indices) : HasGaps(module, plan.buffer)) return;
  const bool split = loop.Split(plan.buffer, indices).has_value();
  if (!split && !HasOwnAddress(module, loop, plan.buffer, indices)) return;
  const auto widest = split ? ClippedWidthIn : VectorWidthIn;
  const int64_t width = widest(module, facts, *loop.loop, loop.extents.size() - 1, plan.buffer, indices, loop.run, alignment);
  if (width > kLeastGain * plan.width) plan.form = LoadForm::kClipped, plan.width = int32_t(width);
}

// Neighbours that begin anywhere, as in rows of an odd number of elements, where that saves loads.
void TakeAround(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, std::span<const ExprId> indices, ir::LoadPlan& plan) {
  if ((plan.form != LoadForm::kEach && plan.form != LoadForm::kVector) || loop.stored.contains(plan.buffer)) return;
  const int64_t width = AroundWidthIn(module, facts, *loop.loop, loop.extents.size() - 1, plan.buffer, indices, loop.run);
  if (width <= kLoadsAround * plan.width || !loop.Split(plan.buffer, indices)) return;
  plan.form = LoadForm::kAround, plan.width = int32_t(width);
}

// Aligned vectors.
ir::LoadPlan WholeVectorsOf(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, BufferId id, std::span<const ExprId> indices,
                            int64_t alignment) {
  ir::LoadPlan plan{.buffer = id};
  const std::optional<SplitAccess> access = ir::Bits(module[id].dtype) < 8 ? std::nullopt : loop.Split(id, indices);
  const int64_t width = VectorWidth(module, facts, *loop.loop, id, indices, loop.run, alignment);
  if (!access && (width == 1 || !HasOwnAddress(module, loop, id, indices))) return plan;
  plan.form = width == 0 ? LoadForm::kSame : LoadForm::kVector;
  plan.width = int32_t(std::max<int64_t>(1, width));
  if (width != 1 || loop.run == 1 || loop.stored.contains(id) || loop.IsPadded()) return plan;
  if (TakeAcross(module, facts, loop, indices, alignment, plan)) return plan;
  if (access && module[id].space == ir::Space::kShared) TakeGathered(module, loop, *access, plan);
  return plan;
}

}  // namespace

ir::LoadPlan VectorsOf(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, BufferId id, std::span<const ExprId> indices,
                       int64_t alignment) {
  ir::LoadPlan plan = WholeVectorsOf(module, facts, loop, id, indices, alignment);
  TakeClipped(module, facts, loop, indices, alignment, plan);
  TakeAround(module, facts, loop, indices, plan);
  return plan;
}

ir::LoadPlan MaskedVectorsOf(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, const ir::Read& read, int64_t alignment) {
  const ir::ExprNode& node = module.exprs[read.load];
  Facts inner = facts;
  inner.Assume(*read.mask);
  ir::LoadPlan plan = WholeVectorsOf(module, inner, loop, BufferId(node.ref), node.Args(), alignment);
  const int64_t most = plan.form == LoadForm::kSame ? loop.run & -loop.run : plan.width;
  const int64_t width = MaskWidth(module, facts, *loop.loop, loop.loop->vars.size() - 1, *read.mask, most);
  if (plan.form == LoadForm::kVector) plan.width = int32_t(width);
  const bool whole = plan.form == LoadForm::kVector || (plan.form == LoadForm::kSame && width == loop.run);
  if (!whole) plan = {.buffer = plan.buffer};
  // These are loaded whatever the mask says.
  TakeClipped(module, facts, loop, node.Args(), alignment, plan);
  TakeAround(module, facts, loop, node.Args(), plan);
  return plan;
}

bool SelectsLoads(const ir::ExprPool& pool, ExprId id) {
  const auto loads = [&](ExprId part) { return pool[part].op == ir::ExprOp::kLoad; };
  return Contains(pool, id, [&](ExprId part) {
    const ir::ExprNode& node = pool[part];
    if (node.op == ir::ExprOp::kAnd || node.op == ir::ExprOp::kOr) return Contains(pool, node.args[1], loads);
    const auto in_index = [&](ExprId index) { return Contains(pool, index, loads); };
    if (node.op == ir::ExprOp::kMasked && std::ranges::any_of(pool[node.args[1]].Args(), in_index)) return true;
    if (node.op == ir::ExprOp::kMasked) return Contains(pool, node.args[2], loads);
    return node.op == ir::ExprOp::kSelect && (Contains(pool, node.args[1], loads) || Contains(pool, node.args[2], loads));
  });
}

}  // namespace kiln::compiler
