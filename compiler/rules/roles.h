// SPDX-License-Identifier: Apache-2.0
//
// Roles of a block's threads (loops/rings.h): the program's threads compute, and further threads after them fill rings.
#pragma once

#include <cstdint>

namespace kiln::compiler {

// Threads of a warp group: four warps, which compute a wgmma together. Registers move between whole groups only.
inline constexpr uint32_t kGroupThreads = 128;
// Threads that fill rings.
inline constexpr uint32_t kProducers = kGroupThreads;
// Registers that a thread keeps which only fills rings, and that a computing thread gets at most: 128 for the largest sum of a product that a
// group computes, the rest for its operands and for addresses. PTX ISA, setmaxnreg: multiples of 8 from 24 to 256.
inline constexpr int64_t kFewRegisters = 40, kMostRegisters = 240;
// Bytes of shared memory for mbarriers: for those of one ring, with their alignment, and for all of a kernel whose rings are not known yet.
inline constexpr int64_t kRingBarrierRoom = 128, kKernelBarrierRoom = 1024;
// Threads from which on a computing block is so large that no second one fits a multiprocessor: with the threads that fill its rings, it has
// all registers.
inline constexpr uint32_t kLargeBlock = 256;

}  // namespace kiln::compiler
