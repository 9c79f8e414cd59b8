// SPDX-License-Identifier: Apache-2.0
#include "compiler/grid/persist.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/growth.h"
#include "compiler/grid/stream_k.h"
#include "compiler/grid/tile_order.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

constexpr int64_t kManyTiles = 1 << 20;  // assumed where only the launch knows their number: more than any device holds at once

// How tiles differ in the iterations of their loops.
struct Lengths {
  bool differ = false;
  std::optional<size_t> axis = {};  // of the grid, along which alone they differ: they become longer, if `grow`, and else shorter
  bool grow = false;
};

Lengths LengthsOf(const ir::Module& module, const ir::Kernel& kernel) {
  Growths growths(module, kernel.body);
  std::set<std::pair<size_t, Growth>> found;  // by axis
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr) return;
    for (ExprId extent : loop->extents)
      for (size_t axis = 0; axis < kernel.block_vars.size(); ++axis) found.emplace(axis, growths.Of(extent, kernel.block_vars[axis]));
  });
  std::erase_if(found, [](const auto& growth) { return growth.second == Growth::kNone; });
  Lengths lengths{.differ = !found.empty()};
  if (found.size() != 1 || found.begin()->second == Growth::kUnknown) return lengths;
  lengths.axis = found.begin()->first;
  lengths.grow = found.begin()->second == Growth::kUp;
  return lengths;
}

class Persister {
 public:
  Persister(ir::Module& module, ir::Kernel& kernel, const Context& context, std::optional<size_t> paired)
      : module_(module), kernel_(kernel), context_(context), paired_(paired), order_(module, kernel, *context.target, paired) {}

  void Run() {
    const Lengths lengths = LengthsOf(module_, kernel_);
    // Which of a pair a block takes is settled, and so is an order that the program asks for.
    const bool by_length = lengths.axis && !paired_ && kernel_.raster_panel == 0;
    if (by_length) order_.LongestFirst(*lengths.axis, lengths.grow);
    const ir::Block old = std::move(kernel_.body);
    const int64_t size = paired_ ? 2 : 1;
    const ExprId total = order_.Total();
    const ExprId clusters = order_.Make(ExprOp::kMin, total, order_.Int(int64_t(context_.target->multiprocessors) / size));

    const ir::VarId block = order_.AddVar(ir::VarKind::kBlock, "block"), turn = order_.AddVar(ir::VarKind::kLoop, "turn");
    ir::Block body;
    ExprId cluster = module_.VarRef(block);
    if (paired_) cluster = order_.Bind(order_.Make(ExprOp::kFloorDiv, cluster, order_.Int(size)), body, "cluster");
    const auto place = [&](ExprId in_turn) {
      if (by_length) return ThereAndBack(cluster, clusters, in_turn);
      return lengths.differ ? Turned(cluster, clusters, in_turn) : cluster;
    };
    const ExprId left = module_.exprs.Sub(total, place(order_.Make(ExprOp::kFloorDiv, total, clusters)));  // in the last turn, which is not whole
    const ExprId turns = order_.Make(ExprOp::kFloorDiv, module_.exprs.Add(left, module_.exprs.Sub(clusters, order_.Int(1))), clusters);
    ir::For loop{ir::LoopKind::kSerial, {turn}, {turns}, {}};
    const ExprId tile = module_.exprs.Add(place(module_.VarRef(turn)), module_.exprs.Mul(module_.VarRef(turn), clusters));
    order_.Place(order_.Bind(tile, loop.body, "tile"), loop.body);
    if (paired_) order_.PlaceOfPair(module_.VarRef(block), loop.body);
    for (const ir::Stmt& stmt : old) (std::holds_alternative<ir::Alloc>(stmt.op) ? body : loop.body).push_back(stmt);
    order_.Use(loop.body);
    body.push_back({std::move(loop), {}});
    kernel_.body = std::move(body);
    kernel_.grid = {module_.exprs.Mul(clusters, order_.Int(size))};
    if (paired_) kernel_.cluster = {uint32_t(size)};
    kernel_.block_vars = {block};
    kernel_.raster_panel = 0;
    const std::string_view what = paired_ ? "pairs of tiles, two together" : "tiles";
    kernel_.decisions.push_back({"persist", std::nullopt, fmt::format("at most {} blocks go over all {}", context_.target->multiprocessors, what),
                                 "the next tile's loads run during this tile's epilogue"});
    if (lengths.differ) {
      const std::string_view turns_of =
          by_length ? "the longest tiles come first, there and back over the blocks" : "the blocks change places in each turn";
      kernel_.decisions.push_back({"persist", std::nullopt, std::string(turns_of), "tiles differ in the iterations of their loops"});
    }
  }

