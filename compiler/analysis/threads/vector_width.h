// SPDX-License-Identifier: Apache-2.0
//
// How many neighbouring elements one memory access of a parallel loop may take.
#pragma once

#include "compiler/analysis/access.h"
#include "compiler/analysis/facts.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The largest power of two ≤ `most` such that iterations v·w … v·w + w − 1 of the loop's last variable touch w neighbours of the
// buffer, aligned to their size, and all inside or all outside of its shape. `facts` hold at the loop's body. `alignment` is that
// of global buffers in bytes. 1 where the access is not contiguous in the last variable; 0 where it does not depend on it.
int64_t VectorWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, ir::BufferId buffer, std::span<const ir::ExprId> indices,
                    int64_t most, int64_t alignment);

// The same of another of the loop's variables.
int64_t VectorWidthIn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::BufferId buffer,
                      std::span<const ir::ExprId> indices, int64_t most, int64_t alignment);

// How many neighbours the two aligned vectors around them may load (ir::LoadForm::kAround): the largest power of two ≤ `most` such that iterations
// v·w … v·w + w − 1 read w neighbours in a row of a tensor, of elements of one or two bytes. They may begin anywhere in memory, before the row, and
// end beyond it. 1 where there are none, or they would fill no register.
int64_t AroundWidthIn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::BufferId buffer,
                      std::span<const ir::ExprId> indices, int64_t most);

inline constexpr int64_t kLoadsAround = 2;  // of so many vectors

// As VectorWidthIn, of what loads may take that stop at the end of a row of a tensor (ir::LoadForm::kClipped, cp.async).
int64_t ClippedWidthIn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::BufferId buffer,
                       std::span<const ir::ExprId> indices, int64_t most, int64_t alignment);

// Whether the neighbours v·w … v·w + w − 1 of a loop's variable that meet a condition follow each other: all do if the first and the last do. So it
// is with comparisons, joined by "and", of what counts up or down with what stays.
bool HoldsInARow(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::ExprId cond, int64_t width);

// The largest power of two ≤ `most` for which a bool has one value in iterations v·w … v·w + w − 1 of one of the loop's variables.
int64_t MaskWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::ExprId mask, int64_t most);

// The width of an access that the loop makes: it may take several elements only where one mask decides on all of them.
int64_t AccessWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, const Access& access, int64_t most,
                    int64_t alignment);

// The same of what a thread moves by itself. Vectors of a tensor may be clipped by the end of a row, and by conditions that neighbours meet in a row,
// where that makes them more than twice as wide.
int64_t OwnWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, const Access& access, int64_t most,
                 int64_t alignment);

inline constexpr int64_t kLeastGain = 2;  // vectors that become one

// The best width for the loop's own registers: that of its widest access of global or shared memory.
int64_t LoopVectorWidth(const ir::Module& module, const Facts& facts, const ir::Stmt& loop, int64_t alignment);

// Whether the element is inside of its buffer for every iteration.
bool ProvablyInside(const ir::Module& module, const Facts& facts, ir::BufferId buffer, std::span<const ir::ExprId> indices);

}  // namespace kiln::compiler
