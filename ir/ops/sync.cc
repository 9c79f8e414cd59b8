// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ir/op.h"
#include "ir/verify/verifier.h"

namespace kiln::ir {

void Check(Verifier& verifier, const Barrier& op) {
  verifier.CheckTogether("a barrier");
  if (op.cluster) verifier.CheckCluster({}, "a barrier of the cluster");
  if (op.cluster && op.grid) verifier.Error("a barrier both of the cluster and of the grid", "that of the grid is one of every cluster, too");
}

void Check(Verifier& verifier, const Arrive& op) {
  verifier.CheckTogether("an arrive");
  verifier.CheckSignal(op.buffer, op.indices);
  if (op.block) verifier.CheckCluster(op.block, "an arrive at a block of the cluster");
}

void Check(Verifier& verifier, const Await& op) {
  verifier.CheckTogether("an await");
  verifier.CheckSignal(op.buffer, op.indices);
  verifier.CheckInteger(op.parity, "the parity");
}

void Check(Verifier& verifier, const Registers& op) {
  verifier.CheckTogether("a number of registers");
  if (op.count >= 24 && op.count <= 256 && op.count % 8 == 0) return;
  verifier.Error(fmt::format("{} registers of a thread", op.count), "use a multiple of 8 from 24 to 256");
}

void Check(Verifier& verifier, const AsyncCommit&) { verifier.CheckTogether("an async_commit"); }

void Check(Verifier& verifier, const AsyncWait& op) {
  verifier.CheckTogether("an async_wait");
  if (op.pending < 0) verifier.Error(fmt::format("a wait for {} pending groups", op.pending), "wait until 0 or more are pending");
}

void Check(Verifier& verifier, const RingStep& op) {
  verifier.CheckTogether("a ring step");
  verifier.CheckRing(op.ring);
  if (op.bytes < 0 || op.behind < 0) {
    verifier.Error(fmt::format("a ring step of {} bytes, {} stages behind", op.bytes, op.behind), "both are 0 or more");
  }
}

void Check(Verifier& verifier, const PairSum& op) {
  verifier.CheckTogether("a pair_sum");
  const Module& module = verifier.module();
  for (BufferId id : {op.sum, op.half.value_or(op.sum)}) {
    if (module[id].space == Space::kFragment) continue;
    return verifier.Error(fmt::format("{} is no fragment", verifier.Name(id)), "blocks add what they have in registers");
  }
  if (!op.half) return;
  if (module[*op.half].dtype != module[op.sum].dtype) {
    verifier.Error(fmt::format("{} and {} are of different types", verifier.Name(*op.half), verifier.Name(op.sum)), "give the half the sum's type");
  }
  std::vector<int64_t> whole = module.ShapeOf(op.sum), half = module.ShapeOf(*op.half);
  if (op.dim >= 0 && size_t(op.dim) < half.size()) {
    half[size_t(op.dim)] *= 2;
    if (half == whole) return;
  }
  verifier.Error(fmt::format("{} is no half of {} along dimension {}", verifier.Name(*op.half), verifier.Name(op.sum), op.dim),
                 "halve one extent of the sum");
}

void Check(Verifier& verifier, const StreamSum& op) {
  verifier.CheckTogether("a stream_sum");
  verifier.CheckInteger(op.block, "the block's number");
  verifier.CheckTyped(op.owns, DType::kBool, "whether the block owns the tile");
  verifier.CheckInteger(op.parts, "the number of parts");
  const Module& module = verifier.module();
  for (BufferId id : {op.partials, op.flags}) {
    if (module[id].workspace) continue;
    verifier.Error(fmt::format("{} is no workspace", verifier.Name(id)), "blocks meet in workspaces");
  }
}

}  // namespace kiln::ir
