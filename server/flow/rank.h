// SPDX-License-Identifier: Apache-2.0
//
// Rank: what the planner expects each of several programs to take. Each is a compile that ends before code is made (Explain.estimate), so that it
// goes through the same checks, queue and workers as others.
#pragma once

#include "kiln/v1/service.pb.h"
#include "server/flow/parts_stream.h"

namespace kiln::server {

class RankReactor final : public PartsStream {
 public:
  RankReactor(ArrivingCall& call, const Parts& parts, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted, v1::RankRequest request);

 private:
  CompileFlow::Request RequestOf(std::size_t part) override;
  std::optional<Failure> ProblemOf(std::size_t part) override;
  void Note(std::size_t part, const Outcome& outcome) override KILN_REQUIRES(mutex_);
  bool HasNews() const override KILN_REQUIRES(mutex_) { return progress_.candidates_size() > 0; }
  grpc::ByteBuffer TakeNews() override KILN_REQUIRES(mutex_);
  void OnDone() override { delete this; }

  const v1::RankRequest request_;
  v1::RankProgress progress_ KILN_GUARDED_BY(mutex_);  // to be written next
};

}  // namespace kiln::server
