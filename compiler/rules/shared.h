// SPDX-License-Identifier: Apache-2.0
//
// How a tile lies in shared memory.
#pragma once

#include <span>

#include "ir/layout.h"

namespace kiln::compiler {

// Row-major, rows of whole 16-byte chunks, swizzled or padded so that the same 16 bytes of eight neighbouring rows lie in
// different banks: what ldmatrix, MMA fragments stored row by row and 16-byte columns all need.
//   row = 2^e · odd bytes, e ≥ 7: three chunk bits XOR the row's lowest three; e = 6, 5: two bits, one bit; e = 4: none needed.
//   Other rows are padded to an odd number of chunks.
ir::Layout SharedLayout(std::span<const int64_t> shape, int64_t element_bits);

// Rows one behind the other.
ir::Layout RowMajorLayout(std::span<const int64_t> shape);

// Bytes of a row in one panel of a tile that wgmma and tensor copies take: 128, 64 or 32, the most that divide a row; 0: none does. The hardware
// has a swizzle for each.
int64_t PanelBytes(int64_t row_bytes);
// A tile that wgmma reads (WgmmaTile in rules/gemm.h): panels one behind the other, each row-major with the swizzle of its width, which the
// instruction undoes. PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
ir::Layout WgmmaSharedLayout(std::span<const int64_t> shape, int64_t element_bits);

// Ways in which 32 lanes that read 16 bytes of consecutive rows conflict; 1 is none. For the report.
int64_t BankConflicts(const ir::Layout& layout, std::span<const int64_t> shape, int64_t element_bits);

}  // namespace kiln::compiler
