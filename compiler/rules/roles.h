// SPDX-License-Identifier: Apache-2.0
//
// Roles of a block's threads (infer/rings.h): the program's compute, others behind them fill rings.
#pragma once

#include <cstdint>

namespace kiln::compiler {

// A warp group: four warps, which wgmma takes together and between whole ones of which registers move.
inline constexpr uint32_t kGroupThreads = 128;
// Threads that fill rings.
inline constexpr uint32_t kProducers = kGroupThreads;
// Of 32 bits, of all of a block's threads: what a multiprocessor has.
inline constexpr uint32_t kBlockRegisters = 65536;
// Threads that compute: nothing fits beside such a block.
inline constexpr uint32_t kLargeBlock = 256;

}  // namespace kiln::compiler
