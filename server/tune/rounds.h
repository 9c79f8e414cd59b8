// SPDX-License-Identifier: Apache-2.0
//
// Which candidate is measured next, from what was measured. Every candidate is measured a little as soon as it is compiled; then the rounds
// begin, each of which measures those that are left more often, one after the other and again from the front, so that what slows the device
// for a while slows all of them. After each round those leave that are slower than the best by more than the round's margin and the noise of
// both explain.
//
// Knows no clock and no device. Not synchronised.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace kiln::server {

class Rounds {
 public:
  enum class State { kAbsent, kIn, kDropped, kFailed };
  struct Plan {
    std::size_t candidate = 0;
    unsigned samples = 0;
  };

  explicit Rounds(std::size_t candidates) : candidates_(candidates) {}

  void Arrive(std::size_t candidate);  // it may be measured
  void AllArrived();                   // no other will
  // `borrowed`: measured elsewhere; they give way to the first that are not.
  void Add(std::size_t candidate, std::span<const double> microseconds, bool borrowed = false);
  void Fail(std::size_t candidate);  // it is neither measured nor chosen from now on

  // What to measure now; nothing while the first round waits for others to arrive, and when the last round is over.
  std::optional<Plan> Next();
  // The same of the first round, for somebody who measures beside the caller; nothing where there is none now. The round does not end before it is
  // given back: with its times (Add), or to be measured again.
  std::optional<Plan> Lend();
  void GiveBack(std::size_t candidate, bool measured);
  bool done() const { return done_; }
  unsigned round() const { return round_; }  // from 0

  // The fastest of those that were measured and have not failed.
  std::optional<std::size_t> Best() const;

  State state(std::size_t candidate) const { return candidates_[candidate].state; }
  bool borrowed(std::size_t candidate) const { return candidates_[candidate].borrowed; }
  const std::vector<double>& microseconds(std::size_t candidate) const { return candidates_[candidate].microseconds; }
  double Median(std::size_t candidate) const;
  double Noise(std::size_t candidate) const;  // the median of the distances from the median

 private:
  struct Candidate {
    State state = State::kAbsent;
    std::vector<double> microseconds;
    bool borrowed = false;
  };
  std::optional<Plan> FromQueue();
  void EndRound();
  void Fill();

  std::vector<Candidate> candidates_;
  std::vector<std::size_t> queue_;  // of this round, in order; `next_` comes next
  std::size_t next_ = 0;
  unsigned round_ = 0;
  unsigned lent_ = 0;
  bool all_arrived_ = false;
  bool done_ = false;
};

}  // namespace kiln::server
