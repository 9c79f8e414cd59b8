// SPDX-License-Identifier: Apache-2.0
#include "compiler/grid/persist.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/grid/stream_k.h"
#include "compiler/grid/tile_order.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

constexpr int64_t kManyTiles = 1 << 20;  // assumed where only the launch knows their number: more than any device holds at once

class Persister {
 public:
  Persister(ir::Module& module, ir::Kernel& kernel, const Context& context, std::optional<size_t> paired)
      : module_(module), kernel_(kernel), context_(context), paired_(paired), order_(module, kernel, *context.target, paired) {}

  void Run() {
    const ir::Block old = std::move(kernel_.body);
    const int64_t size = paired_ ? 2 : 1;
    const ExprId total = order_.Total();
    const ExprId clusters = order_.Make(ExprOp::kMin, total, order_.Int(int64_t(context_.target->multiprocessors) / size));

    const ir::VarId block = order_.AddVar(ir::VarKind::kBlock, "block"), turn = order_.AddVar(ir::VarKind::kLoop, "turn");
    ir::Block body;
    ExprId cluster = module_.VarRef(block);
    if (paired_) cluster = order_.Bind(order_.Make(ExprOp::kFloorDiv, cluster, order_.Int(size)), body, "cluster");
    const ExprId left = module_.exprs.Sub(total, cluster);
    const ExprId turns = order_.Make(ExprOp::kFloorDiv, module_.exprs.Add(left, module_.exprs.Sub(clusters, order_.Int(1))), clusters);
    ir::For loop{ir::LoopKind::kSerial, {turn}, {turns}, {}};
    const ExprId tile = module_.exprs.Add(cluster, module_.exprs.Mul(module_.VarRef(turn), clusters));
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
  }

 private:
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

}  // namespace

bool MayPersist(const ir::Module& module, const ir::Kernel& kernel, const Context& context) {
  const int64_t tiles = Tiles(module, kernel);
  return kernel.producers != 0 && !MeetsOtherBlocks(kernel) && kernel.threads >= kLargeBlock && tiles > int64_t(context.target->multiprocessors) &&
         tiles <= kMostTiles;
}

void Persist(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const std::optional<size_t> paired = PairedAxis(kernel);
  if (!MayPersist(module, kernel, context) || IsStreamed(kernel) || (!kernel.cluster.empty() && !paired)) return;
  Persister(module, kernel, context, paired).Run();
}

}  // namespace kiln::compiler
