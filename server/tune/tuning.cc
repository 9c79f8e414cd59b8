// SPDX-License-Identifier: Apache-2.0
#include "server/tune/tuning.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/queue/refusals.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;
using std::chrono::milliseconds;

constexpr milliseconds kFirstLimit{20'000};  // the device's worker and the tensors come with it
constexpr milliseconds kLeastLimit{2'000};
constexpr int kTimesTheLongest = 4;
constexpr unsigned kMostInVain = 25;        // times in a row that the device cannot be used
constexpr milliseconds kLook{20};           // whether another tuning leaves room for a compile, or others the device
constexpr milliseconds kToCompare{30'000};  // beyond the budget, if need be

double Seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

bool HasFailed(v1::TuneOutcome outcome) { return outcome >= v1::TUNE_REFUSED; }

}  // namespace

Tuning::Tuning(Options options, std::shared_ptr<Bench> bench, const cache::Clock& clock, OnProgress on_progress)
    : options_(std::move(options)),
      bench_(std::move(bench)),
      clock_(clock),
      on_progress_(std::move(on_progress)),
      count_(options_.labels.size()),
      rounds_(count_),
      said_(count_) {}

std::expected<v1::TuneRecord, Failure> Tuning::Run() {
  began_ = reported_ = clock_.SteadyNow();
  until_ = began_ + options_.budget;
  if (auto searched = Search(); !searched) {
    bench_->Stop();
    return std::unexpected(std::move(searched.error()));
  }
  auto winner = Confirm();
  bench_->Stop();  // compiles that came too late
  if (!winner) return std::unexpected(std::move(winner.error()));
  return Record(*winner);
}

void Tuning::Cancel() {
  cancelled_ = true;
  bench_->Stop();
  news_.NotifyAll();
}

// Compiles and measures until the last round is over or the budget is.
std::expected<void, Failure> Tuning::Search() {
  while (!cancelled_ && clock_.SteadyNow() < until_) {
    TakeCompiled();
    StartCompiles();
    if (auto possible = CheckReference(); !possible) return possible;
    if (in_vain_ == kMostInVain) {
      return std::unexpected(Failure{.kind = Kind::kNoWorker, .message = fmt::format("the device cannot be used: {}", no_device_)});
    }
    if (const auto plan = rounds_.Next()) {
      Measure(*plan);
    } else if (rounds_.done()) {
      break;
    } else {
      Wait(kLook);
    }
    Report(false);
  }
  if (cancelled_) return std::unexpected(Cancelled());
  return {};
}

void Tuning::StartCompiles() {
  while (started_ < count_ && bench_->MayCompile()) {
    const std::size_t candidate = started_++;
    bench_->Compile(candidate, [self = shared_from_this(), candidate](Bench::Compiled compiled) {
      {
        cache::MutexLock lock(self->mutex_);
        self->notes_.push_back({candidate, std::move(compiled)});
      }
      self->news_.NotifyAll();
    });
  }
}

void Tuning::TakeCompiled() {
  std::vector<Note> notes;
  {
    cache::MutexLock lock(mutex_);
    notes.swap(notes_);
  }
  std::ranges::sort(notes, {}, &Note::candidate);
  for (Note& note : notes) {
    ++arrived_;
    if (note.compiled.key.empty()) {
      Fail(note.candidate, v1::TUNE_REFUSED, std::move(note.compiled.problem));
      continue;
    }
    ++compiled_;
    said_[note.candidate].set_key(std::move(note.compiled.key));
    rounds_.Arrive(note.candidate);
  }
  if (arrived_ == count_) rounds_.AllArrived();
}

// A named reference that fails leaves nothing that the others could be compared with.
std::expected<void, Failure> Tuning::CheckReference() const {
  if (!options_.reference || !HasFailed(said_[*options_.reference].outcome())) return {};
  const v1::TuneMeasurement& said = said_[*options_.reference];
  return std::unexpected(
      Failure{.kind = Kind::kInvalid, .message = fmt::format("the reference, {}, failed: {}", Called(*options_.reference), said.problem())});
}

void Tuning::Measure(const Rounds::Plan& plan) {
  Bench::Measured measured = bench_->Measure(plan.candidate, plan.samples, Limit(), until_);
  in_vain_ = measured.end == Bench::Measured::End::kNoDevice ? in_vain_ + 1 : 0;
  switch (measured.end) {
    case Bench::Measured::End::kMeasured:
      rounds_.Add(plan.candidate, measured.microseconds);
      longest_ = std::max(longest_, std::chrono::ceil<milliseconds>(measured.took));
      break;
    case Bench::Measured::End::kFailed: Fail(plan.candidate, measured.outcome, std::move(measured.problem)); break;
    case Bench::Measured::End::kNoDevice:
      no_device_ = std::move(measured.problem);
      if (rounds_.microseconds(plan.candidate).empty()) rounds_.Arrive(plan.candidate);  // its first time comes again
      Wait(kLook);
      break;
  }
  Rest(measured.took);
}

// What a job of the device may take: the first ones tell what is usual.
milliseconds Tuning::Limit() const {
  if (options_.limit.count() > 0) return options_.limit;
  return longest_.count() == 0 ? kFirstLimit : kLeastLimit + kTimesTheLongest * longest_;
}

// Leaves the device alone for so long that its share is not exceeded.
void Tuning::Rest(std::chrono::microseconds took) {
  const double rest = static_cast<double>(took.count()) * (1 / options_.device_share - 1);
  const auto end = clock_.SteadyNow() + std::chrono::microseconds(static_cast<std::int64_t>(rest));
  cache::MutexLock lock(mutex_);
  for (auto now = clock_.SteadyNow(); !cancelled_ && now < std::min(end, until_); now = clock_.SteadyNow()) {
    news_.WaitFor(mutex_, std::chrono::ceil<std::chrono::microseconds>(end - now));
  }
}

void Tuning::Wait(milliseconds longest) {
  cache::MutexLock lock(mutex_);
  if (!notes_.empty() || cancelled_) return;
  news_.WaitFor(mutex_, longest);
}

void Tuning::Fail(std::size_t candidate, v1::TuneOutcome outcome, std::string problem) {
  said_[candidate].set_outcome(outcome);
  said_[candidate].set_problem(std::move(problem));
  rounds_.Fail(candidate);
}

// Who is right if nobody was named: the first that has run.
std::optional<std::size_t> Tuning::Reference() const {
  if (options_.reference) return options_.reference;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!HasFailed(said_[i].outcome()) && !rounds_.microseconds(i).empty()) return i;
  }
  return std::nullopt;
}

