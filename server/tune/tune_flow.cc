// SPDX-License-Identifier: Apache-2.0
#include "server/tune/tune_flow.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "server/queue/refusals.h"
#include "server/reply/tenant_key.h"
#include "server/reply/tune_record.h"
#include "server/tune/tune_call.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;
using std::chrono::milliseconds;

constexpr milliseconds kLeastLimit{100};
constexpr std::size_t kAgain = 8;  // of the best by a record of another driver or compiler, that are measured again
constexpr unsigned kRankings = 4;  // for each tuning that may be under way, as many that only rank

Failure Malformed(std::string message) { return {.kind = Kind::kMalformed, .message = std::move(message)}; }
Failure TuneDraining() { return {.kind = Kind::kDraining, .message = "kilnd is shutting down and tunes nothing new; try again shortly"}; }

v1::TuneProgress Choices(std::span<const std::size_t> order, v1::TuneBasis basis) {
  v1::TuneProgress told;
  for (const std::size_t candidate : order) told.add_choices(static_cast<std::uint32_t>(candidate) + 1);
  told.set_basis(basis);
  return told;
}

// The fastest by a record of another driver or compiler first; what did not run there is no choice.
v1::TuneProgress ChoicesOfNear(const std::vector<double>& known) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i] > 0) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return known[i]; });
  return Choices(order, v1::TUNE_BASIS_NEAR_RECORD);
}

}  // namespace

// Tenants share no tunings. One that shall be made anew is none that may end with what is known; one that may take longer finds more.
cache::Digest TuneFlow::FlightOf(const Call& call) {
  const v1::TuneStart& start = call.start;
  if (call.ranks_only) return cache::Hasher().Update(fmt::format("ranks {}\n", call.caller.tenant)).Update(call.key.view()).Finish();
  const bool again = !call.known.empty();
  const std::string how =
      fmt::format("{} {} {} {} {} {} {}\n", start.refresh(), again, start.budget_seconds(), start.budget_candidates(), start.candidate_seconds(),
                  start.has_energy_candidates() ? start.energy_candidates() : -1LL, call.caller.tenant);
  return cache::Hasher().Update(how).Update(call.key.view()).Finish();
}

std::optional<TenantBudget::Charge> TuneFlow::TakePlace(TenantBudget& places, const std::string& tenant) {
  auto place = places.Take(tenant, 1);
  return place ? std::optional(std::move(*place)) : std::nullopt;
}

TuneFlow::TuneFlow(Options options, Parts parts)
    : options_(std::move(options)),
      parts_(parts),
      share_(std::max(1u, options_.compiles)),
      turns_({}, parts.clock),
      places_(options_.tunings),
      rankings_(kRankings * options_.tunings) {}

TuneFlow::~TuneFlow() { Close(); }

// 1. What the first message says.
std::optional<Failure> TuneFlow::Check(const v1::TuneStart& start) const {
  if (start.candidates() == 0) return Malformed("a tuning has candidates");
  if (start.candidates() > options_.candidates) {
    return Malformed(fmt::format("a tuning of {} candidates; this kilnd takes {} (--max-tune-candidates)", start.candidates(), options_.candidates));
  }
  if (start.refresh() && start.known_only())
    return Malformed("a tuning that measures anew (refresh) cannot be one that measures nothing (known_only)");
  if (start.known_only() && start.mode() != v1::TUNE_WAIT) return Malformed("what is only looked up (known_only) is waited for (TUNE_WAIT)");
  if (start.reference() > start.candidates()) {
    return Malformed(fmt::format("the reference is candidate {} of {}", start.reference(), start.candidates()));
  }
  const double limit = std::chrono::duration<double>(options_.limit).count();
  if (!(start.budget_seconds() >= 0 && start.budget_seconds() <= limit)) {
    return Malformed(fmt::format("a budget of {} s; this kilnd allows a tuning up to {} s (--tune-limit)", start.budget_seconds(), limit));
  }
  const double run_limit = std::chrono::duration<double>(options_.run_limit).count();
  if (!(start.candidate_seconds() >= 0 && start.candidate_seconds() <= run_limit)) {
    return Malformed(fmt::format("{} s for one candidate; this kilnd allows a run up to {} s (--run-limit)", start.candidate_seconds(), run_limit));
  }
  return std::nullopt;
}

