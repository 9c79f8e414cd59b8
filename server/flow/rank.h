// SPDX-License-Identifier: Apache-2.0
//
// Rank: what the planner expects each of several programs to take. Each is a compile that ends before code is made (Explain.estimate), so that it
// goes through the same checks, queue and workers as others. One that names its space is looked up first, and kept where every candidate has an
// estimate or is refused for what it is.
//
// Threads. As PartsStream's; what is kept is looked up on the executor for heavy work.
#pragma once

#include <optional>
#include <vector>

#include "cache/digest.h"

#include "kiln/v1/service.pb.h"
#include "server/flow/parts_stream.h"
#include "server/flow/rank_memory.h"

namespace kiln::server {

class RankReactor final : public PartsStream {
 public:
  // `kept` outlives it.
  RankReactor(ArrivingCall& call, const Parts& parts, const RankMemory& kept, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted,
              v1::RankRequest request);

 private:
  CompileFlow::Request RequestOf(std::size_t part) override;
  std::optional<Failure> ProblemOf(std::size_t part) override;
  void Note(std::size_t part, const Outcome& outcome) override KILN_REQUIRES(mutex_);
  bool HasNews() const override KILN_REQUIRES(mutex_) { return progress_.candidates_size() > 0; }
  grpc::ByteBuffer TakeNews() override KILN_REQUIRES(mutex_);
  bool NextRound() override KILN_REQUIRES(mutex_);
  void OnDone() override { delete this; }

  void Recall();

  const RankMemory& kept_;
  const v1::RankRequest request_;
  v1::RankProgress progress_ KILN_GUARDED_BY(mutex_);              // to be written next
  std::optional<cache::Digest> key_ KILN_GUARDED_BY(mutex_);       // under which it is to be kept
  std::vector<v1::RankedCandidate> said_ KILN_GUARDED_BY(mutex_);  // of each candidate, for that
};

}  // namespace kiln::server
