// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/stream_cost.h"

#include <algorithm>
#include <cmath>

#include "compiler/rules/gemm.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

// Cycles to move one byte of a partial sum.
double Byte(const target::Costs& costs) { return 1.0 / costs.sum_bytes; }

}  // namespace

TileWork WorkOf(const ir::Module& module, const ir::Gemm& gemm, const target::Target& target, int64_t tiles, int64_t steps) {
  const GemmShape shape = ShapeOf(gemm);
  return {tiles, steps, CyclesOf(gemm, target) + target.costs.step, double(shape.m * shape.n * ir::Bytes(module[gemm.c.buffer].dtype)), &target};
}

double DealtCycles(const TileWork& work) {
  const int64_t multiprocessors = work.target->multiprocessors;
  const int64_t waves = (work.tiles + multiprocessors - 1) / multiprocessors;
  return double(waves) * (double(work.steps) * work.step + work.target->costs.tile);
}

double PairedCycles(const TileWork& work) {
  const target::Costs& costs = work.target->costs;
  return double(work.steps) / 2 * work.step + costs.tile + 2 * costs.meet + work.sum_bytes * Byte(costs);
}

std::vector<Streams> WaysToStream(const TileWork& work) {
  std::vector<Streams> ways;
  const int64_t multiprocessors = work.target->multiprocessors;
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

Streams BestStreams(const TileWork& work) {
  Streams best;
  for (const Streams& streams : WaysToStream(work)) {
    if (best.blocks == 0 || StreamedCycles(work, streams) < StreamedCycles(work, best)) best = streams;
  }
  return best;
}

// The owner adds the other blocks' parts one after the other.
double StreamedCycles(const TileWork& work, const Streams& streams) {
  const target::Costs& costs = work.target->costs;
  const int64_t left = work.tiles - streams.turns * int64_t(work.target->multiprocessors);
  const bool aligned = streams.blocks % left == 0;
  const double each = std::ceil(double(left * work.steps) / double(streams.blocks));
  const double parts = std::max(1.0, std::ceil(double(work.steps) / each) - (aligned ? 1.0 : 0.0));
  const double alone = double(streams.turns) * (double(work.steps) * work.step + costs.tile);
  const double shared = each * work.step * (aligned ? 1.0 : costs.skewed) + (aligned ? 1.0 : 2.0) * costs.tile;
  return alone + shared + 2 * costs.meet + (1 + parts) * work.sum_bytes * Byte(costs);
}

}  // namespace kiln::compiler
