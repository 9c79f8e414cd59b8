// SPDX-License-Identifier: Apache-2.0
//
// What waits to be written to a store that hosts share: bounded by its bytes, first come, first served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "cache/mutex.h"

namespace kiln::cache {

// All members may be called from any thread.
template <class Item>
class WaitingLine {
 public:
  // `max_bytes`: of items that wait; one that is larger waits alone.
  explicit WaitingLine(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // False where there is no room; the item is then as it was.
  bool Add(Item& item, std::uint64_t bytes) {
    {
      MutexLock lock(mutex_);
      if (bytes_ > 0 && bytes_ + bytes > max_bytes_) return false;
      bytes_ += bytes;
      line_.emplace_back(std::move(item), bytes);
    }
    arrived_.NotifyOne();
    return true;
  }

  // Those at the head of the line, at least one: until so many, or so many bytes, are reached. Waits for one; none: the line is closed and
  // nothing waits any more.
  std::vector<Item> Take(std::size_t most_items, std::uint64_t most_bytes) {
    std::vector<Item> taken;
    std::uint64_t bytes = 0;
    MutexLock lock(mutex_);
    arrived_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return closed_ || !line_.empty(); });
    while (!line_.empty() && taken.size() < most_items && bytes < most_bytes) {
      bytes += line_.front().second;
      taken.push_back(std::move(line_.front().first));
      line_.pop_front();
    }
    bytes_ -= bytes;
    return taken;
  }

  // What waits is still given out.
  void Close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    arrived_.NotifyAll();
  }

 private:
  const std::uint64_t max_bytes_;
  Mutex mutex_;
  CondVar arrived_;
  std::deque<std::pair<Item, std::uint64_t>> line_ KILN_GUARDED_BY(mutex_);
  std::uint64_t bytes_ KILN_GUARDED_BY(mutex_) = 0;
  bool closed_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::cache
