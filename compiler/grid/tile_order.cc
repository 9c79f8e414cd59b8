// SPDX-License-Identifier: Apache-2.0
#include "compiler/grid/tile_order.h"

#include <string>

#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

// A choice: with more, tiles that run together share more of their operands, and differ more in their length.
constexpr int64_t kLengths = 4;

// What the program asks for, else the target's figure, for which a pair along the rows counts twice.
int64_t PanelRows(const ir::Kernel& kernel, const target::Target& target, std::optional<size_t> paired) {
  if (kernel.raster_panel > 0) return kernel.raster_panel;
  return paired == 1 ? target.costs.panel_rows / 2 : target.costs.panel_rows;
}

}  // namespace

TileOrder::TileOrder(ir::Module& module, const ir::Kernel& kernel, const target::Target& target, std::optional<size_t> paired)
    : module_(module),
      block_vars_(kernel.block_vars),
      paired_(paired),
      panel_rows_(PanelRows(kernel, target, paired)),
      type_(module[kernel.block_vars[0]].dtype) {
  for (ExprId extent : kernel.grid) extents_.push_back(module_.exprs.Cast(type_, extent));
  if (paired_) extents_[*paired_] = Make(ExprOp::kFloorDiv, extents_[*paired_], Int(2));
}

ExprId TileOrder::Total() const {
  ExprId total = extents_[0];
  for (size_t axis = 1; axis < extents_.size(); ++axis) total = module_.exprs.Mul(total, extents_[axis]);
  return total;
}

ir::VarId TileOrder::AddVar(ir::VarKind kind, ir::DType type, std::string_view name) { return FreshVar(module_, kind, type, name); }

ExprId TileOrder::Bind(ExprId value, ir::Block& block, std::string_view name) {
  const ir::VarId var = AddVar(ir::VarKind::kLet, module_.exprs.Type(value), name);
  block.push_back({ir::Let{var, value}, {}});
  return module_.VarRef(var);
}

// Binds the place along an axis, with the assumption that it lies within the axis's extent.
void TileOrder::BindPlace(size_t axis, ExprId value, ir::Block& block) {
  const ExprId place = Bind(value, block, module_[block_vars_[axis]].name);
  block.push_back({ir::Assume{Make(ExprOp::kLe, module_.exprs.Int(0, module_.exprs.Type(place)), place)}, {}});
  block.push_back({ir::Assume{Make(ExprOp::kLt, place, extents_[axis])}, {}});
  places_[axis] = place;
}

void TileOrder::Place(ExprId tile, ir::Block& block) {
  const size_t rank = extents_.size();
  places_.resize(rank);
  if (by_length_) return PlaceByLength(tile, block);
  if (rank == 1) return BindPlace(0, tile, block);
  const ExprId x_size = extents_[0], y_size = extents_[1];
  if (rank == 3) {
    const ExprId plane = module_.exprs.Mul(x_size, y_size);
    BindPlace(2, Make(ExprOp::kFloorDiv, tile, plane), block);
    tile = Bind(Make(ExprOp::kFloorMod, tile, plane), block, "tile");
  }
  const auto [row, column] = InPanel(tile, panel_rows_, y_size, x_size, block);
  BindPlace(1, row, block);
  BindPlace(0, column, block);
}

std::pair<ExprId, ExprId> TileOrder::InPanel(ExprId tile, int64_t rows, ExprId all_rows, ExprId columns, ir::Block& block) {
  const ExprId most = Int(rows), area = module_.exprs.Mul(most, columns);
  const ExprId first = Bind(module_.exprs.Mul(Make(ExprOp::kFloorDiv, tile, area), most), block, "panel");
  const ExprId inside = Bind(Make(ExprOp::kFloorMod, tile, area), block, "inside");
  const ExprId height = Bind(Make(ExprOp::kMin, most, module_.exprs.Sub(all_rows, first)), block, "height");
  return {module_.exprs.Add(first, Make(ExprOp::kFloorMod, inside, height)), Make(ExprOp::kFloorDiv, inside, height)};
}

// Panels of few lengths, so that tiles which differ only in their length follow each other and share operands. Within a panel, the first of the
// other axes runs fastest.
void TileOrder::PlaceByLength(ExprId tile, ir::Block& block) {
  const auto [axis, grows] = *by_length_;
  ExprId others = Int(1);
  for (size_t other = 0; other < extents_.size(); ++other)
    if (other != axis) others = module_.exprs.Mul(others, extents_[other]);
  auto [row, column] = InPanel(tile, kLengths, extents_[axis], others, block);
  BindPlace(axis, grows ? module_.exprs.Sub(module_.exprs.Sub(extents_[axis], Int(1)), row) : row, block);
  const size_t last = axis + 1 == extents_.size() ? extents_.size() - 2 : extents_.size() - 1;
  for (size_t other = 0; other < extents_.size(); ++other) {
    if (other == axis) continue;
    if (other == last) {
      BindPlace(other, column, block);
    } else {
      column = Bind(column, block, "column");
      BindPlace(other, Make(ExprOp::kFloorMod, column, extents_[other]), block);
      column = Make(ExprOp::kFloorDiv, column, extents_[other]);
    }
  }
}

void TileOrder::PlaceOfPair(ExprId block, ir::Block& body) {
  const ExprId two = Int(2), own = Make(ExprOp::kFloorMod, block, two);
  extents_[*paired_] = module_.exprs.Mul(extents_[*paired_], two);
  BindPlace(*paired_, module_.exprs.Add(module_.exprs.Mul(places_[*paired_], two), own), body);
}

void TileOrder::Use(ir::Block& body) const {
  for (size_t axis = 0; axis < places_.size(); ++axis) Substitute(module_, body, block_vars_[axis], places_[axis]);
}

}  // namespace kiln::compiler
