// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/tensor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "compiler/rules/gemm.h"
#include "compiler/rules/shared.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// What the instruction's operands can say (CUDA driver API, cuTensorMapEncodeTiled), the same on every target that has it.
constexpr int64_t kMaxBox = 256;
constexpr int64_t kPanelStart = 128;  // bytes that the places of boxes in shared memory are multiples of
constexpr size_t kMaxRank = 5;
constexpr int64_t kUnit = 16;  // bytes that strides, addresses and the first coordinate are multiples of, and that stores write as one

// The dimensions along which a copy moves several elements; for a single row, also the dimension before.
std::vector<size_t> Moving(std::span<const int64_t> extents) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < extents.size(); ++d)
    if (extents[d] != 1) dims.push_back(d);
  if (dims.size() == 1 && dims[0] > 0) dims.insert(dims.begin(), dims[0] - 1);
  return dims;
}

// Bytes of a row in one box.
int64_t BoxBytes(int64_t row) { return row == kNarrowRow ? kNarrowRow : PanelBytes(row); }

bool IsMatrix(std::span<const int64_t> extents) {
  if (extents.size() < 2) return false;
  return std::ranges::all_of(extents.first(extents.size() - 2), [](int64_t extent) { return extent == 1; });
}

// Rows of whole panels: a swizzle's.
bool IsTile(std::span<const int64_t> extents, int64_t element_bits) {
  if (!IsMatrix(extents)) return false;
  // Each panel begins at a multiple of kPanelStart.
  const int64_t row = extents.back() * element_bits / 8, panel = PanelBytes(row);
  return panel != 0 && (panel == row || extents[extents.size() - 2] * panel % kPanelStart == 0);
}

// Elements from one index of a dimension to the next divide by this.
int64_t StrideDivisor(const Facts& facts, const ir::Buffer& buffer, size_t d) {
  if (!buffer.strides.empty()) return facts.DivisorOf(buffer.strides[d]);
  int64_t divisor = 1;
  for (size_t inner = d + 1; inner < buffer.shape.size(); ++inner) {
    const int64_t extent = facts.DivisorOf(buffer.shape[inner]);
    if (extent == 0) return 0;  // a dimension of nothing: any number divides the stride
    divisor *= extent;
  }
  return divisor;
}

// Rows of a box: the most that divide the tile's rows and let every box start at a multiple of 8, where swizzles repeat; 0: none do.
int64_t BoxRows(int64_t rows) {
  int64_t step = std::min(rows, kMaxBox);
  while (step > 0 && (rows % step != 0 || (step != rows && step % 8 != 0))) --step;
  return step;
}

// Whether boxes may begin where the region's rows do.
bool RowsFit(const ir::Module& module, const Facts& facts, const ir::Region& global, int64_t pointer_alignment) {
  const ir::Buffer& buffer = module[global.buffer];
  const int64_t bits = ir::Bits(buffer.dtype);
  const size_t rank = buffer.shape.size();
  if (bits % 8 != 0 || bits > 32 || rank < 2 || rank > kMaxRank || buffer.workspace) return false;
  if (pointer_alignment % kUnit != 0 || (buffer.pad_value && *buffer.pad_value != 0)) return false;
  const std::vector<size_t> dims = Moving(global.extents);
  if (dims.size() != 2 || dims[1] != rank - 1 || BoxRows(global.extents[dims[0]]) == 0) return false;
  if (!buffer.strides.empty() && !module.exprs.IsConst(buffer.strides.back(), 1)) return false;
  if (facts.DivisorOf(global.offsets.back()) * bits / 8 % kUnit != 0) return false;
  for (size_t d = 0; d + 1 < rank; ++d)
    if (StrideDivisor(facts, buffer, d) * bits / 8 % kUnit != 0) return false;
  return true;
}

}  // namespace

const ir::Region& GlobalSide(const ir::Module& module, const ir::Copy& copy) {
  return module[copy.src.buffer].space == ir::Space::kGlobal ? copy.src : copy.dst;
}
const ir::Region& SharedSide(const ir::Module& module, const ir::Copy& copy) {
  return module[copy.src.buffer].space == ir::Space::kGlobal ? copy.dst : copy.src;
}

