// SPDX-License-Identifier: Apache-2.0
//
// Rankings that are kept: who asks again, in any process, sends one program of all. A ranking is kept as the record of a tuning that has measured
// nothing, so that it is sealed, shared and evicted like one.
//
// All members may be called from any thread that may wait for memory and for the store.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/tiered.h"
#include "kiln/v1/service.pb.h"
#include "server/flow/compile_flow.h"
#include "server/flow/store_keeper.h"
#include "server/queue/executor.h"
#include "server/reply/sealer.h"

namespace kiln::server {

class RankMemory {
 public:
  struct Parts {
    CompileFlow& compile;
    Executor& heavy;
    cache::TieredCache& cache;
    const Sealer& sealer;
    StoreKeeper& store_keeper;
    const cache::Clock& clock;
  };
  RankMemory(std::string build_id, Parts parts) : build_id_(std::move(build_id)), parts_(parts) {}

  // Where the members are to be called.
  Executor& executor() const { return parts_.heavy; }

  // Of all that decides what a ranking says: its first program, compiled by this compiler, what the caller says of the others, and for what they are
  // ranked.
  std::expected<cache::Digest, Failure> KeyOf(const v1::RankRequest& request) const;

  // The ranking, without the estimates' terms.
  std::optional<v1::RankProgress> Find(const std::string& tenant, const cache::Digest& key) const;

  // `said`: of each candidate, in their order.
  void Keep(const std::string& tenant, const cache::Digest& key, const std::string& target, const std::vector<v1::RankedCandidate>& said) const;

 private:
  const std::string build_id_;
  const Parts parts_;
};

}  // namespace kiln::server
