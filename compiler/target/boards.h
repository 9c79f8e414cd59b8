// SPDX-License-Identifier: Apache-2.0
//
// What a multiprocessor of each architecture does in a cycle, and what boards there are: rows (boards.def). The planner counts with them
// (compiler/plan).
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/target/target.h"

namespace kiln::target {

inline constexpr int64_t kSystemShared = 1024;
inline constexpr int64_t kRegisterUnit = 8;  // a thread has a multiple of so many registers

struct Machine {
  std::string_view arch;
  double issue;           // instructions of warps in a cycle
  double lanes;           // full operations (rules/arithmetic.h) in a cycle
  double half;            // half operations
  double special;         // special functions
  double shared;          // bytes of shared memory and of the first cache
  double port;            // bytes between a multiprocessor and the L2
  uint32_t blocks;        // on a multiprocessor at one time
  uint32_t threads;       // the same
  uint32_t shared_bytes;  // of a multiprocessor, of which each block takes kSystemShared more than its own
  double warp_products;   // part of the rate in the instruction's row at which warps compute it
  double near, far;       // cycles until shared memory, and the L2, answer
  double product_energy;  // picojoules of a cycle in which the matrix units multiply; 0: unknown
  double l2_energy;       // picojoules of a byte between the multiprocessor and the L2
};

struct Board {
  std::string_view name;
  std::string_view arch;
  uint32_t multiprocessors;
  double megahertz;
  double memory;  // bytes in a microsecond
  int64_t l2_bytes;
  double l2;             // bytes in a cycle for all multiprocessors together
  double memory_energy;  // picojoules of a byte
  double watts;          // that it may take beyond what it takes idle; 0: unknown
};

const Machine& MachineOf(const Target& target);
// The board of that name, or else the target's own.
const Board& BoardOf(const Target& target, std::string_view name = {});

}  // namespace kiln::target
