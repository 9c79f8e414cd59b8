// SPDX-License-Identifier: Apache-2.0
//
// In which order the threads of a block take the elements of a tile, by what lies together in memory: a tile that is loaded or stored along its
// columns is read line by line only where neighbouring threads, and the registers of one, follow the column.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// An access to global memory in a parallel loop.
struct MemoryRun {
  std::optional<size_t> variable;  // of the loop, along which it goes from one element to the next in memory
  int64_t width = 1;               // neighbours that one access may take
  int64_t bytes = 1;               // of an element
  std::vector<bool> used;          // variables that it depends on
};

using MemoryRuns = std::map<const ir::For*, std::vector<MemoryRun>>;
// The pointers are into the kernel's body.
MemoryRuns MemoryRunsOf(const ir::Module& module, ir::Kernel& kernel, const Context& context);

// What the loop's accesses cost a warp that holds its iterations so: sectors of memory for each instruction, and the instructions.
int64_t MemoryCost(const ir::Layout& layout, const std::vector<MemoryRun>& runs, const Context& context);

// Layouts of a tile with blocks of registers and of lanes along its last dimension and along `dim`, without copies or padding.
std::vector<ir::Layout> OrdersAlong(const std::vector<int64_t>& shape, int dim, int64_t threads, const Context& context);

// Reorders the variables of loops that have a layout, and the registers of their iterations, so that accesses to memory are contiguous in the
// last variable. Iterations have no order, so nothing else changes.
void PutRunsLast(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
