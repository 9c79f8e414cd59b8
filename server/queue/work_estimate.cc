// SPDX-License-Identifier: Apache-2.0
#include "server/queue/work_estimate.h"

#include <algorithm>
#include <utility>

namespace kiln::server {
namespace {

constexpr std::size_t kSample = 8;
constexpr double kDone = -1;

}  // namespace

WorkEstimate::Part WorkEstimate::Expect(double size) {
  sizes_.push_back(size);
  ++left_.count;
  left_.size += size;
  return sizes_.size() - 1;
}

void WorkEstimate::Done(Part part, std::optional<double> spent_ms, Clock::time_point now) {
  const double size = std::exchange(sizes_[part], kDone);
  if (left_.count-- == sizes_.size()) {
    began_ = now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(spent_ms.value_or(0)));
  }
  left_.size -= size;
  while (first_left_ < sizes_.size() && sizes_[first_left_] == kDone) ++first_left_;
  if (!spent_ms) return;
  ++timed_.count;
  timed_.size += size;
  timed_sums_.ms += *spent_ms;
  timed_sums_.size_size += size * size;
  timed_sums_.size_ms += size * *spent_ms;
}

// The next parts, one for each worker.
WorkEstimate::Sum WorkEstimate::InHand() const {
  Sum sum;
  for (Part part = first_left_; part < sizes_.size() && sum.count < workers_; ++part) {
    if (sizes_[part] == kDone) continue;
    ++sum.count;
    sum.size += sizes_[part];
  }
  return sum;
}

// The slope of the line through the finished parts and one further part of size 0 and time 0. That part decides the slope if all finished
// parts have one size.
double WorkEstimate::Slope() const {
  if (timed_.count < kSample || timed_.size <= 0) return 0;
  const auto count = static_cast<double>(timed_.count + 1);
  const double variance = count * timed_sums_.size_size - timed_.size * timed_.size;
  return std::clamp((count * timed_sums_.size_ms - timed_.size * timed_sums_.ms) / variance, 0.0, timed_sums_.ms / timed_.size);
}

// In a worker.
double WorkEstimate::ExpectedMs(const Sum& parts) const {
  const auto timed = static_cast<double>(timed_.count), count = static_cast<double>(parts.count);
  return count * timed_sums_.ms / timed + Slope() * (parts.size - count * timed_.size / timed);
}

// The time of what is left, divided by the workers that do it: all of them while few parts are done, then as many as the finished parts had
// on average.
std::optional<double> WorkEstimate::RemainingSeconds(Clock::time_point now) const {
  if (left_.count == 0) return 0;
  const std::size_t done = sizes_.size() - left_.count;
  const auto left = static_cast<double>(left_.count);
  const double passed_ms = std::chrono::duration<double, std::milli>(now - began_).count();
  if (timed_.count == 0) {
    if (done < kSample) return std::nullopt;
    return passed_ms / 1000 * left / static_cast<double>(done - 1);  // the first took no time
  }
  if (done < kSample && done * 10 < sizes_.size()) return std::nullopt;
  const double in_hand_ms = ExpectedMs(InHand()) / 2;
  double at_work = workers_;
  if (done >= kSample && passed_ms > 0) at_work = (timed_sums_.ms + in_hand_ms) / passed_ms;
  // What took nobody any time, or an unknown one, does so in the same part of the rest.
  const double left_ms = ExpectedMs(left_) * static_cast<double>(timed_.count) / static_cast<double>(done) - in_hand_ms;
  return std::max(0.0, left_ms) / 1000 / std::min(at_work, left);
}

}  // namespace kiln::server