std::expected<std::shared_ptr<TuneFlow::Call>, Failure> TuneFlow::Begin(Caller caller, std::string request_id, bool accepted, v1::TuneStart start) {
  if (parts_.compile.ComesTooLate(accepted)) return std::unexpected(TuneDraining());
  if (auto problem = Check(start)) return std::unexpected(std::move(*problem));
  if (auto left = parts_.quotas.MayRun(caller.tenant); !left) return std::unexpected(std::move(left.error()));
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return std::unexpected(std::move(in_flight.error()));
  auto tensors = TuneTensors::Create(start, caller.tenant, parts_.runs.budget(), options_.tensors);
  if (!tensors) return std::unexpected(std::move(tensors.error()));
  return std::make_shared<Call>(std::move(caller), std::move(*in_flight), std::move(request_id), std::move(start), std::move(*tensors));
}

// 2. The candidates and the tensors' bytes.
std::optional<Failure> TuneFlow::Add(Call& call, v1::TuneCandidate candidate) {
  if (call.programs.size() == call.start.candidates()) {
    return Malformed(fmt::format("more candidates came than the {} that were announced", call.start.candidates()));
  }
  if (!candidate.program().space().empty()) return Malformed("a candidate of a tuning has no space of its own");
  auto charge = parts_.compile.Hold(call.caller.tenant, candidate.ByteSizeLong());
  if (!charge) return std::move(charge.error());
  call.charges.push_back(std::move(*charge));
  call.labels.push_back(std::move(*candidate.mutable_label()));
  call.programs.push_back(std::move(*candidate.mutable_program()));
  return std::nullopt;
}

std::optional<Failure> TuneFlow::Add(Call& call, std::string_view data) {
  if (call.programs.size() < call.start.candidates()) return Malformed("the candidates come before the tensors' data");
  return call.tensors->Add(data);
}

void TuneFlow::Run(const std::shared_ptr<Call>& call, Tuning::OnProgress on_progress, Done done) {
  ++calls_;
  {
    cache::MutexLock lock(call->mutex);
    call->on_progress = std::move(on_progress);
    call->done = std::move(done);
  }
  if (call->programs.size() < call->start.candidates()) {
    return End(call, std::unexpected(Malformed(fmt::format("{} of {} candidates came", call->programs.size(), call->start.candidates()))));
  }
  if (auto missing = call->tensors->Missing()) return End(call, std::unexpected(std::move(*missing)));
  const bool posted = parts_.compile.Post(parts_.heavy, call->caller.tenant, [this, call] { Steps(call); });
  if (!posted) End(call, std::unexpected(ExecutorFull(call->caller.tenant)));
}

