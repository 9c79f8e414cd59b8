// SPDX-License-Identifier: Apache-2.0
//
// Cycles of an H200 that ways to deal a product's tiles out to its multiprocessors take, as clients/python/kiln/tiles.py counts them.
#pragma once

#include <cstdint>

#include "compiler/target/instructions.h"
#include "ir/module.h"

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

// Blocks share the steps (infer/stream_k.h), each behind `turns` tiles that it does by itself.
struct Streams {
  int64_t blocks = 0, turns = 0;
};
// At most one block for each multiprocessor, and as many as are best; blocks 0: tiles come out even, or have one step.
Streams StreamsOf(const TileWork& work, int64_t multiprocessors);
double StreamedCycles(const TileWork& work, const Streams& streams);

inline constexpr double kWorthStreaming = 0.97;

}  // namespace kiln::compiler
