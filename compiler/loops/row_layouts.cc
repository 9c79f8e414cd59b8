// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/row_layouts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "compiler/analysis/access.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Digit;
using ir::Place;

constexpr int64_t kLineBytes = 128, kSectorBytes = 32;

struct Tile {
  int64_t rows, columns, vector, bytes;  // of an element
};

// What the loop gathers, if it is of the form and reads no other fragment.
std::optional<Tile> TileOf(const ir::Module& module, ir::BufferId rows, const ir::For& loop) {
  if (loop.extents.size() != 2 || loop.coalesced_width == 0 || !loop.layout) return std::nullopt;
  const auto height = module.exprs.ConstInt(loop.extents[0]), width = module.exprs.ConstInt(loop.extents[1]);
  if (!height || !width) return std::nullopt;
  Tile tile{*height, *width, loop.coalesced_width, 0};
  for (const Access& access : AccessesOf(module, loop.body[0])) {
    const ir::Buffer& buffer = module[access.buffer];
    if (access.write) tile.bytes = ir::Bytes(buffer.dtype);
    if (buffer.space != ir::Space::kFragment) continue;
    const ir::ExprNode* index = access.indices.size() == 1 ? &module.exprs[access.indices[0]] : nullptr;
    if (access.buffer != rows || index == nullptr || index->op != ir::ExprOp::kVar || ir::VarId(index->ref) != loop.vars[0]) return std::nullopt;
  }
  return tile;
}

// `line` neighbouring threads share a row; `groups` such teams share the rows, and where teams are left, they share the columns.
ir::Layout LayoutOf(const Tile& tile, int64_t line, int64_t groups, int64_t threads) {
  const int64_t of_thread = tile.rows / groups, lines = tile.columns / (tile.vector * line);
  const int64_t beside = std::gcd(threads / (line * groups), lines);
  std::vector<Digit> rows{{of_thread, Place::kRegister, tile.vector}, {groups, Place::kThread, line}};
  std::vector<Digit> columns{{tile.vector, Place::kRegister, 1},
                             {line, Place::kThread, 1},
                             {beside, Place::kThread, line * groups},
                             {lines / beside, Place::kRegister, tile.vector * of_thread}};
  std::vector<Digit> replicas{{threads / (line * groups * beside), Place::kThread, line * groups * beside}};
  return ir::Layout({std::move(rows), std::move(columns)}, std::move(replicas)).Normalized();
}

}  // namespace

void GatherByLines(ir::Module& module, ir::BufferId rows, ir::For& load, std::span<ir::For* const> gathers) {
  const ir::Layout& before = *module[rows].layout;
  const int64_t threads = before.Threads();
  int64_t line = threads;
  std::vector<Tile> tiles;
  for (const ir::For* loop : gathers) {
    const std::optional<Tile> tile = TileOf(module, rows, *loop);
    if (!tile || tile->columns % tile->vector != 0 || before.rank() != 1) return;
    line = std::gcd(line, std::gcd(tile->columns / tile->vector, std::max<int64_t>(kLineBytes / (tile->vector * tile->bytes), 1)));
    tiles.push_back(*tile);
  }
  if (tiles.empty()) return;
  const int64_t groups = std::gcd(threads / line, tiles[0].rows);
  if (tiles[0].rows / groups >= before.Registers()) return;
  std::vector<ir::Layout> layouts;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const Tile& tile = tiles[i];
    const bool scattered = line * tile.vector * tile.bytes < kSectorBytes && tile.columns > line * tile.vector;
    if (scattered || tile.rows != before.Extent(0)) return;
    layouts.push_back(LayoutOf(tile, line, groups, threads));
    if (layouts.back().Registers() > gathers[i]->layout->Registers()) return;
  }
  for (size_t i = 0; i < tiles.size(); ++i) gathers[i]->layout = layouts[i];
  const ir::Layout of_rows = LayoutOf({tiles[0].rows, line, 1, 1}, line, groups, threads).WithoutDim(1);
  load.layout = module[rows].layout = of_rows;
}

}  // namespace kiln::compiler
