// SPDX-License-Identifier: Apache-2.0
//
// How long a program takes on a board whose every decision is made: the module as the last pass leaves it. Nothing here knows what the program is
// for. What a unit of a multiprocessor, the L2 or memory can do stands in the target's rows (target/boards.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/block_run.h"
#include "compiler/plan/occupancy.h"
#include "compiler/target/boards.h"

namespace kiln::compiler {

// Names of units and waits, as reports print them.
std::string_view Name(Unit unit);
std::string_view Name(Wait wait);

// Of one kernel, in microseconds. `units`: how long each unit is busy if all multiprocessors share the work evenly; `waited`: how long the threads
// of a block wait, in each turn of blocks. They overlap and do not add up.
struct KernelEstimate {
  double microseconds = 0;
  std::array<double, kUnits> units{};
  std::array<double, kWaits> waited{};
  double launch = 0;
  double power = 0;     // how long its energy lasts at the most power; 0: unknown. Beyond the time that it takes otherwise, the clock falls
  double turns = 0;     // of blocks, one after the other on each multiprocessor
  int64_t grid = 0;     // blocks
  double l2_bytes = 0;  // between the multiprocessors and the L2
  double memory_bytes = 0;
  Occupancy occupancy;
};

struct Estimate {
  double microseconds = 0;
  std::vector<KernelEstimate> kernels;
};

// Whether `symbols` may say its value: a dimension that only the launch knows, or an integer parameter, which programs over pointers have instead.
bool IsSize(const ir::Var& var);

// `symbols`: values of the dimensions that only the launch knows, by name; others count as 4096.
Estimate EstimateOf(const ir::Module& module, const Context& context, const target::Board& board, const std::map<std::string, int64_t>& symbols = {});

}  // namespace kiln::compiler
