// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ir/grammar/writer.h"
#include "ir/op.h"

namespace kiln::ir::grammar {
namespace {

// Statements that only passes make.
int Decided(const Writer& writer) { return writer.decisions() && !writer.place.parallel ? 3 : 0; }
int Pinned(const Writer& writer) { return writer.signals() && !writer.place.parallel ? 2 : 0; }

}  // namespace

int Weight(const Writer& writer, Tag<Barrier>) { return writer.place.parallel ? 0 : 1; }
Op Write(Writer& writer, Tag<Barrier>) {
  const bool cluster = writer.signals() && writer.has_cluster() && writer.Coin();
  return Barrier{.grid = writer.signals() && !cluster && writer.Coin(),
                 .cluster = cluster,
                 .by_group = writer.decisions() && writer.Coin(),
                 .shared_only = writer.decisions() && writer.Coin()};
}

int Weight(const Writer& writer, Tag<Arrive>) { return Pinned(writer); }
Op Write(Writer& writer, Tag<Arrive>) { return Arrive{writer.AddBarriers(), {writer.Index(2)}, writer.Rank()}; }

int Weight(const Writer& writer, Tag<Await>) { return Pinned(writer); }
Op Write(Writer& writer, Tag<Await>) { return Await{writer.AddBarriers(), {writer.Index(2)}, writer.Index(2)}; }

int Weight(const Writer& writer, Tag<Registers>) { return Pinned(writer); }
Op Write(Writer& writer, Tag<Registers>) { return Registers{uint32_t(24 + 8 * writer.Below(30)), writer.Coin()}; }

int Weight(const Writer& writer, Tag<AsyncCommit>) { return Decided(writer); }
Op Write(Writer&, Tag<AsyncCommit>) { return AsyncCommit{}; }

int Weight(const Writer& writer, Tag<AsyncWait>) { return Decided(writer); }
Op Write(Writer& writer, Tag<AsyncWait>) {
  AsyncWait wait{int32_t(writer.Below(4)), writer.Coin()};
  if (writer.Coin()) wait.product = writer.AddTile(Space::kFragment, DType::kF32, {16, 8});
  return wait;
}

int Weight(const Writer& writer, Tag<RingStep>) { return Decided(writer); }
Op Write(Writer& writer, Tag<RingStep>) {
  const Ring ring = writer.AddRing();
  return RingStep{RingAction(writer.Below(4)), ring, writer.Below(2) * 128, int32_t(writer.Below(3))};
}

int Weight(const Writer& writer, Tag<PairSum>) { return Decided(writer); }
Op Write(Writer& writer, Tag<PairSum>) {
  PairSum sum{writer.AddTile(Space::kFragment, DType::kF32, {16, 8})};
  if (writer.Coin()) sum.half = writer.AddTile(Space::kFragment, DType::kF32, {16, 4}), sum.dim = 1;
  if (writer.Coin()) sum.scratch = writer.AddTile(Space::kShared, DType::kF32, {128});
  sum.vector = int32_t(writer.Below(5));
  return sum;
}

int Weight(const Writer& writer, Tag<StreamSum>) { return Decided(writer); }
Op Write(Writer& writer, Tag<StreamSum>) {
  ExprPool& pool = writer.module.exprs;
  const auto found = std::ranges::find_if(writer.module.buffers, [](const Buffer& buffer) { return buffer.workspace; });
  const BufferId workspace{uint32_t(found - writer.module.buffers.begin())};
  return StreamSum{writer.AddTile(Space::kFragment, DType::kF32, {16, 8}),
                   workspace,
                   workspace,
                   pool.Int(writer.Below(9)),
                   pool.Bool(writer.Coin()),
                   pool.Int(writer.Below(3)),
                   int32_t(writer.Below(5))};
}

}  // namespace kiln::ir::grammar
