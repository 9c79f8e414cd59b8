// SPDX-License-Identifier: Apache-2.0
#include "server/tune/rounds.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kiln::server {
namespace {

struct Round {
  unsigned passes;   // over those that are left
  unsigned samples;  // of each, in one pass
  double margin;     // slower than the best by this part of its time, and by the noise: out
  std::size_t most;  // of those that stay
};
constexpr std::array kRounds = {Round{1, 3, 0.30, 64}, Round{2, 3, 0.10, 24}, Round{3, 4, 0.04, 8}, Round{4, 5, 0.0, 4}};
constexpr double kNoises = 2;  // so many times the noise explains a difference

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

void Rounds::Arrive(std::size_t candidate) {
  candidates_[candidate].state = State::kIn;
  queue_.push_back(candidate);
}

void Rounds::AllArrived() { all_arrived_ = true; }

void Rounds::Add(std::size_t candidate, std::span<const double> microseconds, bool borrowed) {
  auto& all = candidates_[candidate].microseconds;
  if (candidates_[candidate].borrowed && !borrowed) all.clear();
  candidates_[candidate].borrowed = borrowed;
  all.insert(all.end(), microseconds.begin(), microseconds.end());
}

void Rounds::Fail(std::size_t candidate) { candidates_[candidate].state = State::kFailed; }

std::optional<Rounds::Plan> Rounds::FromQueue() {
  while (next_ < queue_.size() && candidates_[queue_[next_]].state != State::kIn) ++next_;
  if (next_ == queue_.size()) return std::nullopt;
  return Plan{queue_[next_++], kRounds[round_].samples};
}

std::optional<Rounds::Plan> Rounds::Next() {
  while (!done_) {
    if (const auto plan = FromQueue()) return plan;
    if (!all_arrived_ || lent_ > 0) return std::nullopt;
    EndRound();
  }
  return std::nullopt;
}

std::optional<Rounds::Plan> Rounds::Lend() {
  const auto plan = done_ || round_ > 0 ? std::nullopt : FromQueue();
  if (plan) ++lent_;
  return plan;
}

void Rounds::GiveBack(std::size_t candidate, bool measured) {
  --lent_;
  if (!measured) queue_.push_back(candidate);
}

void Rounds::EndRound() {
  const auto best = Best();
  std::vector<std::size_t> in;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].state == State::kIn) in.push_back(i);
  }
  std::ranges::stable_sort(in, {}, [this](std::size_t i) { return Median(i); });
  const Round& round = kRounds[round_];
  for (std::size_t rank = 0; rank < in.size(); ++rank) {
    const std::size_t i = in[rank];
    const double explained = Median(*best) * (1 + round.margin) + kNoises * (Noise(i) + Noise(*best));
    if (rank >= round.most || Median(i) > explained) candidates_[i].state = State::kDropped;
  }
  const auto left = std::ranges::count(candidates_, State::kIn, &Candidate::state);
  const bool decided = left == 0 || (left == 1 && !candidates_[*best].borrowed);  // the last word is the caller's own
  if (decided || round_ + 1 == kRounds.size()) {
    done_ = true;
    return;
  }
  ++round_;
  Fill();
}

void Rounds::Fill() {
  queue_.clear();
  next_ = 0;
  for (unsigned pass = 0; pass < kRounds[round_].passes; ++pass) {
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i].state == State::kIn) queue_.push_back(i);
    }
  }
}

std::optional<std::size_t> Rounds::Best() const {
  std::optional<std::size_t> best;
  const auto consider = [&](State state) {
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i].state != state || candidates_[i].microseconds.empty()) continue;
      if (!best || Median(i) < Median(*best)) best = i;
    }
  };
  consider(State::kIn);
  if (!best) consider(State::kDropped);  // those before it have failed
  return best;
}

double Rounds::Median(std::size_t candidate) const { return MedianOf(candidates_[candidate].microseconds); }

double Rounds::Noise(std::size_t candidate) const {
  const double median = Median(candidate);
  std::vector<double> distances;
  for (const double time : candidates_[candidate].microseconds) distances.push_back(std::abs(time - median));
  return MedianOf(std::move(distances));
}

}  // namespace kiln::server
