// SPDX-License-Identifier: Apache-2.0
//
// What the daemon's planner expects each of several programs to take. Nothing is compiled or measured:
//
//   auto ranked = client->Rank({.candidates = {{.module = a, .target = "cuda:sm_90a"}, {.module = b, .target = "cuda:sm_90a"}}});
//   const kiln::CompileRequest& first = request.candidates[ranked->front().candidate];
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "clients/cpp/client.h"

namespace kiln {

struct RankRequest {
  std::vector<CompileRequest> candidates;
  std::string board;                            // as its driver calls it ("NVIDIA H200"); empty: the target's usual one
  std::map<std::string, std::int64_t> symbols;  // values of the dimensions that only the launch knows; others count as 4096
  // What the candidates are called together: all of them follow from the first one and from this. The daemon then keeps the ranking, and who asks
  // again gets it without terms. Empty: it keeps nothing.
  std::string space = {};
};

struct PlanTerm {
  std::string name;
  double microseconds = 0;
};

// Of one kernel. Terms overlap: they do not add up to its time.
struct KernelEstimate {
  double microseconds = 0;
  std::vector<PlanTerm> units;  // how long each unit is busy if all multiprocessors share the work evenly
  std::vector<PlanTerm> waits;  // how long a block's threads wait, in all turns of blocks
  double launch = 0;
  double turns = 0;  // of blocks, one after the other on each multiprocessor
  std::uint64_t grid = 0, l2_bytes = 0, memory_bytes = 0;
  std::uint32_t registers = 0, spilled = 0, shared_bytes = 0, blocks = 0;
};

// Of a program.
struct Estimate {
  double microseconds = 0;
  std::string board;
  std::vector<KernelEstimate> kernels;
};

struct Ranked {
  std::size_t candidate = 0;
  double microseconds = 0;  // infinite: it was refused
  std::string problem;      // why
  std::string board;
  std::vector<KernelEstimate> kernels;
};

}  // namespace kiln
