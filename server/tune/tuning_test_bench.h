// SPDX-License-Identifier: Apache-2.0
//
// A tuning with a bench that makes its answers up, and a clock that only the bench lets pass.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/tune/tuning.h"

namespace kiln::server {

class TestClock final : public cache::Clock {
 public:
  cache::WallTime WallNow() const override { return cache::WallTime(std::chrono::hours(1)); }
  cache::SteadyTime SteadyNow() const override { return cache::SteadyTime(std::chrono::microseconds(now_)); }
  void Pass(std::chrono::microseconds time) { now_ += time.count(); }

 private:
  std::atomic<std::int64_t> now_ = 1'000'000'000;
};

class FakeBench final : public Bench {
 public:
  explicit FakeBench(TestClock& clock) : clock_(clock) {}

  std::vector<double> times;                     // of each candidate
  std::map<std::size_t, double> expected;        // by the planner, which says nothing of others
  std::map<std::size_t, std::string> unplanned;  // what the passes say, when they are run for the planner
  std::map<std::size_t, std::string> refuses;    // what the compiler says
  std::map<std::size_t, v1::TuneOutcome> fails;  // when it is measured
  std::set<std::size_t> wrong;                   // outputs
  std::map<std::size_t, std::string> keys;       // where they are not each candidate's own
  std::string caution;
  unsigned no_comparison = 0;                            // times that the device is not there for a comparison
  std::set<std::size_t> fails_at_last;                   // when its outputs are asked for
  std::set<std::size_t> never_compiles;                  // in time
  std::map<std::size_t, std::deque<Failure>> prevented;  // compiles, one after the other
  std::map<std::size_t, std::deque<Failure>> unranked;   // the same, of the planner's answers
  std::set<std::size_t> never_ranked;                    // in time
  std::chrono::microseconds job{1000};                   // of the device
  std::chrono::microseconds loading{0};                  // before that
  bool no_device = false;
  std::function<void(std::size_t)> on_measure;

  std::map<std::size_t, unsigned> measured;
  std::vector<std::chrono::milliseconds> limits;
  std::atomic<bool> stopped = false;

