// SPDX-License-Identifier: Apache-2.0
//
// wgmma.mma_async: matrix products by four warps, whose operands in shared memory are given by descriptors. Written from the PTX ISA
// ("Asynchronous warpgroup level matrix instructions") and nothing else.
#pragma once

#include <cstdint>
#include <vector>

namespace kiln::emulator {

class Block;

inline constexpr uint32_t kGroupThreads = 128;
// Flags of kiln_emu_wgmma_step: operands whose rows, not k, are contiguous; a comes in registers.
inline constexpr uint32_t kARows = 1, kBRows = 2, kAInRegisters = 4;

struct WgmmaStep {
  uint64_t form = 0;
  uint64_t a = 0, b = 0;  // descriptors
  uint32_t flags = 0;
  uint32_t location = 0;
  uint32_t accumulator = 0;          // number of the thread's accumulator that it adds to
  std::vector<uint32_t> a_words;     // in registers: four of each thread
};

// Reads the operands as they are now and adds to the accumulators of the group that starts with thread `first`.
void RunWgmma(Block& block, uint32_t first, const WgmmaStep& step);

}  // namespace kiln::emulator
