// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/split_stores.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/rules/roles.h"
#include "compiler/rules/tensor.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

// The uses of a tile: the loops that fill it, the tensor stores that read it, and whether it has others.
struct Uses {
  std::vector<const ir::For*> fills;
  std::vector<ir::Copy*> stores;
  bool otherwise = false;
};

bool IsStore(const ir::Module& module, const ir::Copy& copy) {
  return copy.plan && copy.plan->instruction == ir::CopyInstruction::kTensor && module[copy.src.buffer].space == ir::Space::kShared;
}

// A parallel loop counts as one statement. `narrowed`: only a range of threads comes to the block; its layouts count threads from the
// range's first.
void Count(const ir::Module& module, ir::Block& block, bool narrowed, std::map<BufferId, Uses>& uses) {
  for (ir::Stmt& stmt : block) {
    auto* loop = std::get_if<ir::For>(&stmt.op);
    auto* copy = std::get_if<ir::Copy>(&stmt.op);
    for (const Access& access : AccessesOf(module, stmt)) {
      Uses& use = uses[access.buffer];
      if (narrowed) {
        use.otherwise = true;
      } else if (access.write && loop != nullptr) {
        use.fills.push_back(loop);
      } else if (!access.write && copy != nullptr && IsStore(module, *copy)) {
        use.stores.push_back(copy);
      } else {
        use.otherwise = true;
      }
    }
    if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) Count(module, loop->body, narrowed, uses);
    if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Count(module, repeat->body, narrowed, uses);
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
      Count(module, branch->then_body, narrowed || branch->then_threads, uses);
      Count(module, branch->else_body, narrowed || branch->else_threads, uses);
    }
  }
}

// Whether the parallel loop does nothing but fill the first rows and columns of the tile, one element in each iteration.
bool Fills(const ir::Module& module, const ir::For& loop, BufferId tile) {
  if (loop.kind != ir::LoopKind::kParallel || !loop.layout || loop.layout->IsReplicated() || loop.body.size() != 1) return false;
  const auto* store = std::get_if<ir::Store>(&loop.body[0].op);
  if (store == nullptr || store->buffer != tile || store->indices.size() != loop.vars.size() || loop.vars.size() != 2) return false;
  for (size_t v = 0; v < loop.vars.size(); ++v) {
    const ir::ExprNode& index = module.exprs[store->indices[v]];
    if (index.op != ir::ExprOp::kVar || ir::VarId(index.ref) != loop.vars[v]) return false;
  }
  const std::vector<int64_t> extents = ExtentsOf(module, loop), shape = module.ShapeOf(tile);
  return shape.size() == 2 && extents[0] <= shape[0] && extents[1] <= shape[1];
}

// Digits of threads do not overlap, so an iteration's group is the sum of a row's part and a column's part: it is enough to check one row
// and one column.
bool SplitsSo(const ir::Layout& layout, std::span<const int64_t> shape, int64_t groups_m, int64_t groups_n) {
  const auto group = [&](int64_t row, int64_t column) { return layout.ThreadOf(std::array{row, column}) / kGroupThreads; };
  for (int64_t row = 0; row < shape[0]; ++row)
    if (group(row, 0) != row / kGroupRows % groups_m) return false;
  for (int64_t column = 0; column < shape[1]; ++column)
    if (group(0, column) != groups_m * (column * groups_n / shape[1])) return false;
  return true;
}

// Whether all fills and stores of the tile give a group the same part of it.
bool SplitsSo(const ir::Module& module, const Uses& use, int64_t groups_m, int64_t groups_n) {
  const auto fills = [&](const ir::For* loop) {
    const std::vector<int64_t> shape = ExtentsOf(module, *loop);
    // With groups along n, a loop over fewer columns would divide them at other places than a loop over the whole tile.
    const bool whole = groups_n == 1 || shape[1] == ExtentsOf(module, *use.fills[0])[1];
    return whole && (groups_m == 1 || shape[0] % (kGroupRows * groups_m) == 0) && SplitsSo(*loop->layout, shape, groups_m, groups_n);
  };
  const auto stores = [&](const ir::Copy* copy) { return TileOf(module, *copy).columns % groups_n == 0; };
  return std::ranges::all_of(use.fills, fills) && std::ranges::all_of(use.stores, stores);
}

}  // namespace

void SplitStores(ir::Module& module, ir::Kernel& kernel, const Context&) {
  const int64_t groups = kernel.threads / kGroupThreads;
  if (kernel.producers == 0 || groups < 2) return;
  std::map<BufferId, Uses> uses;
  Count(module, kernel.body, /*narrowed=*/false, uses);
  for (const auto& [tile, use] : uses) {
    const auto fills = [&](const ir::For* loop) { return Fills(module, *loop, tile); };
    if (use.otherwise || use.fills.empty() || use.stores.empty() || !std::ranges::all_of(use.fills, fills)) continue;
    for (int64_t groups_m = groups; groups_m >= 1; --groups_m) {
      const int64_t groups_n = groups / groups_m;
      if (groups % groups_m != 0 || !SplitsSo(module, use, groups_m, groups_n)) continue;
      for (ir::Copy* copy : use.stores) copy->plan->groups_m = uint32_t(groups_m), copy->plan->groups_n = uint32_t(groups_n);
      kernel.decisions.push_back({"split_stores", tile, fmt::format("{}×{} groups of warps each store what they wrote", groups_m, groups_n),
                                  "one group's epilogue runs during another's products"});
      break;
    }
  }
}

}  // namespace kiln::compiler