  bool MayCompile() override {
    cache::MutexLock lock(mutex_);
    return pending_.size() < 2;
  }
  void Rank(std::size_t candidate, std::move_only_function<void(Ranked)> done) override {
    Ranked ranked;
    if (never_ranked.contains(candidate)) {
      clock_.Pass(std::chrono::seconds(30));
      return;
    }
    if (auto& why = unranked[candidate]; !why.empty()) {
      ranked.prevented = why.front();
      why.pop_front();
      return done(std::move(ranked));
    }
    if (const auto at = unplanned.find(candidate); at != unplanned.end()) ranked.problem = at->second;
    else if (expected.contains(candidate)) ranked.estimate.emplace().set_microseconds(expected[candidate]);
    done(std::move(ranked));
  }
  void Compile(std::size_t candidate, std::move_only_function<void(Compiled)> done) override {
    begun.push_back(candidate);
    if (never_compiles.contains(candidate)) {
      cache::MutexLock lock(mutex_);
      return pending_.push_back(std::move(done));
    }
    Compiled compiled;
    if (auto& why = prevented[candidate]; !why.empty()) {
      compiled.prevented = why.front();
      why.pop_front();
      return done(std::move(compiled));
    }
    if (const auto at = refuses.find(candidate); at != refuses.end()) compiled.problem = at->second;
    else compiled.key = keys.contains(candidate) ? keys[candidate] : "key " + std::to_string(candidate);
    done(std::move(compiled));
  }
  std::vector<std::string> Devices() const override { return devices; }
  Measured Measure(std::size_t candidate, unsigned samples, std::chrono::milliseconds limit, cache::SteadyTime, std::size_t device) override {
    if (device > 0 && busy_elsewhere) {
      waits_elsewhere = true;
      waits_elsewhere.notify_all();
      for (unsigned i = 0; i < 10'000 && !stopped; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ended_by_stop = stopped.load();
      return {.end = Measured::End::kNoDevice, .problem = "the device was busy"};
    }
    cache::MutexLock lock(measuring_);  // of which there are several at one time where there are several devices
    if (on_measure) on_measure(candidate);
    clock_.Pass(job);
    by_device[device].push_back(candidate);
    if (device > 0 && fails_elsewhere.contains(candidate)) {
      return {.end = Measured::End::kFailed, .outcome = v1::TUNE_FAULTED, .problem = "this device is broken"};
    }
    limits.push_back(limit);
    if (no_device) return {.end = Measured::End::kNoDevice, .problem = "the device was busy"};
    if (const auto at = fails.find(candidate); at != fails.end()) {
      return {.end = Measured::End::kFailed, .outcome = at->second, .problem = "it broke", .took = job};
    }
    measured[candidate] += samples;
    const std::vector<double> all(samples, times[candidate] * (device == 0 ? 1 : slower[device - 1]));
    return {.end = Measured::End::kMeasured,
            .microseconds = all,
            .problem = {},
            .took = loading + job,
            .running = job,
            .compute_mhz = 1700 + static_cast<std::uint32_t>(candidate),
            .memory_mhz = 2600};
  }
  Measured MeasureEnergy(std::size_t candidate, std::chrono::milliseconds, cache::SteadyTime) override {
    energies.push_back(candidate);
    clock_.Pass(job);
    if (no_device) return {.end = Measured::End::kNoDevice, .problem = "the device was busy"};
    if (fails_when_pressed.contains(candidate)) return {.end = Measured::End::kFailed, .outcome = v1::TUNE_FAULTED, .problem = "it broke later"};
    Measured measured{.end = Measured::End::kMeasured, .problem = {}};
    if (no_energy.empty()) measured.energy.emplace().set_joules(times[candidate] / 1000);
    measured.no_energy = no_energy;
    return measured;
  }
  Compared Compare(std::size_t candidate, std::size_t reference, std::chrono::milliseconds, cache::SteadyTime) override {
    if (no_comparison > 0) {
      --no_comparison;
      return {Compared::End::kNoDevice, {}, "no memory for the tensors"};
    }
    compared.emplace_back(candidate, reference);
    if (fails_at_last.contains(reference)) return {Compared::End::kReferenceFailed, v1::TUNE_FAULTED, "it broke"};
    if (fails_at_last.contains(candidate)) return {Compared::End::kCandidateFailed, v1::TUNE_FAULTED, "it broke"};
    if (wrong.contains(candidate) != wrong.contains(reference)) return {Compared::End::kDiffers, {}, "element 0"};
    return {Compared::End::kAgrees, {}, {}, caution};
  }
  void Stop() override {
    stopped = true;
    std::vector<std::move_only_function<void(Compiled)>> pending;
    {
      cache::MutexLock lock(mutex_);
      pending.swap(pending_);
    }
    for (auto& done : pending) done({.key = {}, .problem = "cancelled"});
  }

  std::vector<std::pair<std::size_t, std::size_t>> compared;
  std::vector<std::size_t> begun;  // compiles
  std::vector<std::string> devices = {"gpu:0"};
  std::vector<double> slower;                                 // each but the first: its times by the first one's
  std::map<std::size_t, std::vector<std::size_t>> by_device;  // candidates that each has measured
  std::set<std::size_t> fails_elsewhere;
  bool busy_elsewhere = false;  // all devices but the first, until the bench is stopped
  std::atomic<bool> waits_elsewhere = false, ended_by_stop = false;
  std::vector<std::size_t> energies;         // asked for
  std::set<std::size_t> fails_when_pressed;  // then
  std::string no_energy;                     // why the device tells none

 private:
  TestClock& clock_;
  cache::Mutex measuring_, mutex_;
  std::vector<std::move_only_function<void(Compiled)>> pending_ KILN_GUARDED_BY(mutex_);
};

class TuningTest : public ::testing::Test {
 protected:
  std::expected<v1::TuneRecord, Failure> Run() {
    options_.labels.assign(bench_->times.size(), "");
    tuning_ = std::make_shared<Tuning>(
        options_, bench_, clock_, [this](const v1::TuneProgress& progress) { told_.push_back(progress); },
        [this](const std::vector<std::size_t>& order, v1::TuneBasis basis) {
          order_ = order;
          basis_ = basis;
        });
    return tuning_->Run();
  }
  static std::vector<v1::TuneOutcome> Outcomes(const v1::TuneRecord& record) {
    std::vector<v1::TuneOutcome> outcomes;
    for (const auto& said : record.measurements()) outcomes.push_back(said.outcome());
    return outcomes;
  }

  TestClock clock_;
  std::shared_ptr<FakeBench> bench_ = std::make_shared<FakeBench>(clock_);
  Tuning::Options options_{.labels = {}, .reference = std::nullopt, .budget = std::chrono::seconds(60)};
  std::shared_ptr<Tuning> tuning_;
  std::vector<v1::TuneProgress> told_;
  std::vector<std::size_t> order_;  // as it was told
  v1::TuneBasis basis_ = v1::TUNE_BASIS_UNSPECIFIED;
};

}  // namespace kiln::server
