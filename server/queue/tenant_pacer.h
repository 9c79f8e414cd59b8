// SPDX-License-Identifier: Apache-2.0
//
// Limits how often something is done: about once per pause by all tenants together, and equally often by each tenant that asked in the last
// second. Any thread.
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
