// SPDX-License-Identifier: Apache-2.0
#include "server/tune/tuning.h"

#include <algorithm>
#include <array>
#include <tuple>
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
constexpr unsigned kMostInVain = 9;          // times in a row that the device cannot be used
constexpr milliseconds kLook{20};            // whether another tuning leaves room for a compile, or others the device
constexpr milliseconds kLongestLook{1'000};  // for the device, which is left alone twice as long each time
constexpr milliseconds kCompileAgain{200};
constexpr unsigned kMostPrevented = 25;      // compiles in a row
constexpr int kPartToRank = 5;               // of the budget, that ranking may take
constexpr milliseconds kMostToRank{20'000};  // but not longer
constexpr milliseconds kRankAgain{200};
constexpr milliseconds kToCompare{30'000};  // beyond the budget, if need be

double Seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

bool HasFailed(v1::TuneOutcome outcome) { return outcome >= v1::TUNE_REFUSED; }

// Whether the same may be possible in a moment.
bool Passes(Kind kind) { return kind == Kind::kQueueFull || kind == Kind::kNoWorker || kind == Kind::kStore; }

}  // namespace

Tuning::Tuning(Options options, std::shared_ptr<Bench> bench, const cache::Clock& clock, OnProgress on_progress, OnOrder on_order)
    : options_(std::move(options)),
      bench_(std::move(bench)),
      clock_(clock),
      on_progress_(std::move(on_progress)),
      on_order_(std::move(on_order)),
      count_(options_.labels.size()),
      rounds_(count_),
      said_(count_) {
  for (std::size_t i = 0; i < count_; ++i) to_rank_.push_back(i);
  const std::vector<std::string> devices = bench_->Devices();
  own_device_ = devices.front();
  for (std::size_t i = 1; i < devices.size(); ++i) helping_.push_back({.name = devices[i]});
}

std::expected<v1::TuneRecord, Failure> Tuning::Run() {
  began_ = reported_ = clock_.SteadyNow();
  until_ = began_ + options_.budget;
  rank_until_ = began_ + std::min(options_.budget / kPartToRank, kMostToRank);
  auto record = Find();
  bench_->Stop();    // what the planner has not answered, compiles that came too late, and what other devices are asked for
  helpers_.reset();  // after that: one may wait for a device that is busy
  return record;
}

std::expected<v1::TuneRecord, Failure> Tuning::Find() {
  auto searched = Search();
  EndLending();
  if (!searched) return std::unexpected(std::move(searched.error()));
  if (!ordered_) Order();  // the budget was over first
  if (options_.ranks_only) {
    return to_compile_.empty() ? std::expected<v1::TuneRecord, Failure>(std::unexpected(NothingFound())) : v1::TuneRecord();
  }
  MeasureEnergies();
  const auto winner = Confirm();
  if (!winner) return std::unexpected(winner.error());
  return Record(*winner);
}

void Tuning::Cancel() {
  {
    cache::MutexLock lock(mutex_);  // or whoever has just looked would wait
    cancelled_ = true;
  }
  bench_->Stop();
  news_.NotifyAll();
}

// Ranks; then compiles and measures until the last round is over or the budget is.
std::expected<void, Failure> Tuning::Search() {
  while (!cancelled_ && clock_.SteadyNow() < until_) {
    TakeRanked();
    if (Ranking()) {
      StartRanks();
      Wait(kLook);
      Report(false);
      continue;
    }
    if (!ordered_) Order();
    if (options_.ranks_only) break;
    TakeCompiled();
    StartCompiles();
    TakeLent();
    LendOut();
    if (auto possible = CheckReference(); !possible) return possible;
    if (in_vain_ >= kMostInVain) return std::unexpected(NoDevice());
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

// Until all are ranked, or it takes too long: then those that are not come after those that are.
bool Tuning::Ranking() { return !ordered_ && (ranking_ > 0 || !to_rank_.empty()) && clock_.SteadyNow() < rank_until_; }

void Tuning::StartRanks() {
  while (!to_rank_.empty() && clock_.SteadyNow() >= rank_from_ && bench_->MayCompile()) {
    const std::size_t candidate = to_rank_.front();
    to_rank_.pop_front();
    ++ranking_;
    bench_->Rank(candidate, [self = shared_from_this(), candidate](Bench::Ranked ranked) {
      {
        cache::MutexLock lock(self->mutex_);
        self->rank_notes_.push_back({candidate, std::move(ranked)});
      }
      self->news_.NotifyAll();
    });
  }
}

// What comes after all were put in order is for the record.
void Tuning::TakeRanked() {
  std::vector<RankNote> notes;
  {
    cache::MutexLock lock(mutex_);
    notes.swap(rank_notes_);
  }
  for (auto& [candidate, ranked] : notes) {
    --ranking_;
    if (ranked.prevented && Passes(ranked.prevented->kind)) {
      rank_from_ = clock_.SteadyNow() + ranked.prevented->retry_after.value_or(kRankAgain);
      to_rank_.push_back(candidate);
    } else if (ranked.estimate) {
      ++ranked_;
      *said_[candidate].mutable_estimate() = *std::move(ranked.estimate);
    } else if (!ranked.problem.empty() && !ordered_) {
      ++ranked_;
      Fail(candidate, v1::TUNE_REFUSED, std::move(ranked.problem));
    }
  }
}

// Nothing comes of the others without the reference. The rest by what was measured or is expected of them, and those of which nothing is known in
// the caller's order behind the others.
void Tuning::Order() {
  ordered_ = true;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!HasFailed(said_[i].outcome())) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [this](std::size_t i) {
    const v1::TuneMeasurement& said = said_[i];
    return std::tuple(KnownOf(i) == 0, KnownOf(i), !said.has_estimate(), said.estimate().microseconds());
  });
  const bool knows = std::ranges::any_of(order, [this](std::size_t i) { return KnownOf(i) != 0; });
  const bool expects = std::ranges::any_of(order, [this](std::size_t i) { return said_[i].has_estimate(); });
  const v1::TuneBasis basis = knows ? v1::TUNE_BASIS_NEAR_RECORD : expects ? v1::TUNE_BASIS_PLANNER : v1::TUNE_BASIS_CALLER;
  if (on_order_ && !order.empty()) on_order_(order, basis);
  std::ranges::stable_partition(order, [this](std::size_t i) { return options_.reference == i; });
  taken_ = options_.most == 0 ? order.size() : std::min(options_.most, order.size());
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(taken_);
  to_compile_.assign(order.begin(), last);
  left_out_.assign(last, order.end());
  if (!options_.ranks_only) Report(true);
}

void Tuning::StartCompiles() {
  while (!to_compile_.empty() && clock_.SteadyNow() >= compile_from_ && bench_->MayCompile()) {
    const std::size_t candidate = to_compile_.front();
    to_compile_.pop_front();
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
  std::vector<CompileNote> notes;
  {
    cache::MutexLock lock(mutex_);
    notes.swap(notes_);
  }
  std::ranges::sort(notes, {}, &CompileNote::candidate);
  for (CompileNote& note : notes) {
    if (note.compiled.prevented) {
      NotCompiled(note.candidate, std::move(*note.compiled.prevented));
      continue;
    }
    ++arrived_;
    if (note.compiled.key.empty()) {
      Fail(note.candidate, v1::TUNE_REFUSED, std::move(note.compiled.problem));
      if (left_out_.empty()) continue;
      to_compile_.push_back(left_out_.front());  // it takes no place of another
      left_out_.pop_front();
      ++taken_;
      continue;
    }
    ++compiled_;
    prevented_in_a_row_ = 0;
    said_[note.candidate].set_key(std::move(note.compiled.key));
    said_[note.candidate].clear_problem();
    rounds_.Arrive(note.candidate);
  }
  if (arrived_ == taken_) rounds_.AllArrived();
}

void Tuning::NotCompiled(std::size_t candidate, Failure prevented) {
  said_[candidate].set_problem(prevented.message);
  if (Passes(prevented.kind) && ++prevented_in_a_row_ < kMostPrevented) {
    compile_from_ = clock_.SteadyNow() + prevented.retry_after.value_or(kCompileAgain);
    to_compile_.push_front(candidate);
  } else {
    ++arrived_;
  }
  prevented_ = std::move(prevented);
}

// A named reference that fails leaves nothing that the others could be compared with.
std::expected<void, Failure> Tuning::CheckReference() const {
  if (!options_.reference || !HasFailed(said_[*options_.reference].outcome())) return {};
  const v1::TuneMeasurement& said = said_[*options_.reference];
  return std::unexpected(
      Failure{.kind = Kind::kInvalid, .message = fmt::format("the reference, {}, failed: {}", Called(*options_.reference), said.problem())});
}

void Tuning::Measure(const Rounds::Plan& plan) {
  Bench::Measured measured = bench_->Measure(plan.candidate, plan.samples, Limit(), until_, 0);
  if (measured.end != Bench::Measured::End::kNoDevice) in_vain_ = 0;
  switch (measured.end) {
    case Bench::Measured::End::kMeasured:
      Note(plan.candidate, 0, measured);
      longest_ = std::max(longest_, std::chrono::ceil<milliseconds>(measured.running));
      break;
    case Bench::Measured::End::kFailed: Fail(plan.candidate, measured.outcome, std::move(measured.problem)); break;
    case Bench::Measured::End::kNoDevice:
      if (rounds_.microseconds(plan.candidate).empty()) rounds_.Arrive(plan.candidate);  // its first time comes again
      WaitForDevice(std::move(measured.problem));
      break;
  }
  Rest(measured.took);
}

// Of the fastest, in their order. A kernel that updates its arguments is launched on other ones than it was measured on, so whoever goes wrong here
// has no energy, and may win nevertheless: its outputs are compared after this.
void Tuning::MeasureEnergies() {
  std::vector<std::size_t> tried;
  std::string failed;
  while (tried.size() < options_.energy && !cancelled_ && no_energy_.empty()) {
    const auto next = Fastest(tried);
    if (!next) break;
    if (clock_.SteadyNow() >= until_) {
      no_energy_ = "the budget was over";
      break;
    }
    tried.push_back(*next);
    Bench::Measured measured = bench_->MeasureEnergy(*next, std::max(Limit(), kLeastLimit), until_);
    switch (measured.end) {
      case Bench::Measured::End::kMeasured:
        if (measured.energy) *said_[*next].mutable_energy() = *std::move(measured.energy);
        else no_energy_ = std::move(measured.no_energy);
        break;
      case Bench::Measured::End::kFailed: failed += fmt::format("{}{}: {}", failed.empty() ? "" : "; ", Called(*next), measured.problem); break;
      case Bench::Measured::End::kNoDevice: no_energy_ = std::move(measured.problem); break;
    }
    Rest(measured.took);
    Report(false);
  }
  if (no_energy_.empty()) no_energy_ = std::move(failed);
}

void Tuning::WaitForDevice(std::string why) {
  no_device_ = std::move(why);
  Wait(std::min(kLook * (1 << std::min(in_vain_++, kMostInVain)), kLongestLook));
}

Failure Tuning::NoDevice() const { return {.kind = Kind::kNoWorker, .message = fmt::format("the device cannot be used: {}", no_device_)}; }

// What a kernel may take on the device: the first ones tell what is usual.
milliseconds Tuning::Limit() const {
  if (options_.limit.count() > 0) return options_.limit;
  return longest_.count() == 0 ? kFirstLimit : kLeastLimit + kTimesTheLongest * longest_;
}

// Leaves the device alone for so long that its share is not exceeded.
void Tuning::Rest(std::chrono::microseconds took) {
  const double rest = static_cast<double>(took.count()) * (1 / options_.device_share - 1);
  const auto end = std::min(clock_.SteadyNow() + std::chrono::microseconds(static_cast<std::int64_t>(rest)), until_);
  cache::MutexLock lock(mutex_);
  for (auto now = clock_.SteadyNow(); !cancelled_ && now < end; now = clock_.SteadyNow()) {
    news_.WaitFor(mutex_, std::chrono::ceil<std::chrono::microseconds>(end - now));
  }
}

void Tuning::Wait(milliseconds longest) {
  cache::MutexLock lock(mutex_);
  if (!notes_.empty() || !rank_notes_.empty() || cancelled_ || std::exchange(helped_, false)) return;
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

// The fastest that may win beside those, of another kernel.
std::optional<std::size_t> Tuning::Fastest(std::span<const std::size_t> but) const {
  std::optional<std::size_t> fastest;
  for (std::size_t i = 0; i < count_; ++i) {
    const auto is_same = [&](std::size_t other) { return said_[other].key() == said_[i].key(); };
    if (HasFailed(said_[i].outcome()) || rounds_.microseconds(i).empty() || std::ranges::any_of(but, is_same)) continue;
    if (!fastest || rounds_.Median(i) < rounds_.Median(*fastest)) fastest = i;
  }
  return fastest;
}

// Whether their outputs agree; false as well where one of them fails, which is told.
std::expected<bool, Failure> Tuning::Agree(std::size_t one, std::size_t reference) {
  differs_.clear();
  while (!cancelled_) {
    Bench::Compared compared = bench_->Compare(one, reference, std::max(Limit(), kLeastLimit), compare_until_);
    if (compared.end != Bench::Compared::End::kNoDevice) in_vain_ = 0;
    switch (compared.end) {
      case Bench::Compared::End::kAgrees: caution_ = std::move(compared.caution); return true;
      case Bench::Compared::End::kDiffers: differs_ = std::move(compared.problem); return false;
      case Bench::Compared::End::kCandidateFailed: Fail(one, compared.outcome, std::move(compared.problem)); return false;
      case Bench::Compared::End::kReferenceFailed: Fail(reference, compared.outcome, std::move(compared.problem)); return false;
      case Bench::Compared::End::kNoDevice: WaitForDevice(std::move(compared.problem)); break;
    }
    if (in_vain_ < kMostInVain && clock_.SteadyNow() < compare_until_) continue;
    return std::unexpected(Failure{.kind = Kind::kNoWorker, .message = fmt::format("what was found cannot be checked: {}", no_device_)});
  }
  return std::unexpected(Cancelled());
}

// The two do not agree. A reference that somebody named is right; of others, the one that a third agrees with, and else the reference.
std::expected<void, Failure> Tuning::Settle(std::size_t one, std::size_t reference) {
  const std::string problem = std::exchange(differs_, {});
  const std::array both = {one, reference};
  if (const auto third = options_.reference ? std::nullopt : Fastest(both)) {
    for (const std::size_t other : {reference, one}) {
      const auto agree = Agree(*third, other);
      if (!agree) return std::unexpected(agree.error());
      if (std::ranges::any_of(std::array{one, reference, *third}, [this](std::size_t i) { return HasFailed(said_[i].outcome()); })) return {};
      if (!*agree) continue;
      if (other == reference) break;
      Fail(reference, v1::TUNE_WRONG, fmt::format("its outputs are not those of {} and {}, which agree: {}", Called(one), Called(*third), problem));
      return {};
    }
  }
  Fail(one, v1::TUNE_WRONG, fmt::format("its outputs are not those of {}: {}", Called(reference), problem));
  return {};
}

// The fastest whose outputs agree with the reference's. The others that were faster are wrong, and are told so. Where nobody named a reference,
// the first has to agree with another one before it wins.
std::expected<std::size_t, Failure> Tuning::Confirm() {
  compare_until_ = std::max(until_, clock_.SteadyNow() + kToCompare);
  in_vain_ = 0;
  while (!cancelled_) {
    if (auto possible = CheckReference(); !possible) return std::unexpected(std::move(possible.error()));
    const auto best = rounds_.Best();
    const auto reference = Reference();
    if (!best || !reference) return std::unexpected(NothingFound());
    if (said_[*reference].key().empty()) return std::unexpected(NotCompiledInTime(*reference));
    const auto other = *best != *reference ? best : options_.reference ? std::nullopt : Fastest(std::array{*reference});
    if (!other) return *best;
    const auto agree = Agree(*other, *reference);
    if (!agree) return std::unexpected(agree.error());
    if (*agree) return *best;
    if (differs_.empty()) continue;  // one of them has failed
    if (auto settled = Settle(*other, *reference); !settled) return std::unexpected(std::move(settled.error()));
    Report(true);
  }
  return std::unexpected(Cancelled());
}

Failure Tuning::NotCompiledInTime(std::size_t reference) const {
  if (prevented_) return *prevented_;
  return {.kind = Kind::kTooMuch,
          .message = fmt::format("the reference, {}, was not compiled within the budget; give a larger one", Called(reference))};
}

Failure Tuning::NothingFound() const {
  const auto failed = std::ranges::find_if(said_, [](const v1::TuneMeasurement& said) { return HasFailed(said.outcome()); });
  const bool all_failed = std::ranges::all_of(said_, [](const v1::TuneMeasurement& said) { return HasFailed(said.outcome()); });
  if (all_failed) {
    const auto which = static_cast<std::size_t>(failed - said_.begin());
    return {.kind = Kind::kInvalid,
            .message = fmt::format("none of the {} candidates runs and gives the right result; {}: {}", count_, Called(which), failed->problem())};
  }
  if (failed != said_.end() && rounds_.done() && !left_out_.empty()) {
    const auto which = static_cast<std::size_t>(failed - said_.begin());
    return {.kind = Kind::kTooMuch,
            .message = fmt::format("none of the {} candidates that the budget allows runs and gives the right result; {}: {}; give a larger one",
                                   options_.most, Called(which), failed->problem())};
  }
  if (prevented_ && compiled_ == 0) return *prevented_;
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
  record.set_caution(caution_);
  record.set_budget_seconds(prevented_ ? 0 : Seconds(options_.budget));
  record.set_budget_candidates(static_cast<std::uint32_t>(options_.most));
  record.set_energy_candidates(static_cast<std::uint32_t>(options_.energy));
  record.set_energy_problem(no_energy_);
  DescribeDevices(record);
  return record;
}

void Tuning::Report(bool at_once) {
  const auto now = clock_.SteadyNow();
  if (!at_once && now - reported_ < options_.between) return;
  reported_ = now;
  v1::TuneProgress progress;
  progress.set_candidates(static_cast<std::uint32_t>(count_));
  progress.set_ranked(static_cast<std::uint32_t>(ranked_));
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
