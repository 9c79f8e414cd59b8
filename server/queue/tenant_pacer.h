// SPDX-License-Identifier: Apache-2.0
//
// What may be done only so often: by all tenants together about once a pause, by those who came in the last second equally often. Any thread.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "cache/mutex.h"

namespace kiln::server {

class TenantPacer {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether the tenant's time has come; it has when it comes first.
  bool Take(const std::string& tenant, Clock::time_point now, Clock::duration pause) {
    cache::MutexLock lock(mutex_);
    const auto [mine, first] = due_.try_emplace(tenant, now);
    if (now < mine->second) return false;
    std::erase_if(due_, [&](const auto& other) { return other.second + kLately < now; });
    due_[tenant] = now + pause * static_cast<Clock::rep>(due_.size());
    return true;
  }

 private:
  static constexpr std::chrono::seconds kLately{1};

  cache::Mutex mutex_;
  std::map<std::string, Clock::time_point> due_ KILN_GUARDED_BY(mutex_);  // of those who came lately
};

}  // namespace kiln::server
