// SPDX-License-Identifier: Apache-2.0
//
// One tuning from its candidates to its record. The planner says first what it expects of each; then they are compiled and measured, the most
// promising first.
//
// What keeps a candidate from being compiled or measured without being its fault (no memory, no worker, a full queue) is tried again, and is
// never told as the candidate's.
//
// Several devices of one model may measure the first round together; what is left after it the first of them measures alone.
//
// Threads. Run is the tuning: it has a thread of its own, which waits for compiles, for the device and for its end. The ends of compiles come
// on other threads, and are only noted. Cancel may be called at any time, on any thread; Run then returns within the time that the device's
// worker needs to be ended. `on_progress` is called by Run's thread, under no lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "kiln/v1/tune.pb.h"
#include "server/reply/failure.h"
#include "server/tune/bench.h"
#include "server/tune/helpers.h"
#include "server/tune/rounds.h"

namespace kiln::server {

class Tuning : public std::enable_shared_from_this<Tuning> {
 public:
  struct Options {
    std::vector<std::string> labels;        // one for each candidate
    std::optional<std::size_t> reference;   // nothing: the first that runs
    std::size_t most = 0;                   // candidates that are compiled, besides those that do not compile; 0: all
    std::chrono::milliseconds budget{0};    // for compiling and measuring; what is found is compared after that
    std::chrono::milliseconds limit{0};     // of one measurement; 0: by what the others took
    double device_share = 1;                // of the time, that it may keep the device busy
    std::size_t energy = 0;                 // of so many of the fastest it is measured too
    bool ranks_only = false;                // nothing is compiled or measured
    std::vector<double> known = {};         // microseconds of each by an earlier measurement, which count before the planner's; 0: it has none
    std::chrono::milliseconds between{50};  // two reports of progress
  };
  using OnProgress = std::function<void(const v1::TuneProgress&)>;
  // The candidates that may run, the most promising first, once: as soon as that is known. By Run's thread, under no lock.
  using OnOrder = std::function<void(const std::vector<std::size_t>&, v1::TuneBasis)>;

  Tuning(Options options, std::shared_ptr<Bench> bench, const cache::Clock& clock, OnProgress on_progress, OnOrder on_order = {});

  // Once. Where it only ranks, an empty record. Else the record has measurements, winner, reference, caution, seconds, rounds and budgets; the rest
  // is its keeper's.
  std::expected<v1::TuneRecord, Failure> Run();
  void Cancel();

 private:
  struct CompileNote {
    std::size_t candidate = 0;
    Bench::Compiled compiled;
  };
  struct RankNote {
    std::size_t candidate = 0;
    Bench::Ranked ranked;
  };
  bool Ranking();
  void StartRanks();
  void TakeRanked();
  void Order();
  double KnownOf(std::size_t candidate) const { return options_.known.empty() ? 0 : options_.known[candidate]; }
  void StartCompiles();
  void TakeCompiled();
  void NotCompiled(std::size_t candidate, Failure prevented);
  void Measure(const Rounds::Plan& plan);
  void Note(std::size_t candidate, std::size_t device, const Bench::Measured& measured);
  void StartHelpers();
  void LendOut();
  void EndLending();
  void TakeLent();
  void Leave(std::size_t helper, std::string why);
  void TakeScale(std::size_t helper, const Bench::Measured& measured);
  void DescribeDevices(v1::TuneRecord& record) const;
  void Rest(std::chrono::microseconds took);
  void Fail(std::size_t candidate, v1::TuneOutcome outcome, std::string problem);
  void Wait(std::chrono::milliseconds longest);
  void WaitForDevice(std::string why);
  std::chrono::milliseconds Limit() const;
  std::expected<v1::TuneRecord, Failure> Find();
  std::expected<void, Failure> Search();
  void MeasureEnergies();
  std::expected<std::size_t, Failure> Confirm();
  std::optional<std::size_t> Reference() const;
  std::optional<std::size_t> Fastest(std::span<const std::size_t> but) const;
  std::expected<bool, Failure> Agree(std::size_t one, std::size_t reference);
  std::expected<void, Failure> Settle(std::size_t one, std::size_t reference);
  std::expected<void, Failure> CheckReference() const;
  Failure NotCompiledInTime(std::size_t reference) const;
  Failure NothingFound() const;
  Failure NoDevice() const;
  v1::TuneRecord Record(std::size_t winner) const;
  void Report(bool at_once);
  std::string Called(std::size_t candidate) const;

  const Options options_;
  const std::shared_ptr<Bench> bench_;
  const cache::Clock& clock_;
  const OnProgress on_progress_;
  const OnOrder on_order_;
  const std::size_t count_;

  // Of Run's thread.
  cache::SteadyTime began_{};
  cache::SteadyTime until_{};
  cache::SteadyTime reported_{};
  Rounds rounds_;
  std::vector<v1::TuneMeasurement> said_;  // outcome, key and problem of each
  std::deque<std::size_t> to_rank_;
  std::size_t ranking_ = 0, ranked_ = 0;  // under way; those that the planner has said something of
  cache::SteadyTime rank_from_{}, rank_until_{};
  bool ordered_ = false;                                // no candidate's place changes any more
  std::deque<std::size_t> to_compile_;                  // first those that are expected to be the fastest
  std::deque<std::size_t> left_out_;                    // beyond the budget of candidates, in the same order
  cache::SteadyTime compile_from_{};                    // after one was prevented, not at once
  std::size_t compiled_ = 0, arrived_ = 0, taken_ = 0;  // of `taken_`, which the budget of candidates allows
  unsigned prevented_in_a_row_ = 0;
  std::optional<Failure> prevented_;  // why the last compile that did not come to its program did not
  std::string no_energy_;             // why the energy of fewer is known than was asked for
  std::string differs_, caution_;     // of the last comparison
  cache::SteadyTime compare_until_{};
  std::chrono::milliseconds longest_{0};  // measurement
  std::string no_device_;                 // why the last measurement was not made
  unsigned in_vain_ = 0;                  // times that the device could not be used, since the last that it could

  // Devices beside the own one (tune_devices.cc).
  struct Helper {
    std::string name;
    bool asked = false;  // for its scale
    double scale = 0;    // its time by the own device's; 0: not known yet
    std::uint32_t measured = 0;
    unsigned in_vain = 0;  // in a row
    std::string left;      // why it measures no more
  };
  std::string own_device_;
  std::vector<Helper> helping_;
  std::optional<std::size_t> yardstick_;  // the candidate that all of them measure
  double yardstick_time_ = 0;
  std::unique_ptr<Helpers> helpers_;

  std::atomic<bool> cancelled_ = false;
  cache::Mutex mutex_;
  cache::CondVar news_;
  std::vector<CompileNote> notes_ KILN_GUARDED_BY(mutex_);
  std::vector<RankNote> rank_notes_ KILN_GUARDED_BY(mutex_);
  bool helped_ KILN_GUARDED_BY(mutex_) = false;  // another device has measured something
};

}  // namespace kiln::server
