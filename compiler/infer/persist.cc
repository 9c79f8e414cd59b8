// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/persist.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "compiler/infer/versions.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

constexpr uint32_t kLargeBlock = 256;   // threads that compute: nothing fits beside such a block
constexpr int64_t kManyTiles = 1 << 20;
constexpr int64_t kPanelRows = 16;      // measured on one H200: 8 loses up to 0.6 %, 4 up to 3 %

class Persister {
 public:
  Persister(ir::Module& module, ir::Kernel& kernel, const Context& context, std::optional<size_t> paired)
      : module_(module), kernel_(kernel), context_(context), paired_(paired) {}

  void Run() {
    const ir::Block old = std::move(kernel_.body);
    const ir::DType type = module_[kernel_.block_vars[0]].dtype;
    for (size_t axis = 0; axis < kernel_.grid.size(); ++axis) extents_.push_back(module_.exprs.Cast(type, kernel_.grid[axis]));
    const int64_t size = paired_ ? 2 : 1;
    if (paired_) extents_[*paired_] = Make(ExprOp::kFloorDiv, extents_[*paired_], Int(size, type));
    ExprId total = extents_[0];
    for (size_t axis = 1; axis < extents_.size(); ++axis) total = module_.exprs.Mul(total, extents_[axis]);
    const ExprId clusters = Make(ExprOp::kMin, total, Int(int64_t(context_.target->multiprocessors) / size, type));

    const ir::VarId block = AddVar(ir::VarKind::kBlock, type, "block"), turn = AddVar(ir::VarKind::kLoop, type, "turn");
    ir::Block body;
    ExprId cluster = module_.VarRef(block);
    if (paired_) cluster = Bind(Make(ExprOp::kFloorDiv, cluster, Int(size, type)), body, "cluster");
    const ExprId left = module_.exprs.Sub(total, cluster);
    const ExprId turns = Make(ExprOp::kFloorDiv, module_.exprs.Add(left, module_.exprs.Sub(clusters, Int(1, type))), clusters);
    ir::For loop{ir::LoopKind::kSerial, {turn}, {turns}, {}};
    const ExprId tile = module_.exprs.Add(cluster, module_.exprs.Mul(module_.VarRef(turn), clusters));
    Place(Bind(tile, loop.body, "tile"), loop.body);
    if (paired_) PlaceOfPair(module_.VarRef(block), loop.body);
    for (const ir::Stmt& stmt : old) (std::holds_alternative<ir::Alloc>(stmt.op) ? body : loop.body).push_back(stmt);
    for (size_t axis = 0; axis < places_.size(); ++axis) Substitute(module_, loop.body, kernel_.block_vars[axis], places_[axis]);
    body.push_back({std::move(loop), {}});
    kernel_.body = std::move(body);
    kernel_.grid = {module_.exprs.Mul(clusters, Int(size, type))};
    if (paired_) kernel_.cluster = {uint32_t(size)};
    kernel_.block_vars = {block};
    kernel_.raster_panel = 0;
  }

 private:
  ExprId Int(int64_t value, ir::DType type) { return module_.exprs.Int(value, type); }
  ExprId Make(ExprOp op, ExprId a, ExprId b) { return module_.exprs.Make(op, {a, b}); }

  ir::VarId AddVar(ir::VarKind kind, ir::DType type, std::string_view name) {
    return module_.AddVar({kind, type, 0, std::string(name) + std::to_string(module_.vars.size())});
  }

  ExprId Bind(ExprId value, ir::Block& block, std::string_view name) {
    const ir::VarId var = AddVar(ir::VarKind::kLet, module_.exprs.Type(value), name);
    block.push_back({ir::Let{var, value}, {}});
    return module_.VarRef(var);
  }

  // A place along an axis, which its extent bounds.
  void BindPlace(size_t axis, ExprId value, ir::Block& block) {
    const ExprId place = Bind(value, block, module_[kernel_.block_vars[axis]].name);
    const ir::DType type = module_.exprs.Type(place);
    block.push_back({ir::Assume{Make(ExprOp::kLe, Int(0, type), place)}, {}});
    block.push_back({ir::Assume{Make(ExprOp::kLt, place, extents_[axis])}, {}});
    places_[axis] = place;
  }

  void Place(ExprId tile, ir::Block& block) {
    const size_t rank = extents_.size();
    const ir::DType type = module_.exprs.Type(tile);
    places_.resize(rank);
    if (rank == 1) return BindPlace(0, tile, block);
    const ExprId x_size = extents_[0], y_size = extents_[1];
    if (rank == 3) {
      const ExprId plane = module_.exprs.Mul(x_size, y_size);
      BindPlace(2, Make(ExprOp::kFloorDiv, tile, plane), block);
      tile = Bind(Make(ExprOp::kFloorMod, tile, plane), block, "tile");
    }
    const ExprId rows = Int(kernel_.raster_panel > 0 ? kernel_.raster_panel : paired_ == 1 ? kPanelRows / 2 : kPanelRows, type);
    const ExprId area = module_.exprs.Mul(rows, x_size);
    const ExprId first = Bind(module_.exprs.Mul(Make(ExprOp::kFloorDiv, tile, area), rows), block, "panel");
    const ExprId inside = Bind(Make(ExprOp::kFloorMod, tile, area), block, "inside");
    const ExprId height = Bind(Make(ExprOp::kMin, rows, module_.exprs.Sub(y_size, first)), block, "height");
    BindPlace(1, module_.exprs.Add(first, Make(ExprOp::kFloorMod, inside, height)), block);
    BindPlace(0, Make(ExprOp::kFloorDiv, inside, height), block);
  }

  // The places so far are the pair's: of two neighbours, the first block of the cluster takes the first.
  void PlaceOfPair(ExprId block, ir::Block& body) {
    const ir::DType type = module_.exprs.Type(block);
    const ExprId two = Int(2, type), own = Make(ExprOp::kFloorMod, block, two);
    extents_[*paired_] = module_.exprs.Mul(extents_[*paired_], two);
    BindPlace(*paired_, module_.exprs.Add(module_.exprs.Mul(places_[*paired_], two), own), body);
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const std::optional<size_t> paired_;
  std::vector<ExprId> extents_, places_;
};

// They are counted in 32 bits.
constexpr int64_t kMostTiles = INT32_MAX;

// Blocks of a grid, more than any device holds at once where the launch decides.
int64_t Tiles(const ir::Module& module, const ir::Kernel& kernel) {
  int64_t tiles = 1;
  bool known = true;
  for (ExprId extent : kernel.grid) {
    known &= module.exprs.ConstInt(extent).has_value();
    tiles *= module.exprs.ConstInt(extent).value_or(1);
  }
  return known ? tiles : std::max<int64_t>(tiles, kManyTiles);
}

}  // namespace

bool MayPersist(const ir::Module& module, const ir::Kernel& kernel, const Context& context) {
  const int64_t tiles = Tiles(module, kernel);
  return kernel.producers != 0 && kernel.threads >= kLargeBlock && tiles > int64_t(context.target->multiprocessors) && tiles <= kMostTiles;
}

void Persist(ir::Module& module, ir::Kernel& kernel, const Context& context, std::optional<size_t> paired) {
  if (!MayPersist(module, kernel, context) || (!kernel.cluster.empty() && !paired)) return;
  Persister(module, kernel, context, paired).Run();
}

}  // namespace kiln::compiler