TensorTile TileOf(const ir::Module& module, const ir::Copy& copy) {
  const ir::Region& global = GlobalSide(module, copy);
  const int64_t bytes = ir::Bytes(module[global.buffer].dtype);
  const std::vector<size_t> dims = Moving(global.extents);
  const std::vector<int64_t> shared = module.ShapeOf(SharedSide(module, copy).buffer);
  TensorTile tile{};
  tile.row_dim = dims[0], tile.column_dim = dims[1];
  const int64_t rows = global.extents[tile.row_dim], row = global.extents[tile.column_dim];
  tile.column_step = BoxBytes(row * bytes) / bytes;
  tile.row_step = copy.plan->groups_m > 1 ? kGroupRows : BoxRows(rows);
  tile.rows = rows / tile.row_step, tile.columns = row / tile.column_step;
  const int64_t panels = copy.plan->panels ? std::exchange(tile.columns, 1) : 1;
  tile.row_bytes = tile.row_step * tile.column_step * bytes;
  tile.column_bytes = shared[shared.size() - 2] * tile.column_step * bytes;
  tile.map = {global.buffer, std::vector<int64_t>(global.extents.size(), 1), PanelBytes(row * bytes), panels};
  tile.map.box[tile.row_dim] = tile.row_step;
  tile.map.box[tile.column_dim] = tile.column_step;
  return tile;
}

bool UsesTensorCopies(const Context& context) {
  const v1::CompileOptions& options = context.options;
  return context.target->Has(target::Feature::kTma | target::Feature::kWgmma) && !options.disable_wgmma() && !options.disable_tma();
}

ir::Layout TensorSharedLayout(std::span<const int64_t> shape, int64_t element_bits) {
  const bool narrow = shape.back() * element_bits / 8 == kNarrowRow;
  return narrow ? SharedLayout(shape, element_bits) : WgmmaSharedLayout(shape, element_bits);
}

bool TensorFits(const ir::Module& module, const Facts& facts, const ir::Region& global, std::span<const int64_t> tile, int64_t pointer_alignment) {
  return IsTile(tile, ir::Bits(module[global.buffer].dtype)) && RowsFit(module, facts, global, pointer_alignment);
}

bool NarrowTensorFits(const ir::Module& module, const Facts& facts, const ir::Region& global, std::span<const int64_t> tile,
                      int64_t pointer_alignment) {
  const int64_t bits = ir::Bits(module[global.buffer].dtype);
  return IsMatrix(tile) && tile.back() * bits / 8 == kNarrowRow && RowsFit(module, facts, global, pointer_alignment);
}

bool TensorStoreFits(const ir::Module& module, const Facts& facts, const ir::Region& global, std::span<const int64_t> tile,
                     int64_t pointer_alignment) {
  const ir::Buffer& buffer = module[global.buffer];
  return TensorFits(module, facts, global, tile, pointer_alignment) && facts.DivisorOf(buffer.shape.back()) * ir::Bits(buffer.dtype) / 8 % kUnit == 0;
}

bool PanelsFit(const ir::Module& module, const Facts& facts, const ir::Copy& load, const target::Target& target) {
  const TensorTile tile = TileOf(module, load);
  const ir::Buffer& buffer = module[load.src.buffer];
  // A box lies in shared memory panel by panel, each with all of the tile's rows.
  if (tile.columns == 1 || tile.rows > 1 || tile.row_bytes >= target.costs.large_box) return false;
  if (tile.columns > kMaxBox || buffer.shape.size() + 1 > kMaxRank) return false;
  return facts.DivisorOf(buffer.shape.back()) % tile.column_step == 0 && facts.DivisorOf(load.src.offsets.back()) % tile.column_step == 0;
}

double LinesOf(const ir::Module& module, const Facts& facts, const ir::Copy& copy, const target::Target& target) {
  const ir::Region& global = GlobalSide(module, copy);
  const ir::Buffer& buffer = module[global.buffer];
  const TensorTile tile = TileOf(module, copy);
  const int64_t line = target.costs.line;
  const int64_t aligned = std::gcd(line, StrideDivisor(facts, buffer, tile.row_dim) * ir::Bytes(buffer.dtype));
  return double(tile.rows * tile.row_step * tile.columns * tile.map.panels) * (2.0 - double(aligned) / double(line));
}

std::vector<TensorMap> TensorMapsOf(const ir::Module& module) {
  std::vector<TensorMap> maps;
  for (const ir::Kernel& kernel : module.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy == nullptr || !copy->plan || copy->plan->instruction != ir::CopyInstruction::kTensor) return;
      TensorMap map = TileOf(module, *copy).map;
      if (std::ranges::find(maps, map) == maps.end()) maps.push_back(std::move(map));
    });
  }
  return maps;
}

}  // namespace kiln::compiler
