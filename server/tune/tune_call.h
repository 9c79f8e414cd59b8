// SPDX-License-Identifier: Apache-2.0
//
// One caller of a Tune or of a Watch, from the first message to the answer. Of TuneFlow's own files.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/mutex.h"
#include "server/tune/tune_flow.h"

namespace kiln::server {

inline std::chrono::milliseconds Milliseconds(double seconds) { return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)); }
inline Failure TuneCancelled() { return {.kind = Failure::Kind::kCancelled, .message = "the tuning was cancelled"}; }

class TuneFlow::Call {
 public:
  Call(Caller who, Quotas::InFlight counted, std::string id, v1::TuneStart given, std::unique_ptr<TuneTensors> tensors_of_it)
      : caller(std::move(who)),
        request_id(std::move(id)),
        start(std::move(given)),
        tensors(std::move(tensors_of_it)),
        in_flight(std::move(counted)) {}

  const Caller caller;
  const std::string request_id;
  v1::TuneStart start;
  std::unique_ptr<TuneTensors> tensors;      // until the tuning has them
  std::vector<v1::CompileRequest> programs;  // until the tuning has them; without a module: with that of the first
  std::vector<std::string> labels;
  std::vector<TenantBudget::Charge> charges;  // of the programs
  std::optional<DevicePool::Found> device;
  bool watches = false;  // what is under way, or kept; it begins nothing
  cache::Digest key, near;
  std::vector<double> known;  // by a record of another driver or compiler: microseconds of each candidate; 0: none. Empty: there is no record
  std::string untuned;        // why nothing is tuned behind a caller who would have it so
  bool ranks_only = false;
  cache::Digest flight;   // under the flow's mutex until the tuning begins
  bool replaces = false;  // a record that does not suffice
  std::atomic<bool> cancelled = false;

  cache::Mutex mutex;
  std::optional<Quotas::InFlight> in_flight KILN_GUARDED_BY(mutex);  // until the client is told
  Tuning::OnProgress on_progress KILN_GUARDED_BY(mutex);
  Done done KILN_GUARDED_BY(mutex);  // empty: not yet run, or ended

  std::chrono::milliseconds Budget(std::chrono::milliseconds most) const {
    return start.budget_seconds() > 0 ? Milliseconds(start.budget_seconds()) : most;
  }

  // Under the mutex, so that whoever is told is not gone.
  void Tell(const v1::TuneProgress& progress) {
    cache::MutexLock lock(mutex);
    if (done && on_progress) on_progress(progress);
  }
};

}  // namespace kiln::server