 private:
  // The place in a turn: 0, 1, 2 … in one, … 2, 1, 0 in the next, so that who has the longest tile in one turn has the shortest in the next.
  ExprId ThereAndBack(ExprId cluster, ExprId clusters, ExprId turn) {
    const ExprId back = module_.exprs.Sub(module_.exprs.Sub(clusters, order_.Int(1)), module_.exprs.Mul(cluster, order_.Int(2)));
    return module_.exprs.Add(cluster, module_.exprs.Mul(order_.Make(ExprOp::kFloorMod, turn, order_.Int(2)), back));
  }

  // The place in a turn: two thirds of the blocks further in each, so that a block sees the short and the long tiles of a panel, however long the
  // panel is.
  ExprId Turned(ExprId cluster, ExprId clusters, ExprId turn) {
    const int64_t step = int64_t(context_.target->multiprocessors) / (paired_ ? 2 : 1) * 2 / 3;
    return order_.Make(ExprOp::kFloorMod, module_.exprs.Add(cluster, module_.exprs.Mul(turn, order_.Int(step))), clusters);
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const std::optional<size_t> paired_;
  TileOrder order_;
};

// Tiles are counted in 32 bits.
constexpr int64_t kMostTiles = INT32_MAX;

// The number of the grid's blocks.
int64_t Tiles(const ir::Module& module, const ir::Kernel& kernel) {
  int64_t tiles = 1;
  bool known = true;
  for (ExprId extent : kernel.grid) {
    known &= module.exprs.ConstInt(extent).has_value();
    tiles *= module.exprs.ConstInt(extent).value_or(1);
  }
  return known ? tiles : std::max<int64_t>(tiles, kManyTiles);
}

// The axis of a cluster whose two neighbouring blocks load tiles for each other.
std::optional<size_t> PairedAxis(const ir::Kernel& kernel) {
  bool loads_for_both = false;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    loads_for_both |= copy != nullptr && copy->plan && copy->plan->multicast;
  });
  const auto pair = std::ranges::find(kernel.cluster, 2u);
  if (!loads_for_both || pair == kernel.cluster.end()) return std::nullopt;
  return size_t(pair - kernel.cluster.begin());
}

// Whether a loop that fills rings lies within another one. `depth`: loops around the block.
bool HasNestedRings(const ir::Block& block, int depth = 0) {
  return std::ranges::any_of(block, [&](const ir::Stmt& stmt) {
    if (depth > 1 && std::holds_alternative<ir::RingStep>(stmt.op)) return true;
    bool found = false;
    const bool loops = ir::IsOneOf<ir::For, ir::While>(stmt.op);
    ir::ForEachBody(stmt.op, [&](const ir::Block& body) { found |= HasNestedRings(body, depth + loops); });
    return found;
  });
}

// Whether a computing thread has registers for its block's place among the tiles, as many as a thread takes that only fills rings; loops within loops
// take those for places of their own. ptxas would spill them. Tiles of that kind take so long that the next one's first loads matter little.
bool LeavesRegisters(const ir::Module& module, const ir::Kernel& kernel) {
  return FragmentWords(module, kernel) + kFewRegisters <= kMostRegisters && !HasNestedRings(kernel.body);
}

}  // namespace

bool MayPersist(const ir::Module& module, const ir::Kernel& kernel, const Context& context) {
  const int64_t tiles = Tiles(module, kernel);
  return kernel.producers != 0 && !MeetsOtherBlocks(kernel) && kernel.threads >= kLargeBlock && tiles > int64_t(context.target->multiprocessors) &&
         tiles <= kMostTiles && (IsStreamed(kernel) || LeavesRegisters(module, kernel));
}

void Persist(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const std::optional<size_t> paired = PairedAxis(kernel);
  if (!MayPersist(module, kernel, context) || IsStreamed(kernel) || (!kernel.cluster.empty() && !paired)) return;
  Persister(module, kernel, context, paired).Run();
}

}  // namespace kiln::compiler