void TuneFlow::Steps(const std::shared_ptr<Call>& call) {
  if (call->cancelled) return End(call, std::unexpected(TuneCancelled()));
  if (call->start.mode() == v1::TUNE_OFF) {
    std::vector<std::size_t> order(call->programs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    return End(call, Choices(order, v1::TUNE_BASIS_CALLER));
  }

  // 3. The device. Held weakly, as a run.
  std::move_only_function<void()> again = [this, waits = std::weak_ptr(call)] {
    if (auto call = waits.lock()) parts_.heavy.Resume(call->caller.tenant, [this, call] { Steps(call); });
  };
  if (parts_.devices.Park(call->start.device(), again)) return;
  auto found = parts_.devices.Find(call->start.device());
  if (!found) return End(call, std::unexpected(std::move(found.error())));
  call->device.emplace(std::move(*found));

  // 4. The key of the record.
  if (auto completed = Complete(*call); !completed) return End(call, std::unexpected(std::move(completed.error())));
  auto keys = KeysOf(*call);
  if (!keys) return End(call, std::unexpected(std::move(keys.error())));
  call->key = keys->record;
  call->near = keys->near;

  // 5. The cache may have it.
  if (!call->start.refresh()) {
    if (auto known = FromCache(*call)) return End(call, std::move(*known));
    if (call->cancelled) return End(call, std::unexpected(TuneCancelled()));
  }
  if (call->start.known_only()) {
    return End(call, std::unexpected(Failure{.kind = Kind::kNotFound,
                                             .message = fmt::format("these candidates were not tuned on {} yet", call->device->info.description())}));
  }

  call->ranks_only = call->start.mode() == v1::TUNE_MODEL;
  if (call->start.mode() != v1::TUNE_WAIT && !call->start.refresh() && FromNear(*call) && call->ranks_only) {
    return End(call, ChoicesOfNear(call->known));
  }

  // 6. One tuning for all who ask for the same.
  Join(call);
}

// Fills in what candidates leave open.
std::expected<void, Failure> TuneFlow::Complete(Call& call) {
  const bool emulated = call.device->threads > 0;
  const std::string& target = call.device->info.target();
  if (emulated && !call.start.measure_on_emulator() && call.start.mode() != v1::TUNE_MODEL) {
    return std::unexpected(Malformed(fmt::format(
        "{} emulates a GPU: which candidate is emulated fastest says nothing of the GPU. Tune on a host with the GPU; `kiln devices` lists those of "
        "a kilnd. measure_on_emulator measures here nevertheless, for tests",
        call.device->info.name())));
  }
  for (std::size_t i = 0; i < call.programs.size(); ++i) {
    v1::CompileRequest& program = call.programs[i];
    if (program.target().empty()) program.set_target(target);
    if (emulated && program.target() != target) {
      return std::unexpected(Malformed(
          fmt::format("candidate {} is to be compiled for {} and measured on {}; leave its target empty", i + 1, program.target(), target)));
    }
    program.clear_explain();
    program.clear_refresh();
    program.clear_durable();
    program.set_priority(v1::TUNING);
  }
  return {};
}

// Whether it waits for a tuning under way from now on; what it is told where that has nothing more to say to it.
bool TuneFlow::MayShare(const std::shared_ptr<Call>& call, std::optional<v1::TuneProgress>& told) {
  const auto at = flights_.find(call->flight);
  if (at == flights_.end()) return false;
  call->tensors.reset();
  call->programs.clear();
  call->charges.clear();
  Flight& flight = at->second;
  const bool leaves = call->start.mode() != v1::TUNE_WAIT;
  if (leaves && flight.choices) {
    told = *flight.choices;
    flight.goes_on |= !flight.ranks_only;
  } else {
    flight.calls.push_back(call);
  }
  return true;
}

// One of its own. Why not, where there is no place.
std::optional<Failure> TuneFlow::Launch(const std::shared_ptr<Call>& call, std::optional<v1::TuneProgress>& told) {
  auto place = TakePlace(call->ranks_only ? rankings_ : places_, call->caller.tenant);
  if (!place) {
    if (!call->ranks_only) ++counts_.refused;
    return Failure{.kind = Kind::kQueueFull,
                   .message = fmt::format("the tunings under way are as many as this kilnd has at one time, or leaves to the tenant {} beside others "
                                          "({}, --tunings); try again in a second",
                                          call->caller.tenant, options_.tunings),
                   .retry_after = std::chrono::seconds(1)};
  }
  const auto tuning = Make(*call);
  Flight& flight = flights_[call->flight];
  flight = {
      .tuning = tuning, .calls = {}, .key = call->key, .tenant = call->caller.tenant, .ranks_only = call->ranks_only, .choices = {}, .news = {}};
  if (call->known.empty()) {
    flight.calls.push_back(call);
  } else {  // measured elsewhere: that is used at once
    told = flight.choices = ChoicesOfNear(call->known);
    flight.goes_on = true;
  }
  Thread& thread = threads_.emplace_back();
  thread.thread = std::jthread([this, call, tuning, &thread, place = std::move(*place)]() mutable {
    Fly(call, tuning, std::move(place));
    thread.over = true;
  });
  return std::nullopt;
}

void TuneFlow::Join(const std::shared_ptr<Call>& call) {
  std::optional<Failure> refused;
  std::optional<v1::TuneProgress> told;
  {
    cache::MutexLock lock(mutex_);
    Reap();
    call->flight = FlightOf(*call);
    if (closed_) {
      refused = TuneDraining();
    } else if (!MayShare(call, told)) {
      refused = Launch(call, told);
    }
  }
  const bool would_go_on = call->start.mode() == v1::TUNE_BACKGROUND && !call->ranks_only;
  if (refused && refused->kind == Kind::kQueueFull && would_go_on) return JoinUntuned(call, std::move(refused->message));
  if (refused) return End(call, std::unexpected(std::move(*refused)));
  if (told) return End(call, For(*call, std::move(*told)));
  if (call->cancelled) Cancel(call);
}

// There is no place for a tuning behind the caller now: it gets the planner's word, or what was measured elsewhere, nevertheless.
void TuneFlow::JoinUntuned(const std::shared_ptr<Call>& call, std::string why) {
  call->untuned = std::move(why);
  call->ranks_only = true;
  if (!call->known.empty()) return End(call, For(*call, ChoicesOfNear(call->known)));
  Join(call);
}

// With what is only this caller's.
v1::TuneProgress TuneFlow::For(const Call& call, v1::TuneProgress told) {
  told.set_untuned(call.untuned);
  if (call.start.mode() == v1::TUNE_BACKGROUND && !call.ranks_only) told.set_watch(std::string(call.key.view()));
  return told;
}

// The candidates are in order: who does not wait for the record leaves.
void TuneFlow::Ordered(const cache::Digest& which, const v1::TuneProgress& choices) {
  std::vector<std::shared_ptr<Call>> leaving;
  {
    cache::MutexLock lock(mutex_);
    const auto at = flights_.find(which);
    if (at == flights_.end()) return;
    Flight& flight = at->second;
    if (!flight.choices) flight.choices = choices;
    std::erase_if(flight.calls, [&](const std::shared_ptr<Call>& call) {
      const bool leaves = call->start.mode() != v1::TUNE_WAIT && !call->watches;
      if (leaves) leaving.push_back(call);
      return leaves;
    });
    flight.goes_on |= !flight.ranks_only && !leaving.empty();
  }
  for (const auto& call : leaving) End(call, For(*call, choices));
}

std::shared_ptr<TuneFlow::Call> TuneFlow::Watch(Caller caller, std::string request_id, Quotas::InFlight counted, const cache::Digest& key,
                                                Tuning::OnProgress on_progress, Done done) {
  ++calls_;
  auto call = std::make_shared<Call>(std::move(caller), std::move(counted), std::move(request_id), v1::TuneStart(), nullptr);
  call->watches = true;
  call->key = key;
  {
    cache::MutexLock lock(call->mutex);
    call->on_progress = std::move(on_progress);
    call->done = std::move(done);
  }
  const bool posted = parts_.compile.Post(parts_.heavy, call->caller.tenant, [this, call] { BeginWatch(call); });
  if (!posted) End(call, std::unexpected(ExecutorFull(call->caller.tenant)));
  return call;
}

// First the tunings: one that ends meanwhile has kept its record.
void TuneFlow::BeginWatch(const std::shared_ptr<Call>& call) {
  const std::string& tenant = call->caller.tenant;
  {
    cache::MutexLock lock(mutex_);
    const auto is_it = [&](const auto& flight) {
      return !flight.second.ranks_only && flight.second.key == call->key && flight.second.tenant == tenant;
    };
    if (const auto at = std::ranges::find_if(flights_, is_it); at != flights_.end() && !call->cancelled) {
      call->flight = at->first;
      at->second.calls.push_back(call);
      const auto news = at->second.news;
      lock.Unlock();
      if (news) call->Tell(*news);
      return;
    }
  }
  if (call->cancelled) return End(call, std::unexpected(TuneCancelled()));
  cache::Waited waited{.asker = tenant};
  const auto hit = parts_.cache.Get(KeptUnder(tenant, call->key), waited);
  auto record = hit ? TuneRecordFrom(hit->entry, tenant) : std::nullopt;
  const bool whole = record && record->winner() > 0 && record->winner() <= static_cast<std::uint32_t>(record->measurements_size());
  if (whole) return End(call, ToldFrom(*hit, std::move(*record)));
  End(call, std::unexpected(Failure{.kind = Kind::kNotFound, .message = "nothing is tuned under this key now, and there is no record"}));
}

// What the planner is asked: of this device, and of a launch with these arguments.
v1::EstimateOptions TuneFlow::EstimateOf(const Call& call) {
  v1::EstimateOptions options;
  options.set_board(call.device->info.description());
  for (const v1::TuneArgument& argument : call.start.arguments()) {
    v1::EstimateArgument& said = *options.add_arguments();
    *said.mutable_shape() = argument.tensor().shape();
    said.set_integer(argument.integer());
  }
  return options;
}

// An emulated device has none.
std::vector<DevicePool::Found> TuneFlow::OthersOf(const Call& call) const {
  auto others = call.start.devices() > 1 && call.device->threads == 0 ? parts_.devices.Like(call.device->info) : std::vector<DevicePool::Found>();
  others.resize(std::min<std::size_t>(others.size(), call.start.devices() - (others.empty() ? 0 : 1)));
  return others;
}

std::shared_ptr<Tuning> TuneFlow::Make(Call& call) {
  auto bench =
      std::make_shared<DeviceBench>(DeviceBench::Parts{parts_.compile, parts_.quotas, share_, turns_, counts_.device_microseconds, parts_.clock},
                                    DeviceBench::Work{.request_id = call.request_id,
                                                      .caller = call.caller,
                                                      .device = *call.device,
                                                      .others = OthersOf(call),
                                                      .programs = std::move(call.programs),
                                                      .estimate = EstimateOf(call),
                                                      .tensors = std::move(call.tensors),
                                                      .session = ++sessions_});
  const double seconds = call.start.candidate_seconds();
  const std::size_t most = call.start.budget_candidates();
  Tuning::Options options{.labels = call.labels,
                          .reference = call.start.reference() == 0 ? std::nullopt : std::optional<std::size_t>(call.start.reference() - 1),
                          .most = call.known.empty() ? most
                                  : most == 0        ? kAgain
                                                     : std::min(most, kAgain),
                          .budget = call.Budget(options_.limit),
                          .limit = seconds > 0 ? std::max(kLeastLimit, Milliseconds(seconds)) : milliseconds(0),
                          .device_share = options_.device_share,
                          .energy = call.start.has_energy_candidates() ? call.start.energy_candidates() : options_.energy,
                          .ranks_only = call.ranks_only,
                          .known = call.known};
  return std::make_shared<Tuning>(
      std::move(options), std::move(bench), parts_.clock,
      [this, flight = call.flight](const v1::TuneProgress& progress) {
        for (const auto& listener : Listeners(flight, progress)) listener->Tell(progress);
      },
      [this, flight = call.flight](const std::vector<std::size_t>& order, v1::TuneBasis basis) { Ordered(flight, Choices(order, basis)); });
}

void TuneFlow::Log(const Call& first, const std::expected<v1::TuneRecord, Failure>& record, double ms) const {
  parts_.telemetry.Log(record ? Level::kInfo : Level::kWarning, "tune",
                       {{"request", first.request_id},
                        {"tenant", std::string_view(first.caller.tenant)},
                        {"device", std::string_view(first.device->info.name())},
                        {"candidates", static_cast<std::int64_t>(first.labels.size())},
                        {"mode", first.start.mode() == v1::TUNE_BACKGROUND ? std::string_view("background") : std::string_view("wait")},
                        {"outcome", record ? std::string_view("ok") : std::string_view(record.error().message)},
                        {"ms", ms}});
}

// 7. The tuning, on its thread, and the answers.
void TuneFlow::Fly(const std::shared_ptr<Call>& first, const std::shared_ptr<Tuning>& tuning, TenantBudget::Charge place) {
  const auto began = parts_.clock.SteadyNow();
  auto record = tuning->Run();
  const double ms = std::chrono::duration<double, std::milli>(parts_.clock.SteadyNow() - began).count();
  if (!first->ranks_only) {
    Log(*first, record, ms);
    Count(record);
  }
  Told told = record ? Told(v1::TuneProgress()) : Told(std::unexpected(std::move(record.error())));
  if (!told && told.error().kind == Kind::kCancelled) told = std::unexpected(parts_.compile.draining() ? TuneDraining() : TuneCancelled());
  if (told && !first->ranks_only) {
    v1::TuneRecord kept = Keep(*first, std::move(*record));
    const v1::TuneMeasurement& best = kept.measurements(static_cast<int>(kept.winner()) - 1);
    told->set_candidates(static_cast<std::uint32_t>(first->labels.size()));
    told->set_best(kept.winner());
    told->set_best_microseconds(best.median());
    told->set_elapsed_seconds(kept.seconds());
    told->mutable_record()->Swap(&kept);
  }
  place = {};  // before the client may ask for the next
  for (const auto& call : EndFlight(first->flight, *tuning)) {
    if (told) told->set_origin(call == first ? v1::COMPILED : v1::JOINED);
    End(call, told);
  }
}

std::vector<std::shared_ptr<TuneFlow::Call>> TuneFlow::Listeners(const cache::Digest& flight, const v1::TuneProgress& news) {
  cache::MutexLock lock(mutex_);
  const auto at = flights_.find(flight);
  if (at == flights_.end()) return {};
  at->second.news = news;
  return at->second.calls;
}

// Nobody joins it from now on. Where all have left, another may have the same key by now.
std::vector<std::shared_ptr<TuneFlow::Call>> TuneFlow::EndFlight(const cache::Digest& flight, const Tuning& tuning) {
  cache::MutexLock lock(mutex_);
  const auto at = flights_.find(flight);
  if (at == flights_.end() || at->second.tuning.get() != &tuning) return {};
  auto calls = std::move(at->second.calls);
  flights_.erase(at);
  return calls;
}

void TuneFlow::Cancel(const std::shared_ptr<Call>& call) {
  call->cancelled = true;
  std::shared_ptr<Tuning> unwanted;
  {
    cache::MutexLock lock(mutex_);
    if (const auto at = flights_.find(call->flight); at != flights_.end()) {
      if (std::erase(at->second.calls, call) > 0 && at->second.calls.empty() && !at->second.goes_on) {
        unwanted = std::move(at->second.tuning);
        flights_.erase(at);
      }
    }
  }
  if (unwanted) unwanted->Cancel();
  End(call, std::unexpected(TuneCancelled()));
}

void TuneFlow::Reap() {
  std::erase_if(threads_, [](const Thread& thread) { return thread.over.load(); });
}

void TuneFlow::Close() {
  std::vector<std::shared_ptr<Tuning>> tunings;
  std::list<Thread> threads;
  {
    cache::MutexLock lock(mutex_);
    closed_ = true;
    for (const auto& [key, flight] : flights_) tunings.push_back(flight.tuning);
    threads.splice(threads.begin(), threads_);
  }
  for (const auto& tuning : tunings) tuning->Cancel();
}  // joins

// A call is told once: whoever comes second finds no `done`.
void TuneFlow::End(const std::shared_ptr<Call>& call, Told told) {
  Done done;
  {
    cache::MutexLock lock(call->mutex);
    done = std::exchange(call->done, {});
    call->in_flight.reset();
  }
  if (!done) return;
  done(std::move(told));
  --calls_;
}

}  // namespace kiln::server
