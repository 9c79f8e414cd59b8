// SPDX-License-Identifier: Apache-2.0
//
// How long the rest of some work takes, from how the first of it went. The work has parts, done in their order by several workers at a
// time; of each its size is known beforehand, and its time in a worker once it is done.
//
// Parts of unequal length make the first tenth a poor sample: of 40 whose deviation is three quarters of their mean, the mean is off by
// 25 % one time in thirty. So what is left is not expected to be like what is done, but on the line of least squares through times
// and sizes of that (the regression estimator of a total). Its slope is between 0 and that of a line through the origin: where sizes
// say nothing about times, it is the mean. Of sizes that none of what is done has, times are taken to be proportional. What the workers have in hand counts for half: it is done neither wholly nor not at all,
// and at any moment it is the long ones that are in hand.
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
