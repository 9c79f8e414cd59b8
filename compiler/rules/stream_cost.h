// SPDX-License-Identifier: Apache-2.0
//
// Cycles of an H200 that ways to deal a product's tiles out to its multiprocessors take, as clients/python/kiln/tiles.py counts them.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/target/instructions.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct TileWork {
  int64_t tiles = 0;
  int64_t steps = 0;      // of each
  double step = 0;        // cycles of one
  double sum_bytes = 0;   // of a tile's sum
};

// `gemm`: the only work of a step, with its instruction chosen.
TileWork WorkOf(const ir::Module& module, const ir::Gemm& gemm, const target::MmaInstruction& mma, int64_t tiles, int64_t steps);

// Each block takes whole tiles, one after the other.
double DealtCycles(const TileWork& work, int64_t multiprocessors);
// As many pairs of blocks as there are tiles take half of the steps each (infer/split_pairs.h).
double PairedCycles(const TileWork& work);

// Every block does `turns` tiles by itself; then `blocks` of them share the steps of what is left (infer/stream_k.h).
struct Streams {
  int64_t turns = 0;
  int64_t blocks = 0;  // 0: nothing is left, or it has too few steps
};
// Every split that may be good: into equal parts of each tile, so that blocks that share operands are at the same place in them, and
// into equal parts of all there is.
std::vector<Streams> WaysToStream(const TileWork& work, int64_t multiprocessors);
Streams BestStreams(const TileWork& work, int64_t multiprocessors);
double StreamedCycles(const TileWork& work, const Streams& streams, int64_t multiprocessors);

}  // namespace kiln::compiler