// The fastest whose outputs agree with the reference's. The others that were faster are wrong, and are told so.
std::expected<std::size_t, Failure> Tuning::Confirm() {
  const auto until = std::max(until_, clock_.SteadyNow() + kToCompare);
  while (!cancelled_) {
    if (auto possible = CheckReference(); !possible) return std::unexpected(std::move(possible.error()));
    const auto best = rounds_.Best();
    const auto reference = Reference();
    if (!best || !reference) return std::unexpected(NothingFound());
    if (said_[*reference].key().empty()) {
      return std::unexpected(
          Failure{.kind = Kind::kTooMuch,
                  .message = fmt::format("the reference, {}, was not compiled within the budget; give a larger one", Called(*reference))});
    }
    if (*best == *reference) return *best;
    Bench::Compared compared = bench_->Compare(*best, *reference, std::max(Limit(), kLeastLimit), until);
    switch (compared.end) {
      case Bench::Compared::End::kAgrees: return *best;
      case Bench::Compared::End::kDiffers:
        Fail(*best, v1::TUNE_WRONG, fmt::format("its outputs are not those of {}: {}", Called(*reference), compared.problem));
        break;
      case Bench::Compared::End::kCandidateFailed: Fail(*best, compared.outcome, std::move(compared.problem)); break;
      case Bench::Compared::End::kReferenceFailed: Fail(*reference, compared.outcome, std::move(compared.problem)); break;
      case Bench::Compared::End::kNoDevice:
        if (cancelled_) return std::unexpected(Cancelled());
        return std::unexpected(Failure{.kind = Kind::kNoWorker, .message = fmt::format("what was found cannot be checked: {}", compared.problem)});
    }
    Report(true);
  }
  return std::unexpected(Cancelled());
}

