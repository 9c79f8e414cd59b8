// SPDX-License-Identifier: Apache-2.0
//
// How long the rest of some work takes, from how the first of it went. The work has parts, done in their order by several workers at a
// time; of each its size is known beforehand, and its time in a worker once it is done.
//
// Parts of unequal length make the first tenth a poor sample: its mean may be far from that of the whole. So the time of a part is read off
// the line of least squares through the sizes and times of the finished parts (the regression estimator of a total). The line's slope is at
// least 0 and at most that of a line through the origin; where sizes say nothing about times, the line is the mean. For sizes beyond those
// of all finished parts, times are taken as proportional. Parts that a worker has in hand count for half: they are partly done, and long
// parts are in hand more often than short ones.
//
// Not synchronised.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace kiln::server {

class WorkEstimate {
 public:
  using Clock = std::chrono::steady_clock;
  using Part = std::size_t;  // 0 is the first

  explicit WorkEstimate(unsigned workers) : workers_(workers) {}

  // One more part that will have to be done, in any unit of size.
  Part Expect(double size);
  // `spent_ms`, of a worker: not known where somebody else did it before, or where it failed.
  void Done(Part part, std::optional<double> spent_ms, Clock::time_point now);

  // Nothing before there is a sample. 0: nothing is left.
  std::optional<double> RemainingSeconds(Clock::time_point now) const;

 private:
  struct Sum {
    std::size_t count = 0;
    double size = 0;
  };
  double ExpectedMs(const Sum& parts) const;
  double Slope() const;
  Sum InHand() const;

  const unsigned workers_;
  std::vector<double> sizes_;  // by part; less than nothing: done
  Part first_left_ = 0;
  Sum left_;
  Clock::time_point began_{};  // about when the first that is done was begun

  Sum timed_;  // of those done whose time is known
  struct {
    double ms = 0, size_size = 0, size_ms = 0;
  } timed_sums_;
};

}  // namespace kiln::server
