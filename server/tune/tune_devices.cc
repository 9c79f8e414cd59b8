// SPDX-License-Identifier: Apache-2.0
//
// The part of a tuning that has several devices measure its first round (helpers.h).
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "server/tune/tuning.h"

namespace kiln::server {
namespace {

constexpr double kMostApart = 0.1;   // of the time of a candidate, that devices of one speed may differ by
constexpr unsigned kMostInVain = 2;  // measurements in a row that fail elsewhere alone, perhaps
constexpr unsigned kToCompare = 5;   // samples of the candidate that all of them measure

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

// Times that one device has measured. Those of others are what the own one would have measured, by their scale.
void Tuning::Note(std::size_t candidate, std::size_t device, const Bench::Measured& measured) {
  v1::TuneMeasurement& said = said_[candidate];
  std::vector<double> times = measured.microseconds;
  for (double& time : times) time /= device == 0 ? 1 : helping_[device - 1].scale;
  if (rounds_.borrowed(candidate) && device == 0) {
    said.clear_compute_mhz();
    said.clear_memory_mhz();
  }
  rounds_.Add(candidate, times, device > 0);
  for (std::size_t i = 0; i < times.size(); ++i) {
    said.add_compute_mhz(measured.compute_mhz);
    said.add_memory_mhz(measured.memory_mhz);
  }
  if (!helping_.empty()) said.set_device(static_cast<std::uint32_t>(device) + 1);
  if (yardstick_ || device > 0 || times.empty()) return;
  yardstick_ = candidate;
  yardstick_time_ = MedianOf(times);
}

void Tuning::StartHelpers() {
  if (helpers_ || helping_.empty() || !yardstick_ || yardstick_time_ <= 0) return;
  helpers_ = std::make_unique<Helpers>(Helpers::Options{helping_.size(), options_.device_share, until_}, *bench_, clock_, [this] {
    {
      cache::MutexLock lock(mutex_);  // or whoever has just looked would wait
      helped_ = true;
    }
    news_.NotifyAll();
  });
}

// Gives the others what they can take of the first round.
void Tuning::LendOut() {
  if (rounds_.round() > 0 || rounds_.done()) return;
  StartHelpers();
  if (!helpers_) return;
  for (std::size_t i = 0; i < helping_.size(); ++i) {
    Helper& helper = helping_[i];
    if (!std::exchange(helper.asked, true)) helpers_->Give(i, {*yardstick_, kToCompare, Limit()});
    while (helper.scale > 0 && helper.left.empty() && helpers_->HasRoom(i)) {
      const auto plan = rounds_.Lend();
      if (!plan) break;
      helpers_->Give(i, {plan->candidate, plan->samples, Limit()});
    }
  }
}

// What has been measured counts; what has begun is waited for no more.
void Tuning::EndLending() {
  TakeLent();
  for (std::size_t i = 0; helpers_ && i < helping_.size(); ++i) helpers_->Withdraw(i);
}

void Tuning::TakeLent() {
  if (!helpers_) return;
  for (auto& [which, task, measured] : helpers_->Take()) {
    Helper& helper = helping_[which];
    if (helper.scale == 0) {
      TakeScale(which, measured);
      continue;
    }
    const bool is_measured = measured.end == Bench::Measured::End::kMeasured;
    if (is_measured) {
      Note(task.candidate, which + 1, measured);
      ++helper.measured;
    }
    rounds_.GiveBack(task.candidate, is_measured);  // what fails here may be this device's fault: the own one tries it
    helper.in_vain = is_measured ? 0 : helper.in_vain + 1;
    if (helper.in_vain == kMostInVain) Leave(which, std::move(measured.problem));
  }
}

void Tuning::TakeScale(std::size_t which, const Bench::Measured& measured) {
  if (measured.end != Bench::Measured::End::kMeasured || measured.microseconds.empty()) return Leave(which, measured.problem);
  Helper& helper = helping_[which];
  helper.scale = MedianOf(measured.microseconds) / yardstick_time_;
  if (std::abs(helper.scale - 1) <= kMostApart) return;
  Leave(which, fmt::format("it takes {:.2f} times as long as {}", helper.scale, own_device_));
}

void Tuning::Leave(std::size_t which, std::string why) {
  helping_[which].left = why.empty() ? "it could not be used" : std::move(why);
  for (const Helpers::Task& task : helpers_->Withdraw(which)) rounds_.GiveBack(task.candidate, false);
}

void Tuning::DescribeDevices(v1::TuneRecord& record) const {
  if (helping_.empty()) return;
  v1::TuneDevice& own = *record.add_devices();
  own.set_name(own_device_);
  own.set_scale(1);
  for (const v1::TuneMeasurement& said : record.measurements()) own.set_measured(own.measured() + (said.device() == 1 ? 1 : 0));
  for (const Helper& helper : helping_) {
    v1::TuneDevice& other = *record.add_devices();
    other.set_name(helper.name);
    other.set_scale(helper.scale);
    other.set_measured(helper.measured);
    other.set_left(helper.left);
  }
}

}  // namespace kiln::server