Failure Tuning::NothingFound() const {
  const auto failed = std::ranges::find_if(said_, [](const v1::TuneMeasurement& said) { return HasFailed(said.outcome()); });
  const bool all_failed = std::ranges::all_of(said_, [](const v1::TuneMeasurement& said) { return HasFailed(said.outcome()); });
  if (all_failed) {
    const auto which = static_cast<std::size_t>(failed - said_.begin());
    return {.kind = Kind::kInvalid,
            .message = fmt::format("none of the {} candidates runs and gives the right result; {}: {}", count_, Called(which), failed->problem())};
  }
  const std::string why = no_device_.empty() ? "" : fmt::format(" ({})", no_device_);
  return {.kind = Kind::kTooMuch,
          .message = fmt::format("no candidate was measured within the budget of {} s{}; give a larger one", Seconds(options_.budget), why)};
}

std::string Tuning::Called(std::size_t candidate) const {
  const std::string& label = options_.labels[candidate];
  return label.empty() ? fmt::format("candidate {}", candidate + 1) : fmt::format("candidate {} ({})", candidate + 1, label);
}

v1::TuneRecord Tuning::Record(std::size_t winner) const {
  v1::TuneRecord record;
  for (std::size_t i = 0; i < count_; ++i) {
    v1::TuneMeasurement& to = *record.add_measurements();
    to = said_[i];
    to.set_label(options_.labels[i]);
    const auto& times = rounds_.microseconds(i);
    to.mutable_microseconds()->Assign(times.begin(), times.end());
    if (times.empty()) continue;
    to.set_median(rounds_.Median(i));
    to.set_noise(rounds_.Noise(i));
    if (!HasFailed(to.outcome())) to.set_outcome(rounds_.state(i) == Rounds::State::kDropped ? v1::TUNE_DROPPED : v1::TUNE_MEASURED);
  }
  record.mutable_measurements(static_cast<int>(winner))->set_outcome(v1::TUNE_MEASURED);
  record.set_winner(static_cast<std::uint32_t>(winner) + 1);
  record.set_reference(static_cast<std::uint32_t>(Reference().value_or(winner)) + 1);
  record.set_seconds(Seconds(clock_.SteadyNow() - began_));
  record.set_rounds(rounds_.round() + 1);
  return record;
}

void Tuning::Report(bool at_once) {
  const auto now = clock_.SteadyNow();
  if (!at_once && now - reported_ < options_.between) return;
  reported_ = now;
  v1::TuneProgress progress;
  progress.set_candidates(static_cast<std::uint32_t>(count_));
  progress.set_compiled(static_cast<std::uint32_t>(compiled_));
  std::uint32_t measured = 0, dropped = 0, failed = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    measured += rounds_.microseconds(i).empty() ? 0 : 1;
    dropped += rounds_.state(i) == Rounds::State::kDropped ? 1 : 0;
    failed += HasFailed(said_[i].outcome()) ? 1 : 0;
  }
  progress.set_measured(measured);
  progress.set_dropped(dropped);
  progress.set_failed(failed);
  if (const auto best = rounds_.Best()) {
    progress.set_best(static_cast<std::uint32_t>(*best) + 1);
    progress.set_best_microseconds(rounds_.Median(*best));
  }
  progress.set_elapsed_seconds(Seconds(now - began_));
  progress.set_left_seconds(std::max(0.0, Seconds(until_ - now)));
  on_progress_(progress);
}

}  // namespace kiln::server
