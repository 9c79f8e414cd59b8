// SPDX-License-Identifier: Apache-2.0
//
// EnsureKernels: a manifest of requests × targets, of which afterwards every one is kept.
//
// First everything is looked up; what is not known is then compiled. It goes in the order of the requests' digests: as good as random, so that the
// first tenth is a fair sample of the rest, for the estimate of what remains, and the same for everybody, so that the ranks of a job
// who send the same manifest share every compile.
//
// Threads. As PartsStream's; before the first part the manifest is expanded on the executor.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cache/clock.h"
#include "kiln/v1/service.pb.h"
#include "server/flow/parts_stream.h"
#include "server/queue/work_estimate.h"
#include "server/wire/manifest.h"

namespace kiln::server {

class EnsureReactor final : public PartsStream {
 public:
  EnsureReactor(ArrivingCall& call, const Parts& parts, std::shared_ptr<CallNotes> notes, const cache::Clock& clock, Caller caller,
                TenantBudget::Charge memory, Quotas::InFlight counted, v1::EnsureRequest request);

 private:
  struct Item {
    cache::SteadyTime began{};
    WorkEstimate::Part part = 0;  // of what must be compiled
  };

  CompileFlow::Request RequestOf(std::size_t part) override;
  std::optional<Failure> ProblemOf(std::size_t part) override { return manifest_.ProblemOf(manifest_.items()[part]); }
  void Note(std::size_t part, const Outcome& outcome) override KILN_REQUIRES(mutex_);
  bool HasNews() const override KILN_REQUIRES(mutex_) { return news_; }
  grpc::ByteBuffer TakeNews() override KILN_REQUIRES(mutex_);
  std::size_t Window() const override KILN_REQUIRES(mutex_);
  bool NextRound() override KILN_REQUIRES(mutex_);
  void OnDone() override { delete this; }

  void ExpandSoon();
  void Expand();
  void Tell(std::size_t part, const Outcome& outcome) KILN_REQUIRES(mutex_);

  const std::shared_ptr<CallNotes> notes_;
  const cache::Clock& clock_;
  Manifest manifest_;
  const cache::SteadyTime began_ = clock_.SteadyNow();

  std::vector<Item> items_ KILN_GUARDED_BY(mutex_);  // one for each of the manifest's
  std::vector<std::size_t> misses_ KILN_GUARDED_BY(mutex_);
  bool looking_ KILN_GUARDED_BY(mutex_) = true;          // the first round
  WorkEstimate estimate_ KILN_GUARDED_BY(mutex_);        // of what must be compiled, by the bytes of the requests
  v1::EnsureProgress progress_ KILN_GUARDED_BY(mutex_);  // to be written next
  bool news_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
