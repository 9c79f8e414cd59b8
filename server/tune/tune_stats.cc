// SPDX-License-Identifier: Apache-2.0
//
// What is told of tunings to Stats and the metrics.
#include <algorithm>

#include "server/tune/tune_call.h"

namespace kiln::server {

void TuneFlow::Count(const std::expected<v1::TuneRecord, Failure>& end) {
  if (!end) {
    ++(end.error().kind == Failure::Kind::kCancelled ? counts_.cancelled : counts_.failed);
    return;
  }
  ++counts_.finished;
  counts_.candidates += static_cast<std::uint64_t>(
      std::ranges::count_if(end->measurements(), [](const v1::TuneMeasurement& said) { return said.microseconds_size() > 0; }));
}

v1::TuningStats TuneFlow::Stats() {
  v1::TuningStats stats;
  {
    cache::MutexLock lock(mutex_);
    for (const auto& [key, flight] : flights_) {
      if (flight.ranks_only) continue;
      stats.set_running(stats.running() + 1);
      if (flight.calls.empty()) stats.set_in_background(stats.in_background() + 1);
    }
  }
  stats.set_most(options_.tunings);
  stats.set_queued(static_cast<std::uint32_t>(turns_.waiting()));
  stats.set_refused(counts_.refused);
  stats.set_finished(counts_.finished);
  stats.set_failed(counts_.failed);
  stats.set_cancelled(counts_.cancelled);
  stats.set_device_seconds(static_cast<double>(counts_.device_microseconds) * 1e-6);
  stats.set_candidates(counts_.candidates);
  stats.set_compiles(share_.taken());
  stats.set_most_compiles(share_.most());
  return stats;
}

}  // namespace kiln::server
