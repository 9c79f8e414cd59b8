// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ir/verifier.h"

namespace kiln::ir {

void Check(Verifier& verifier, const Barrier&) { verifier.CheckTogether("a barrier"); }
void Check(Verifier& verifier, const AsyncCommit&) { verifier.CheckTogether("an async_commit"); }

void Check(Verifier& verifier, const AsyncWait& op) {
  verifier.CheckTogether("an async_wait");
  if (op.pending < 0) verifier.Error(fmt::format("a wait for {} pending groups", op.pending), "wait until 0 or more are pending");
}

void Check(Verifier& verifier, const RingStep& op) {
  verifier.CheckTogether("a ring step");
  verifier.CheckRing(op.ring);
}

void Check(Verifier& verifier, const PairSum&) { verifier.CheckTogether("a pair_sum"); }

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
