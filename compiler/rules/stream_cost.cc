// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/stream_cost.h"

#include <algorithm>
#include <cmath>

#include "compiler/rules/gemm.h"

namespace kiln::compiler {
namespace {

constexpr double kStep = 40, kTile = 3000;
// A part of a sum on its way: to wait for each other, and for each byte through L2, when all blocks have one under way.
constexpr double kMeet = 1500, kByte = 1.0 / 32;

}  // namespace

TileWork WorkOf(const ir::Module& module, const ir::Gemm& gemm, const target::MmaInstruction& mma, int64_t tiles, int64_t steps) {
  const GemmShape shape = ShapeOf(gemm);
  const double cycles = double(shape.m / mma.m) * double(shape.n / mma.n) * double(shape.k / mma.k) * mma.cycles;
  return {tiles, steps, cycles + kStep, double(shape.m * shape.n * ir::Bytes(module[gemm.c.buffer].dtype))};
}

double DealtCycles(const TileWork& work, int64_t multiprocessors) {
  const int64_t waves = (work.tiles + multiprocessors - 1) / multiprocessors;
  return double(waves) * (double(work.steps) * work.step + kTile);
}

double PairedCycles(const TileWork& work) { return double(work.steps) / 2 * work.step + kTile + 2 * kMeet + work.sum_bytes * kByte; }

Streams StreamsOf(const TileWork& work, int64_t multiprocessors) {
  if (work.steps <= 0 || work.tiles % multiprocessors == 0) return {};
  if (work.tiles > multiprocessors) return {multiprocessors, work.tiles / multiprocessors - 1};
  Streams best;
  for (int64_t blocks = work.tiles + 1; blocks <= std::min(multiprocessors, work.tiles * work.steps); ++blocks) {
    const Streams streams{blocks, 0};
    if (best.blocks == 0 || StreamedCycles(work, streams) < StreamedCycles(work, best)) best = streams;
  }
  return best;
}

// A block has at most two parts of tiles; the owner adds what the others left one after the other.
double StreamedCycles(const TileWork& work, const Streams& streams) {
  const double each = std::ceil(double((work.tiles - streams.turns * streams.blocks) * work.steps) / double(streams.blocks));
  const double parts = std::max(1.0, double(work.steps) / each);
  const double alone = double(streams.turns) * (double(work.steps) * work.step + kTile);
  return alone + each * work.step + 2 * (kTile + kMeet) + (1 + parts) * work.sum_bytes * kByte;
}

}  // namespace kiln::compiler
