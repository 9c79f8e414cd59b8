// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/stream_cost.h"

#include <algorithm>
#include <cmath>

#include "compiler/rules/gemm.h"
#include "compiler/target/costs.h"
#include "ir/op.h"

namespace kiln::compiler {

using target::kH200;

namespace {

constexpr double kByte = 1.0 / kH200.sum_bytes;  // cycles to move one byte of a partial sum

}  // namespace

TileWork WorkOf(const ir::Module& module, const ir::Gemm& gemm, const target::MmaInstruction& mma, int64_t tiles, int64_t steps) {
  const GemmShape shape = ShapeOf(gemm);
  return {tiles, steps, CyclesOf(gemm, mma) + kH200.step, double(shape.m * shape.n * ir::Bytes(module[gemm.c.buffer].dtype))};
}

double DealtCycles(const TileWork& work, int64_t multiprocessors) {
  const int64_t waves = (work.tiles + multiprocessors - 1) / multiprocessors;
  return double(waves) * (double(work.steps) * work.step + kH200.tile);
}

double PairedCycles(const TileWork& work) { return double(work.steps) / 2 * work.step + kH200.tile + 2 * kH200.meet + work.sum_bytes * kByte; }

std::vector<Streams> WaysToStream(const TileWork& work, int64_t multiprocessors) {
  std::vector<Streams> ways;
  const int64_t turns = work.tiles / multiprocessors, left = work.tiles % multiprocessors;
  if (work.steps <= 1 || left == 0) return ways;
  for (int64_t parts = 2; parts <= std::min(multiprocessors / left, work.steps); ++parts) ways.push_back({turns, left * parts});
  if (turns > 0) {
    ways.push_back({turns - 1, multiprocessors});
  } else if (multiprocessors % left != 0 && multiprocessors <= left * work.steps) {
    ways.push_back({0, multiprocessors});
  }
  return ways;
}

Streams BestStreams(const TileWork& work, int64_t multiprocessors) {
  Streams best;
  for (const Streams& streams : WaysToStream(work, multiprocessors)) {
    if (best.blocks == 0 || StreamedCycles(work, streams, multiprocessors) < StreamedCycles(work, best, multiprocessors)) best = streams;
  }
  return best;
}

// The owner adds the other blocks' parts one after the other.
double StreamedCycles(const TileWork& work, const Streams& streams, int64_t multiprocessors) {
  const int64_t left = work.tiles - streams.turns * multiprocessors;
  const bool aligned = streams.blocks % left == 0;
  const double each = std::ceil(double(left * work.steps) / double(streams.blocks));
  const double parts = std::max(1.0, std::ceil(double(work.steps) / each) - (aligned ? 1.0 : 0.0));
  const double alone = double(streams.turns) * (double(work.steps) * work.step + kH200.tile);
  const double shared = each * work.step * (aligned ? 1.0 : kH200.skewed) + (aligned ? 1.0 : 2.0) * kH200.tile;
  return alone + shared + 2 * kH200.meet + (1 + parts) * work.sum_bytes * kByte;
}

}  // namespace kiln::compiler
