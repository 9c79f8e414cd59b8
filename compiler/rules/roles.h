// SPDX-License-Identifier: Apache-2.0
//
// Roles of a block's threads (infer/rings.h): the program's threads compute, and further threads after them fill rings.
#pragma once

#include <cstdint>

namespace kiln::compiler {

// Threads of a warp group: four warps, which compute a wgmma together. Registers move between whole groups only.
inline constexpr uint32_t kGroupThreads = 128;
// Threads that fill rings.
inline constexpr uint32_t kProducers = kGroupThreads;
// 32-bit registers of a multiprocessor, which all threads of a block can have.
inline constexpr uint32_t kBlockRegisters = 65536;
// Threads from which on a computing block is so large that no second one fits a multiprocessor.
inline constexpr uint32_t kLargeBlock = 256;

}  // namespace kiln::compiler
