// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/vector_width.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/neighbourhood.h"
#include "compiler/analysis/threads/register_map.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;

constexpr int64_t kLargestDivisor = 1 << 16;  // a power of two, more than any access takes

// Powers of two that divide the strides of all dimensions but the last that an index may step over.
int64_t RowDivisor(const ir::Module& module, const Facts& facts, const ir::Buffer& buffer, std::span<const ExprId> indices) {
  int64_t divisor = 0;
  for (size_t d = 0; d + 1 < indices.size(); ++d) {
    if (module.exprs.IsConst(indices[d], 0)) continue;
    if (buffer.space == ir::Space::kShared) {
      for (const ir::Digit& digit : buffer.layout->dim(int(d)))
        if (digit.size > 1) divisor = std::gcd(divisor, digit.stride);
      continue;
    }
    if (!buffer.strides.empty()) {
      divisor = std::gcd(divisor, facts.DivisorOf(buffer.strides[d]));
      continue;
    }
    int64_t stride = 1;
    for (size_t inner = d + 1; inner < buffer.shape.size(); ++inner) {
      const int64_t extent = facts.DivisorOf(buffer.shape[inner]);
      stride = std::min<int64_t>(stride * std::clamp<int64_t>(extent & -extent, 1, kLargestDivisor), kLargestDivisor);
    }
    divisor = std::gcd(divisor, stride);
  }
  return divisor;
}

bool LastIsContiguous(const ir::Module& module, const ir::Buffer& buffer) {
  if (buffer.space == ir::Space::kShared) {
    const auto& last = buffer.layout->dim(buffer.layout->rank() - 1);
    return last.empty() || last[0].stride == 1;
  }
  return buffer.strides.empty() || module.exprs.IsConst(buffer.strides.back(), 1);
}

// Whether all iterations v·most … v·most + most − 1 touch one element.
bool IsSame(const ir::Module& module, const Facts& facts, ir::VarId var, std::span<const ExprId> indices, int64_t most) {
  if (std::ranges::none_of(indices, [&](ExprId index) { return ContainsVar(module.exprs, index, std::set{var}); })) return true;
  if (most <= 1 || (most & -most) != most) return false;
  const Neighbourhood neighbours(module, facts, var, most);
  return std::ranges::all_of(indices, [&](ExprId index) { return neighbours.IsOne(index); });
}

// Whether iterations v·width … v·width + width − 1 count up in the last dimension, from a multiple of `from`, and have one row.
bool CountsUp(const ir::Module& module, const Facts& facts, ir::VarId var, std::span<const ExprId> indices, int64_t width, int64_t from) {
  const Neighbourhood neighbours(module, facts, var, width);
  const std::optional<Steps> last = neighbours.Of(indices.back());
  return last && last->step == 1 && last->divisor % from == 0 &&
         std::ranges::all_of(indices.first(indices.size() - 1), [&](ExprId index) { return neighbours.IsOne(index); });
}

// Whether it is a store of the loop's body, perhaps under a condition, which neighbours meet in a row.
bool ComesInARow(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, const Access& access, int64_t width) {
  const auto is_it = [&](const ir::Stmt& stmt) {
    const auto* store = std::get_if<ir::Store>(&stmt.op);
    return store != nullptr && store->buffer == access.buffer && store->indices == access.indices;
  };
  return std::ranges::any_of(loop.body, [&](const ir::Stmt& stmt) {
    const auto* branch = std::get_if<ir::If>(&stmt.op);
    if (branch == nullptr) return is_it(stmt);
    return branch->else_body.empty() && std::ranges::any_of(branch->then_body, is_it) &&
           HoldsInARow(module, facts, loop, variable, branch->cond, width);
  });
}

}  // namespace

int64_t VectorWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, ir::BufferId id, std::span<const ExprId> indices, int64_t most,
                    int64_t alignment) {
  return VectorWidthIn(module, facts, loop, loop.vars.size() - 1, id, indices, most, alignment);
}

int64_t VectorWidthIn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::BufferId id,
                      std::span<const ExprId> indices, int64_t most, int64_t alignment) {
  const ir::Buffer& buffer = module[id];
  const int64_t width = ClippedWidthIn(module, facts, loop, variable, id, indices, most, alignment);
  if (width <= 1 || buffer.space != ir::Space::kGlobal || facts.Inside(indices.back(), 1, buffer.shape.back())) return width;
  const int64_t whole = std::gcd(width, facts.DivisorOf(buffer.shape.back()));
  return whole & -whole;
}

