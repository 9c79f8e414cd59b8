// SPDX-License-Identifier: Apache-2.0
//
// Gathers findings of all blocks. Many blocks find the same: of each kind and pair of statements the first is kept, as if the gangs
// had run one after the other in their turns; the launch ends where the first gang gave up. So a report is the same however many
// threads of the host made it.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "compiler/emulator/report.h"

namespace kiln::emulator {

class Recorder {
 public:
  static constexpr size_t kMost = 64;

  // By the gang whose turn is `turn`. False: a gang before it, or it, has said so; else it must be added.
  bool Wants(uint64_t turn, FindingKind kind, uint32_t location, uint32_t other_location) {
    const std::lock_guard lock(mutex_);
    const auto [it, fresh] = found_.try_emplace({kind, location, other_location});
    if (!fresh && it->second.turn <= turn) return false;
    it->second.turn = turn;
    return true;
  }
  void Add(uint64_t turn, Finding finding) {
    const std::lock_guard lock(mutex_);
    Found& found = found_[{finding.kind, finding.location, finding.other_location}];
    if (found.turn != turn) return;  // one before it has come meanwhile
    found.number = ++count_;
    found.finding = std::move(finding);
  }
  // The gang of this turn gave up: those of later turns do not count.
  void Stop(uint64_t turn) {
    for (uint64_t last = last_; turn < last && !last_.compare_exchange_weak(last, turn);) {
    }
  }
  bool Counts(uint64_t turn) const { return turn <= last_.load(std::memory_order_relaxed); }
  bool stopped() const { return last_ != kNever; }
  // Time was over before a gang's end; all that was found counts.
  void CutShort() { cut_short_ = true; }
  bool cut_short() const { return cut_short_; }

  std::vector<Finding> Take() {
    const std::lock_guard lock(mutex_);
    std::vector<Found> kept;
    for (auto& [key, found] : found_)
      if (Counts(found.turn)) kept.push_back(std::move(found));
    std::ranges::sort(kept, {}, [](const Found& found) { return std::tuple(found.finding.kind != FindingKind::kTimeout, found.turn, found.number); });
    kept.resize(std::min(kept.size(), kMost));
    std::vector<Finding> findings;
    for (Found& found : kept) findings.push_back(std::move(found.finding));
    return findings;
  }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};
  struct Found {
    uint64_t turn = 0, number = 0;
    Finding finding;
  };

  std::mutex mutex_;
  std::map<std::tuple<FindingKind, uint32_t, uint32_t>, Found> found_;
  uint64_t count_ = 0;
  std::atomic<uint64_t> last_ = kNever;
  std::atomic<bool> cut_short_ = false;
};

}  // namespace kiln::emulator
