// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <utility>

namespace kiln::server {

// Runs a slot's job, or a device's task, whose turn has come. It is refused if it may not begin any more, left to another host if that makes
// it, and run once more if its worker ended through no fault of the job: `run_once(job, blameless)` then sets `blameless`.
template <class Outcome, class Job, class RunOnce>
Outcome TakeTurn(Job& job, const std::atomic<bool>& stopping, const RunOnce& run_once) {
  if (job.may_begin) {
    if (auto may = job.may_begin(); !may) return {.end = Outcome::End::kRefused, .refusal = std::move(may.error())};
  }
  if constexpr (requires { job.is_ours; }) {
    if (job.is_ours && !job.is_ours()) return {.end = Outcome::End::kElsewhere};
    if (job.prepare) job.prepare();
  }
  bool blameless = false;
  Outcome outcome = run_once(job, blameless);
  if (blameless && !stopping && !job.stop.stop_requested()) outcome = run_once(job, blameless);
  return outcome;
}

}  // namespace kiln::server
