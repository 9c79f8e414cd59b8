// SPDX-License-Identifier: Apache-2.0
//
// Tensor copies (TMA): which tiles they can move, and in what boxes. CUDA driver API, cuTensorMapEncodeTiled, names the limits: at
// most 5 dimensions, boxes of at most 256 elements along each, strides that are multiples of 16 bytes, 16-byte aligned tensors. A box
// that starts at no multiple of 16 bytes in its row is an illegal instruction to the hardware.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compiler/analysis/facts.h"
#include "compiler/options.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// What a tensor map says: how a global buffer is cut into boxes, and how a box lies in shared memory.
struct TensorMap {
  ir::BufferId buffer;
  std::vector<int64_t> box;  // elements along each dimension of the buffer
  int64_t swizzle;           // bytes that a swizzle works within: 32, 64 or 128; 0: there is none
  int64_t panels = 1;        // boxes along the last dimension that are moved as one, and lie one behind another
  bool operator==(const TensorMap&) const = default;
};

// The boxes of one tile, whose shared layout is TensorSharedLayout.
struct TensorTile {
  TensorMap map;
  size_t row_dim, column_dim;       // dimensions of the global buffer
  int64_t rows, columns;            // boxes along them
  int64_t row_step, column_step;    // elements from box to box in the buffer
  int64_t row_bytes, column_bytes;  // and bytes in shared memory
};

// The side of a copy between global and shared memory that is global, and the other.
const ir::Region& GlobalSide(const ir::Module& module, const ir::Copy& copy);
const ir::Region& SharedSide(const ir::Module& module, const ir::Copy& copy);

// Rows of a tile that one group of four warps holds next to each other, as wgmma gives them.
inline constexpr int64_t kGroupRows = 64;

// Of a kTensor copy. What groups store for themselves is cut by their rows.
TensorTile TileOf(const ir::Module& module, const ir::Copy& copy);

// Whether a program may use tensor copies at all: only beside wgmma, whose warps leave copying to other threads.
bool UsesTensorCopies(const Context& context);
// Bytes of the shortest row that a box has. Such boxes move little at a time.
inline constexpr int64_t kNarrowRow = 16;
// How a tile lies that tensor copies move: WgmmaSharedLayout, or row by row where rows are that short.
ir::Layout TensorSharedLayout(std::span<const int64_t> shape, int64_t element_bits);
// Whether tensor copies can move `global` to or from a tile of such extents; whether they can with a tile of rows of kNarrowRow bytes.
bool TensorFits(const ir::Module& module, const Facts& facts, const ir::Region& global, std::span<const int64_t> tile, int64_t pointer_alignment);
bool NarrowTensorFits(const ir::Module& module, const Facts& facts, const ir::Region& global, std::span<const int64_t> tile,
                      int64_t pointer_alignment);
// Whether they can also store or add such a tile, and nothing but the tensor's elements changes.
bool TensorStoreFits(const ir::Module& module, const Facts& facts, const ir::Region& global, std::span<const int64_t> tile,
                     int64_t pointer_alignment);

// Whether one box shall take all columns of a load that TensorFits accepts: boxes of fewer columns would be small, and no row ends inside a
// panel.
bool PanelsFit(const ir::Module& module, const Facts& facts, const ir::Copy& load, const target::Target& target);

// The target's lines that a load touches; rows that are not aligned so touch one more.
double LinesOf(const ir::Module& module, const Facts& facts, const ir::Copy& copy, const target::Target& target);

// Maps of all tensor copies of a module, each once, in the order they occur: further parameters of its kernels.
std::vector<TensorMap> TensorMapsOf(const ir::Module& module);

}  // namespace kiln::compiler
