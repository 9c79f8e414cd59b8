// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/stream_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "compiler/rules/gemm.h"
#include "compiler/target/boards.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kOnTheirWay = 128;  // registers of a thread, into which it loads parts
constexpr int64_t kMostTogether = 4;

// Cycles to move one byte of a partial sum.
double Byte(const target::Costs& costs) { return 1.0 / costs.sum_bytes; }

}  // namespace

TileWork WorkOf(const ir::Module& module, const ir::Gemm& gemm, const target::Target& target, int64_t tiles, int64_t steps) {
  const GemmShape shape = ShapeOf(gemm);
  const ir::Buffer& sum = module[gemm.c.buffer];
  const auto bytes = [&](const ir::Region& operand, int64_t elements) {
    const ir::Buffer& buffer = module[operand.buffer];
    return buffer.space == ir::Space::kShared ? double(elements * ir::Bits(buffer.dtype)) / 8 : 0.0;
  };
  const double copied = bytes(gemm.a, shape.m * shape.k / (gemm.metadata ? 2 : 1)) + bytes(gemm.b, shape.n * shape.k);
  const double step = std::max(CyclesOf(gemm, target), copied / target::MachineOf(target).port) + target.costs.step;
  return {tiles, steps, step, double(shape.m * shape.n * ir::Bytes(sum.dtype)), sum.layout ? PartsTogether(sum.layout->Registers()) : 1, &target};
}

int64_t PartsTogether(int64_t registers) {
  return int64_t(std::bit_floor(uint64_t(std::clamp<int64_t>(kOnTheirWay / std::max<int64_t>(registers, 1), 1, kMostTogether))));
}

double FurtherPartsCycles(const target::Target& target, double sum_bytes, double parts, int64_t together) {
  const double turns = std::max(0.0, std::ceil(parts / double(together)) - 1);
  return turns * target::MachineOf(target).far + std::max(0.0, parts - 1) * sum_bytes * Byte(target.costs);
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

double StreamedCycles(const TileWork& work, const Streams& streams) {
  const target::Costs& costs = work.target->costs;
  const int64_t left = work.tiles - streams.turns * int64_t(work.target->multiprocessors);
  const bool aligned = streams.blocks % left == 0;
  const double each = std::ceil(double(left * work.steps) / double(streams.blocks));
  const double parts = std::max(1.0, std::ceil(double(work.steps) / each) - (aligned ? 1.0 : 0.0));
  const double alone = double(streams.turns) * (double(work.steps) * work.step + costs.tile);
  const double shared = each * work.step * (aligned ? 1.0 : costs.skewed) + (aligned ? 1.0 : 2.0) * costs.tile;
  const double further = FurtherPartsCycles(*work.target, work.sum_bytes, parts, work.together);
  return alone + shared + 2 * costs.meet + 2 * work.sum_bytes * Byte(costs) + further;
}

}  // namespace kiln::compiler
