// SPDX-License-Identifier: Apache-2.0
//
// One block from its first statement to its last, by the clock: which statement waits for what. Copies and products run beside the threads; loops
// are followed until an iteration takes as long as those before it, and the rest is taken to go on like that.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "compiler/plan/work.h"

namespace kiln::compiler {

// What the block has of the device.
struct Surroundings {
  int64_t resident = 1;                     // blocks on its multiprocessor
  double port = 64;                         // bytes of the L2 in a cycle, for one multiprocessor
  double memory = 20;                       // bytes of memory in a cycle, for one multiprocessor
  int64_t spilled = 0;                      // words of a thread
  std::map<const ir::Stmt*, double> fresh;  // parts that come from memory (sharing.h)
};

// Why the threads did not go on.
enum class Wait : uint8_t { kCopies, kProducts, kBarriers };
inline constexpr size_t kWaits = 3;

struct BlockTime {
  double cycles = 0;
  std::array<double, kUnits> busy{};  // of the multiprocessor, by this block alone
  std::array<double, kWaits> waited{};
  double products = 0;                        // cycles in which the matrix units multiply
  double read = 0, written = 0;               // bytes between the block and the L2
  double under_way = 0;                       // the most bytes that are on their way to the block at one time
  double waited_for = 0;                      // bytes read, times the latency of each in cycles
  double tail = 0;                            // cycles after the last of what it reads is there
  std::map<const ir::Stmt*, double> read_by;  // the same, by statement
};

BlockTime RunBlock(const ir::Module& module, const ir::Kernel& kernel, const Context& context, const Surroundings& surroundings, Scalars scalars);

}  // namespace kiln::compiler