int64_t ClippedWidthIn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::BufferId id,
                       std::span<const ExprId> indices, int64_t most, int64_t alignment) {
  const ir::Buffer& buffer = module[id];
  if (ir::Bits(buffer.dtype) < 8 || indices.empty()) return 1;
  const int64_t bytes = ir::Bytes(buffer.dtype);
  int64_t width = std::gcd(most, 16 / bytes);  // whole vectors fill `most`
  if (IsSame(module, facts, loop.vars[variable], indices, most)) return 0;
  if (!LastIsContiguous(module, buffer)) return 1;
  if (buffer.space == ir::Space::kGlobal) width = std::min(width, std::max<int64_t>(1, alignment / bytes));
  if (buffer.space == ir::Space::kShared && !buffer.layout->dims().back().empty()) {
    width = std::gcd(width, buffer.layout->dims().back()[0].size);
  }
  width = std::gcd(width, RowDivisor(module, facts, buffer, indices));
  for (width &= -width; width > 1; width /= 2)
    if (CountsUp(module, facts, loop.vars[variable], indices, width, width)) return width;
  return 1;
}

int64_t AroundWidthIn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::BufferId id,
                      std::span<const ExprId> indices, int64_t most) {
  const ir::Buffer& buffer = module[id];
  const int64_t bits = ir::Bits(buffer.dtype);
  if (buffer.space != ir::Space::kGlobal || (bits != 8 && bits != 16) || indices.empty() || !LastIsContiguous(module, buffer)) return 1;
  if (HasGaps(module, id)) return 1;
  most = std::gcd(most, 128 / bits);
  for (int64_t width = most & -most; width * bits >= 32; width /= 2)
    if (CountsUp(module, facts, loop.vars[variable], indices, width, 1)) return width;
  return 1;
}

bool HoldsInARow(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ExprId cond, int64_t width) {
  const ir::ExprNode& node = module.exprs[cond];
  if (node.op == ir::ExprOp::kAnd) {
    return std::ranges::all_of(node.Args(), [&](ExprId part) { return HoldsInARow(module, facts, loop, variable, part, width); });
  }
  const Neighbourhood neighbours(module, facts, loop.vars[variable], width, true);
  if (neighbours.IsOne(cond)) return true;
  const bool orders = node.op == ir::ExprOp::kLt || node.op == ir::ExprOp::kLe || node.op == ir::ExprOp::kGt || node.op == ir::ExprOp::kGe;
  if (!orders || !ir::IsInteger(module.exprs.Type(node.args[0]))) return false;
  // What counts by one from a multiple of the width does not overflow on its way.
  const auto counts = [&](ExprId id) {
    const std::optional<Steps> steps = neighbours.Of(id);
    return steps && steps->step == 1 && steps->divisor % width == 0;
  };
  return (counts(node.args[0]) && neighbours.IsOne(node.args[1])) || (counts(node.args[1]) && neighbours.IsOne(node.args[0]));
}

int64_t MaskWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ExprId mask, int64_t most) {
  int64_t width = most & -most;
  while (width > 1 && !Neighbourhood(module, facts, loop.vars[variable], width, true).IsOne(mask)) width /= 2;
  return width;
}

int64_t AccessWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, const Access& access, int64_t most,
                    int64_t alignment) {
  if (!access.mask) return VectorWidthIn(module, facts, loop, variable, access.buffer, access.indices, most, alignment);
  Facts inner = facts;
  inner.Assume(*access.mask);
  const int64_t width = VectorWidthIn(module, inner, loop, variable, access.buffer, access.indices, most, alignment);
  return std::gcd(width, MaskWidth(module, facts, loop, variable, *access.mask, std::max<int64_t>(width, 1)));
}

int64_t OwnWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, const Access& access, int64_t most,
                 int64_t alignment) {
  const int64_t width = AccessWidth(module, facts, loop, variable, access, most, alignment);
  if (width == 0 || module[access.buffer].space != ir::Space::kGlobal || HasGaps(module, access.buffer)) return width;
  const int64_t clipped = ClippedWidthIn(module, facts, loop, variable, access.buffer, access.indices, most, alignment);
  if (clipped <= kLeastGain * width) return width;
  return !access.write || ComesInARow(module, facts, loop, variable, access, clipped) ? clipped : width;
}

int64_t LoopVectorWidth(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt, int64_t alignment) {
  const auto& loop = std::get<ir::For>(stmt.op);
  const std::vector<int64_t> extents = ExtentsOf(module, loop);
  int64_t best = 1;
  for (const Access& access : AccessesOf(module, stmt)) {
    const ir::Space space = module[access.buffer].space;
    if (space != ir::Space::kGlobal && space != ir::Space::kShared) continue;
    const int64_t most = std::gcd(int64_t{16}, extents.back());
    best = std::max(best, OwnWidth(module, facts, loop, loop.vars.size() - 1, access, most, alignment));
  }
  return best;
}

bool ProvablyInside(const ir::Module& module, const Facts& facts, ir::BufferId id, std::span<const ExprId> indices) {
  for (size_t d = 0; d < indices.size(); ++d)
    if (!facts.Inside(indices[d], 1, module[id].shape[d])) return false;
  return true;
}

}  // namespace kiln::compiler
