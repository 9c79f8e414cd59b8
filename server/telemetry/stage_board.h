// SPDX-License-Identifier: Apache-2.0
//
// Tells those who stream a compile which stage it is in. Independent of the flight: who only waits for the result never
// comes here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cache/digest.h"
#include "cache/mutex.h"

namespace kiln::server {

class StageBoard {
 public:
  // May be called under the board's lock: it must only hand over.
  using Listener = std::function<void(std::string_view stage)>;

  std::uint64_t Subscribe(const cache::Digest& key, Listener listener) {
    cache::MutexLock lock(mutex_);
    listeners_[key].emplace(++last_, std::move(listener));
    return last_;
  }

  // After this the listener is not called.
  void Unsubscribe(const cache::Digest& key, std::uint64_t id) {
    cache::MutexLock lock(mutex_);
    const auto at = listeners_.find(key);
    if (at == listeners_.end()) return;
    at->second.erase(id);
    if (at->second.empty()) listeners_.erase(at);
  }

  void Publish(const cache::Digest& key, std::string_view stage) {
    cache::MutexLock lock(mutex_);
    const auto at = listeners_.find(key);
    if (at == listeners_.end()) return;
    for (const auto& [id, listener] : at->second) listener(stage);
  }

 private:
  cache::Mutex mutex_;
  std::unordered_map<cache::Digest, std::map<std::uint64_t, Listener>> listeners_ KILN_GUARDED_BY(mutex_);
  std::uint64_t last_ KILN_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln::server
