// SPDX-License-Identifier: Apache-2.0
//
// Cycles that the target takes for a product, for each way to distribute
// its tiles over the multiprocessors.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/target/instructions.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct TileWork {
  int64_t tiles = 0;
  int64_t steps = 0;     // of each
  double step = 0;       // cycles of one
  double sum_bytes = 0;  // of a tile's sum
  int64_t together = 1;  // PartsTogether
  const target::Target* target = nullptr;
};

// `gemm`: the only work of a step, with its instruction chosen.
TileWork WorkOf(const ir::Module& module, const ir::Gemm& gemm, const target::Target& target, int64_t tiles, int64_t steps);

// The owner of a tile, each of whose threads has so many registers of the sum, loads so many other blocks' parts at a time.
int64_t PartsTogether(int64_t registers);
// Cycles that the owner takes for the parts of the second block and of those behind it.
double FurtherPartsCycles(const target::Target& target, double sum_bytes, double parts, int64_t together);

// Each block computes whole tiles, one after the other.
double DealtCycles(const TileWork& work);
// A pair of blocks computes each tile; each of the two takes half of the steps (grid/split_pairs.h).
double PairedCycles(const TileWork& work);

// Every block computes `turns` tiles alone; then `blocks` of them share the steps of the remaining tiles (grid/stream_k.h).
struct Streams {
  int64_t turns = 0;
  int64_t blocks = 0;  // 0: no tiles remain, or they have too few steps
};
// All splits worth a look. One cuts each tile into equal parts, so that blocks which share operands are at the same place in them. The
// others cut all remaining steps into equal parts.
std::vector<Streams> WaysToStream(const TileWork& work);
Streams BestStreams(const TileWork& work);
double StreamedCycles(const TileWork& work, const Streams& streams);

}  // namespace kiln::compiler
