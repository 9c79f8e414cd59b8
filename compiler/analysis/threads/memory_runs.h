// SPDX-License-Identifier: Apache-2.0
//
// What parallel loops move between memory and registers, by what lies together in memory: a tile that is loaded or stored along its columns is read
// line by line only where neighbouring threads, and the registers of one, follow the column.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ir/layout.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

inline constexpr int64_t kWidestAccess = 16;  // bytes

// An access to global memory in a parallel loop.
struct MemoryRun {
  bool write = false;
  std::optional<size_t> variable = {};  // of the loop, along which it goes from one element to the next in memory
  int64_t width = 1;                    // neighbours that one access may take
  int64_t whole = 1;                    // neighbours that are stored all or not at all
  int64_t around = 1;                   // neighbours that the two vectors around them may take
  int64_t bytes = 1;                    // of an element
  std::vector<bool> used;               // variables that it depends on

  // Neighbours that one access of a loop with this layout takes, of registers that follow each other along the variable.
  int64_t Width(const ir::Layout& layout) const;
  // How many accesses a thread of such a loop makes for so many of its registers.
  int64_t Accesses(const ir::Layout& layout, int64_t registers) const;
  bool operator==(const MemoryRun&) const = default;
};

// Of one parallel loop. `facts` hold where it stands; `alignment`: of tensors, in bytes.
std::vector<MemoryRun> MemoryRunsOf(const ir::Module& module, const Facts& facts, const ir::Stmt& loop, int64_t alignment);

using MemoryRuns = std::map<const ir::For*, std::vector<MemoryRun>>;
// Of loops whose accesses the program does not dictate. The pointers are into the kernel's body. `alignment`: of tensors, in bytes.
MemoryRuns MemoryRunsOf(const ir::Module& module, ir::Kernel& kernel, int64_t alignment);

// The most neighbours that two vectors around them take.
int64_t WidestAround(std::span<const MemoryRun> runs);
// Of the elements that an access moves, the narrowest.
int64_t NarrowestBytes(std::span<const MemoryRun> runs);
// Whether the loop moves elements between memory and registers, along its last variable where it goes along one: then CheapestVector says how many
// neighbours a thread takes. Tiles in shared memory take whole words at a time.
bool GoesAlongLast(const ir::Module& module, const ir::For& loop, std::span<const MemoryRun> runs);

// What the loop's accesses cost a warp of `lanes` threads that holds its iterations so: sectors of memory for each instruction, or what takes as
// long for the lines that it stores to, and the instructions.
int64_t MemoryCost(const ir::Layout& layout, std::span<const MemoryRun> runs, int64_t lanes);

// In the same units, what it costs the warp to write so many bytes of each thread to shared memory and read so many, with a barrier before each.
int64_t PassageCost(int64_t written, int64_t read, int64_t lanes);

// How many neighbours a thread should hold: `most`, or half as many and so on, but a word of four bytes at least of elements of `bytes`; what
// `cost` is least for. A thread that holds more of them than one access takes keeps its warp's lanes apart in memory.
int64_t CheapestVector(int64_t most, int64_t bytes, const std::function<int64_t(int64_t)>& cost);

}  // namespace kiln::compiler
