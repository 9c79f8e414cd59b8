// SPDX-License-Identifier: Apache-2.0
//
// The order in which persistent blocks take the tiles of a grid: panel by panel, rows first. Tiles that run at the same time then share
// operands in L2. Tiles of unequal length come by length instead, the longest first.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::compiler {

class TileOrder {
 public:
  // `paired`: the axis along which the two blocks of a cluster are neighbours; a tile then stands for a pair of them.
  TileOrder(ir::Module& module, const ir::Kernel& kernel, const target::Target& target, std::optional<size_t> paired);

  // Takes the longest tiles first, which are the last ones along `axis` if their length grows along it, and else the first ones.
  void LongestFirst(size_t axis, bool grows) { by_length_ = Length{axis, grows}; }

  ir::DType type() const { return type_; }  // of the blocks' variables
  ir::ExprId Total() const;                 // tiles
  // Appends statements that compute the tile's place and assume it within the grid's extents.
  void Place(ir::ExprId tile, ir::Block& block);
  // The places so far are those of a pair of tiles; the cluster's first block takes the first of the two.
  void PlaceOfPair(ir::ExprId block, ir::Block& body);
  // Replaces the grid's variables by the places.
  void Use(ir::Block& body) const;

  ir::ExprId Int(int64_t value) { return module_.exprs.Int(value, type_); }
  ir::ExprId Make(ir::ExprOp op, ir::ExprId a, ir::ExprId b) { return module_.exprs.Make(op, {a, b}); }
  ir::VarId AddVar(ir::VarKind kind, std::string_view name) { return AddVar(kind, type_, name); }
  ir::ExprId Bind(ir::ExprId value, ir::Block& block, std::string_view name);

 private:
  ir::VarId AddVar(ir::VarKind kind, ir::DType type, std::string_view name);
  void BindPlace(size_t axis, ir::ExprId value, ir::Block& block);
  // The place of `tile` in panels of `rows` rows of `all_rows`: the row, and the column.
  std::pair<ir::ExprId, ir::ExprId> InPanel(ir::ExprId tile, int64_t rows, ir::ExprId all_rows, ir::ExprId columns, ir::Block& block);
  void PlaceByLength(ir::ExprId tile, ir::Block& block);

  struct Length {
    size_t axis;
    bool grows;
  };

  ir::Module& module_;
  const std::vector<ir::VarId> block_vars_;
  const std::optional<size_t> paired_;
  const int64_t panel_rows_;  // of tiles
  const ir::DType type_;
  std::optional<Length> by_length_;
  std::vector<ir::ExprId> extents_, places_;
};

}  // namespace kiln::compiler
