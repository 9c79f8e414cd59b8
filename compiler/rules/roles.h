// SPDX-License-Identifier: Apache-2.0
//
// Roles of a block's threads (loops/rings.h): the program's threads compute, and further threads after them fill rings.
#pragma once

#include <cstdint>

#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::compiler {

// Threads of a warp group: four warps, which compute a wgmma together. Registers move between whole groups only.
inline constexpr uint32_t kGroupThreads = 128;
// Threads that fill rings.
inline constexpr uint32_t kProducers = kGroupThreads;
// Registers that a thread keeps which only fills rings, at ease and at least, and that a computing thread gets at most: 128 for the largest sum of
// a product that a group computes, the rest for its operands and for addresses. PTX ISA, setmaxnreg: multiples of 8 from 24 to 256.
inline constexpr int64_t kFewRegisters = 40, kLeastRegisters = 24, kMostRegisters = 240;
// A choice: registers of a computing thread for addresses and values on their way, beside its fragments; at ease, and at least.
inline constexpr int64_t kOtherRegisters = 60, kFewOtherRegisters = 52;
// Bytes of shared memory for mbarriers: for those of one ring, with their alignment, and for all of a kernel whose rings are not known yet.
inline constexpr int64_t kRingBarrierRoom = 128, kKernelBarrierRoom = 1024;
// Threads from which on a computing block is so large that no second one fits a multiprocessor: with the threads that fill its rings, it has
// all registers.
inline constexpr uint32_t kLargeBlock = 256;

// Registers of a thread that a fragment takes, and all of the kernel's, each for itself.
int64_t FragmentWords(const ir::Module& module, ir::BufferId id);
int64_t FragmentWords(const ir::Module& module, const ir::Kernel& kernel);

// Registers of a thread of the kernel when it starts. `max_registers`: the request's, which takes precedence over min_blocks; 0: not given.
int64_t RegistersAtStart(const ir::Kernel& kernel, const target::Target& target, int64_t max_registers);

// What a thread of each role has once they have shared the registers; zeros where a computing thread would get no more than it has `at_start`.
struct RoleRegisters {
  int64_t filling = 0, computing = 0;
};
RoleRegisters RegistersOfRoles(const ir::Module& module, const ir::Kernel& kernel, int64_t at_start);

}  // namespace kiln::compiler
