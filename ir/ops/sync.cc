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

}  // namespace kiln::ir
