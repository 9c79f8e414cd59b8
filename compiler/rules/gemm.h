// SPDX-License-Identifier: Apache-2.0
//
// What a matrix product demands: how its fragments lie for a matrix instruction and a partition of the warps.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "compiler/target/instructions.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The shapes of op(a) (m × k), op(b) (k × n) and c (m × n).
struct GemmShape {
  int64_t m, n, k;
};
GemmShape ShapeOf(const ir::Gemm& gemm);
// Whether the row multiplies such matrices: of their types, with a sparse a or without one, and whole instructions of them.
bool Suits(const target::MmaInstruction& row, const ir::Module& module, const ir::Gemm& gemm);
// A plan to compute a product with the row; RowOf then gives the row.
ir::GemmPlan PlanWith(const target::MmaInstruction& row, int64_t warps_m = 1, int64_t warps_n = 1);
// Cycles of a multiprocessor, with the groups of warps one after the other. None of scalar products.
double CyclesOf(const ir::Gemm& gemm, const target::Target& target);

// Where warp w of a block works: row block w % warps_m, column block (w / warps_m) % warps_n, then part of k; further warps hold copies.
// `rows` and `columns`: as many neighbouring rows and columns of c belong to as many instructions.
struct WarpGrid {
  int64_t warps_m, warps_n, warps_k, warps, warp_size;
  int64_t rows = 1, columns = 1;
};
// How many neighbours of an operand that is not contiguous along k a thread reads at once, where no instruction transposes tiles: they belong
// to as many of a warp's `atoms` instructions. Eight bytes at most: with more, operands of too many instructions are in registers at a time.
int64_t Neighbours(const target::Target& target, ir::DType dtype, int64_t atoms);

// Fragments of c (m, n), op(a) (m, k) and op(b) as (n, k). Rows of instructions alternate between the warps; columns of a warp are
// neighbours, so that an accumulator becomes the next product's operand without moving. Parts of k are c's first dimension.
ir::Layout AccumulatorLayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid);
ir::Layout OperandALayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid, bool as_sums = false);
// The metadata of a sparse op(a), as words of lanes: (m, parts of k), a part for each of metadata_layout's. Instructions behind one another along k
// share a word's lanes where the row has selectors for them: `SharedSteps` of them.
ir::Layout MetadataLayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid);
int64_t SharedSteps(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid);
ir::Layout OperandBLayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid);
// How the depth of an instruction is numbered where its A, in registers, lies as columns of a sum do. Columns are numbered as they come in the
// sum; places as the instruction numbers its k. Products add over all of k, so that any order gives the same, if B's rows are in it, too.
struct Depth {
  std::vector<ir::Digit> columns;  // of A's layout, along k
  std::vector<ir::Digit> places;   // of addresses: for each column, its place
  bool operator==(const Depth&) const = default;

  // Column of each place; `place` may be any number, of which whole multiples of the instruction's k stay what they are.
  ir::ExprId ColumnAt(ir::ExprPool& exprs, ir::ExprId place) const;
};
// Of sums that `sums` computes. nullopt: registers of A do not lie so in any order, or they do in k's own.
std::optional<Depth> DepthAsSums(const target::MmaInstruction& mma, const target::MmaInstruction& sums);
// c spread over all threads for scalar products: four neighbouring columns, then threads.
ir::Layout ScalarAccumulatorLayout(const GemmShape& shape, int64_t threads);

// Registers of a thread that ptxas demands at the kernel's start for an instruction's results, before roles exchange registers.
int64_t RegistersAtStartFor(const target::MmaInstruction& mma);

// In units of the warps that compute one instruction: a single warp, or a group of four.
WarpGrid GridOf(const ir::Gemm& gemm, uint32_t threads, const target::Target& target);

// Whether wgmma reads the tile as it lies in memory: the buffer's rows fill panels (PanelBytes), and the matrix is all of it or a part that
// starts where swizzles do, with all of the rows where k does not run along its last dimension (`k_is_last`). Only 16-bit types may have k so.
// `size`: of an instruction, or of what a group of warps takes, along the last dimension; an instruction's k lies in one panel.
bool WgmmaReads(const ir::Module& module, const ir::Region& region, bool k_is_last, int64_t size);
bool WgmmaTile(std::span<const int64_t> extents, int64_t element_bits);  // the part that concerns the shape
// Whether wgmma may take k in parts of `deep`: no part may begin within a panel and end beyond it. `staged`: nor of an operand in a fragment, as
// it would lie in shared memory, through which it goes where another product has chosen its layout.
bool WgmmaReadsParts(const ir::Module& module, const ir::Gemm& gemm, int64_t deep, bool staged = false);

// Whether the warps of a group should compute its product one by one, each its own rows. That pays where one operand is in registers anyway
// and the tile has few columns, for which the group takes as long as for more.
bool IsFasterByWarps(const ir::Module& module, const ir::Gemm& gemm, const target::MmaInstruction& mma, const target::Target& target);

}  // namespace kiln::compiler
