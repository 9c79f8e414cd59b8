// SPDX-License-Identifier: Apache-2.0
//
// Gathers findings of all blocks. Many blocks find the same: one for each kind and pair of statements is kept.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <tuple>

#include "compiler/emulator/report.h"

namespace kiln::emulator {

class Recorder {
 public:
  static constexpr size_t kMost = 64;

  // False where it is known already or there are enough.
  bool Wants(FindingKind kind, uint32_t location, uint32_t other_location) {
    const std::lock_guard lock(mutex_);
    return findings_.size() < kMost && known_.emplace(kind, location, other_location).second;
  }
  void Add(Finding finding) {
    const std::lock_guard lock(mutex_);
    findings_.push_back(std::move(finding));
  }
  // Blocks not yet started stay unstarted.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  std::vector<Finding> Take() {
    const std::lock_guard lock(mutex_);
    return std::move(findings_);
  }

 private:
  std::mutex mutex_;
  std::set<std::tuple<FindingKind, uint32_t, uint32_t>> known_;
  std::vector<Finding> findings_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace kiln::emulator
