// SPDX-License-Identifier: Apache-2.0
#include "server/tune/device_bench.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "server/telemetry/telemetry.h"
#include "server/tune/data/agree.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kToLoad{20'000};  // a driver may have to start, and tensors to travel
constexpr milliseconds kToEnd{100};      // that a short job gets to end by itself; a GPU's worker that is killed costs the next run more
constexpr milliseconds kGrace{2'000};    // beyond its limit, for the emulator to say where its threads are

constexpr milliseconds kOfEnergy{120};           // that launches follow one another, besides what the counter takes to move
constexpr milliseconds kToMeasureEnergy{3'000};  // at most, all of it

double Seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

// Whether a program's compile fails because of the program.
bool IsOfProgram(Failure::Kind kind) {
  using Kind = Failure::Kind;
  return kind == Kind::kMalformed || kind == Kind::kInvalid || kind == Kind::kUnsupported || kind == Kind::kTooMuch || kind == Kind::kDefect;
}

// Whether the passes refuse the program, which then does not compile either. What the planner alone cannot do says nothing of that.
bool IsRefused(Failure::Kind kind) {
  using Kind = Failure::Kind;
  return kind == Kind::kMalformed || kind == Kind::kInvalid || kind == Kind::kUnsupported;
}

Bench::Measured Impossible(std::chrono::microseconds took) {
  return {.end = Bench::Measured::End::kFailed, .outcome = v1::TUNE_FAULTED, .problem = "its worker told numbers that cannot be", .took = took};
}

v1::TuneOutcome OutcomeOf(const v1::RunFault& fault) { return fault.kind() == "timeout" ? v1::TUNE_TIMED_OUT : v1::TUNE_FAULTED; }

}  // namespace

v1::CompileRequest DeviceBench::Whole(std::size_t candidate) const {
  v1::CompileRequest whole = work_.programs[candidate];
  if (whole.module().empty()) whole.set_module(work_.programs.front().module());
  return whole;
}

// The call that the tuning is cancelled by, until it has ended.
void DeviceBench::Start(std::size_t candidate, Job Candidate::* job, std::string bytes, const cache::Digest& digest, Ended ended) {
  {
    cache::MutexLock lock(mutex_);
    (candidates_[candidate].*job).under_way = true;
  }
  auto call = parts_.compile.Start({.id = RequestIdText(NextRequestNumber()),
                                    .caller = work_.caller,
                                    .bytes = std::move(bytes),
                                    .digest = digest,
                                    .part_of_another = true,
                                    .held = !work_.programs[candidate].module().empty(),
                                    .on_stage = {},
                                    .done = std::move(ended)});
  {
    cache::MutexLock lock(mutex_);
    Job& begun = candidates_[candidate].*job;
    if (!begun.under_way) return;
    if (!stopped_) {
      begun.call = std::move(call);
      return;
    }
  }
  parts_.compile.Cancel(call);
}

void DeviceBench::Over(std::size_t candidate, Job Candidate::* job) {
  parts_.share.Give();
  cache::MutexLock lock(mutex_);
  candidates_[candidate].*job = {};
}

void DeviceBench::Rank(std::size_t candidate, std::move_only_function<void(Ranked)> done) {
  v1::CompileRequest whole = Whole(candidate);
  *whole.mutable_explain()->mutable_estimate() = work_.estimate;
  std::string bytes = whole.SerializeAsString();
  const cache::Digest digest = DigestOf("Rank", bytes);
  auto shared = std::make_shared<std::move_only_function<void(Ranked)>>(std::move(done));
  Start(candidate, &Candidate::ranking, std::move(bytes), digest, [self = shared_from_this(), candidate, shared](Outcome outcome) {
    self->Over(candidate, &Candidate::ranking);
    Ranked ranked;
    v1::CompileReply reply;
    if (!outcome && IsRefused(outcome.error().kind)) {
      ranked.problem = std::move(outcome.error().message);
    } else if (!outcome) {
      ranked.prevented = std::move(outcome.error());
    } else if (reply.ParseFromArray(outcome->kept.data(), static_cast<int>(outcome->kept.size())) && reply.has_estimate()) {
      ranked.estimate = std::move(*reply.mutable_estimate());
    }
    (*shared)(std::move(ranked));
  });
}

void DeviceBench::Compile(std::size_t candidate, std::move_only_function<void(Compiled)> done) {
  std::string bytes = Whole(candidate).SerializeAsString();
  const cache::Digest digest = DigestOf("Compile", bytes);
  auto shared = std::make_shared<std::move_only_function<void(Compiled)>>(std::move(done));
  const auto end = [self = shared_from_this(), candidate, shared](Outcome outcome) {
    self->Over(candidate, &Candidate::compiling);
    Compiled compiled;
    if (outcome) {
      compiled.key = std::string(outcome->key.view());
    } else if (IsOfProgram(outcome.error().kind)) {
      compiled.problem = outcome.error().message;
    } else {
      compiled.prevented = std::move(outcome.error());
    }
    if (outcome) {
      cache::MutexLock lock(self->mutex_);
      self->candidates_[candidate].kernel = std::move(*outcome);
    }
    (*shared)(std::move(compiled));
  };
  if (auto hit = parts_.compile.FindHot(digest, work_.caller.tenant, {})) return end(std::move(*hit));
  Start(candidate, &Candidate::compiling, std::move(bytes), digest, end);
}

void DeviceBench::Stop() {
  std::vector<std::shared_ptr<CompileFlow::Call>> calls;
  {
    cache::MutexLock lock(mutex_);
    stopped_ = true;
    for (Candidate& candidate : candidates_) {
      for (Job* job : {&candidate.ranking, &candidate.compiling}) {
        if (job->call) calls.push_back(std::move(job->call));
      }
    }
  }
  ended_.NotifyAll();
  for (const auto& call : calls) parts_.compile.Cancel(call);
}

Reply DeviceBench::KernelOf(std::size_t candidate) {
  cache::MutexLock lock(mutex_);
  return *candidates_[candidate].kernel;
}

std::expected<void, DeviceBench::Failed> DeviceBench::PrepareOnce(const Reply& kernel) {
  if (!prepared_) {
    auto made = work_.tensors->Prepare(kernel.kept);
    prepared_ = made ? std::expected<void, Failed>() : std::unexpected(Failed{true, v1::TUNE_REFUSED, std::move(made.error())});  // as for all
  }
  return *prepared_;
}

void DeviceBench::Describe(const Reply& kernel, const RunMemory& memory, milliseconds limit, v1::DeviceRun& run) const {
  run.set_device(work_.device.info.name());
  run.set_reply(std::string(kernel.kept));
  work_.tensors->Describe(memory, run);
  run.set_threads(work_.device.threads);
  run.set_limit_seconds(Seconds(limit));
}

bool DeviceBench::stopped() {
  cache::MutexLock lock(mutex_);
  return stopped_;
}

DeviceOutcome DeviceBench::Await(v1::DeviceJob job, int memory, milliseconds limit, cache::SteadyTime until, std::size_t device) {
  const DevicePool::Found& where = DeviceAt(device);
  const bool takes_turns = !emulated();  // emulators are several, and load little
  const auto turn = takes_turns ? parts_.turns.Take(where.line, work_.session, until, [this] { return stopped(); }) : std::nullopt;
  if ((takes_turns && !turn) || stopped()) return {};
  const auto ended = std::make_shared<std::optional<DeviceOutcome>>();  // under the mutex
  std::stop_source stop;
  auto task = std::make_unique<DeviceTask>();
  task->job = std::move(job);
  task->request_id = work_.request_id;
  task->tenant = work_.caller.tenant;
  task->tuning = true;
  task->memory = memory;
  task->run_limit = limit + (emulated() ? kGrace : milliseconds(0));
  task->limit = kToLoad + *task->run_limit;
  task->stop = stop.get_token();
  task->may_begin = [this] { return parts_.quotas.MayRun(work_.caller.tenant); };
  task->done = [self = shared_from_this(), ended](DeviceOutcome outcome) {
    {
      cache::MutexLock lock(self->mutex_);
      *ended = std::move(outcome);
    }
    self->ended_.NotifyAll();
  };
  if (!where.line->Submit(task)) {
    return {.end = DeviceOutcome::End::kNoWorker, .cause = fmt::format("too much waits for {} already", where.info.name())};
  }
  cache::MutexLock lock(mutex_);
  const auto over = [&]() KILN_REQUIRES(mutex_) { return ended->has_value(); };
  const auto last = until + kToLoad + limit;  // what has begun by then may end
  while (!over() && !stopped_ && parts_.clock.SteadyNow() < last) {
    ended_.WaitFor(mutex_, std::chrono::ceil<std::chrono::microseconds>(std::min<std::chrono::nanoseconds>(last - parts_.clock.SteadyNow(), limit)),
                   [&]() KILN_REQUIRES(mutex_) { return over() || stopped_; });
  }
  if (!over()) ended_.WaitFor(mutex_, kToEnd, over);
  if (!over()) {
    lock.Unlock();
    stop.request_stop();
    lock.Lock();
    ended_.Wait(mutex_, over);
  }
  DeviceOutcome outcome = std::move(**ended);
  lock.Unlock();
  parts_.quotas.ChargeGpu(work_.caller.tenant, outcome.ran);
  parts_.device_microseconds += static_cast<std::uint64_t>(outcome.ran.count());
  return outcome;
}

DeviceBench::Failed DeviceBench::TooLong(std::string_view stage) const {
  if (stage == "run") return {true, v1::TUNE_TIMED_OUT, "it did not end in the time that a measurement may take"};
  const double seconds = Seconds(kToLoad);
  if (stage == "load") return {true, v1::TUNE_TIMED_OUT, fmt::format("it was not loaded within {} s", seconds)};
  return {.problem = fmt::format("the driver of {} did not start within {} s", work_.device.info.name(), seconds)};
}

std::expected<v1::DeviceResult, DeviceBench::Failed> DeviceBench::Judge(DeviceOutcome outcome) const {
  switch (outcome.end) {
    case DeviceOutcome::End::kResult: break;
    case DeviceOutcome::End::kDied:
      return std::unexpected(Failed{true, v1::TUNE_FAULTED, fmt::format("the worker for {} ended: {}", work_.device.info.name(), outcome.cause)});
    case DeviceOutcome::End::kTimeout: return std::unexpected(TooLong(outcome.stage));
    case DeviceOutcome::End::kRefused: return std::unexpected(Failed{.problem = std::move(outcome.refusal.message)});
    case DeviceOutcome::End::kNoWorker: return std::unexpected(Failed{.problem = std::move(outcome.cause)});
    case DeviceOutcome::End::kCancelled: return std::unexpected(Failed{.problem = "the device was busy"});
  }
  v1::DeviceResult& said = *outcome.event.mutable_result();
  if (!said.refusal().empty()) return std::unexpected(Failed{!said.unusable(), v1::TUNE_REFUSED, std::move(*said.mutable_refusal())});
  if (said.result().faults_size() > 0) {
    const v1::RunFault& fault = said.result().faults(0);
    return std::unexpected(Failed{true, OutcomeOf(fault), fmt::format("{}: {}", fault.kind(), fault.message())});
  }
  if (!said.result().finished()) return std::unexpected(Failed{true, v1::TUNE_FAULTED, "it did not run to its end"});
  return std::move(said);
}

// Fills in what the run takes, and sends it.
DeviceBench::Said DeviceBench::Ask(std::size_t candidate, v1::DeviceMeasure measure, milliseconds limit, cache::SteadyTime until,
                                   std::size_t device) {
  const Reply kernel = KernelOf(candidate);
  const auto ended = [](Failed failure, std::chrono::microseconds took) {
    return std::unexpected(Measured{.end = failure.of_candidate ? Measured::End::kFailed : Measured::End::kNoDevice,
                                    .outcome = failure.outcome,
                                    .problem = std::move(failure.problem),
                                    .took = took});
  };
  if (auto prepared = PrepareOnce(kernel); !prepared) return ended(prepared.error(), {});
  std::shared_ptr<RunMemory> memory = work_.tensors->given();
  if (emulated()) {  // its kernels write into the memory that they are given
    auto copy = work_.tensors->Copy(TuneTensors::Outputs::kZeros);
    if (!copy) return ended({.problem = std::move(copy.error())}, {});
    memory = std::move(*copy);
  }
  v1::DeviceJob job;
  measure.set_session(work_.session);
  Describe(kernel, *memory, limit, *measure.mutable_run());
  measure.mutable_run()->set_device(DeviceAt(device).info.name());
  *job.mutable_measure() = std::move(measure);
  DeviceOutcome outcome = Await(std::move(job), memory->fd(), limit, until, device);
  const auto took = outcome.ran, running = outcome.running;
  auto said = Judge(std::move(outcome));
  if (!said) return ended(std::move(said.error()), took);
  return Answer{std::move(*said), took, running};
}

std::vector<std::string> DeviceBench::Devices() const {
  std::vector<std::string> names = {work_.device.info.name()};
  for (const DevicePool::Found& other : work_.others) names.push_back(other.info.name());
  return names;
}

Bench::Measured DeviceBench::Measure(std::size_t candidate, unsigned samples, milliseconds limit, cache::SteadyTime until, std::size_t device) {
  v1::DeviceMeasure measure;
  measure.mutable_run()->mutable_options()->set_repeat(samples);
  auto answer = Ask(candidate, std::move(measure), limit, until, device);
  if (!answer) return std::move(answer.error());
  const auto& times = answer->said.result().microseconds();
  const bool can_be =
      static_cast<unsigned>(times.size()) == samples && std::ranges::all_of(times, [](double time) { return time >= 0 && time < 1e12; });
  if (!can_be) return Impossible(answer->took);
  return {.end = Measured::End::kMeasured,
          .microseconds = {times.begin(), times.end()},
          .problem = {},
          .took = answer->took,
          .running = answer->running,
          .compute_mhz = answer->said.compute_mhz(),
          .memory_mhz = answer->said.memory_mhz()};
}

Bench::Measured DeviceBench::MeasureEnergy(std::size_t candidate, milliseconds limit, cache::SteadyTime until) {
  if (emulated()) return {.end = Measured::End::kMeasured, .problem = {}, .no_energy = "an emulator takes no energy of a GPU"};
  v1::DeviceMeasure measure;
  measure.set_energy_seconds(Seconds(kOfEnergy));
  auto answer = Ask(candidate, std::move(measure), limit + kToMeasureEnergy, until, 0);
  if (!answer) return std::move(answer.error());
  Measured measured{.end = Measured::End::kMeasured, .problem = {}, .took = answer->took, .running = answer->running};
  v1::DeviceResult& said = answer->said;
  if (!said.has_energy()) {
    measured.no_energy = said.energy_problem().empty() ? "its worker told none" : std::move(*said.mutable_energy_problem());
    return measured;
  }
  const v1::LaunchEnergy& energy = said.energy();
  const bool can_be = std::ranges::all_of(std::array{energy.joules(), energy.watts(), energy.microseconds()},
                                          [](double value) { return value >= 0 && value < 1e12; });
  if (!can_be) return Impossible(answer->took);
  measured.energy = energy;
  return measured;
}

// The worker's word is taken only where the outputs' bytes can be: within the memory.
std::expected<DeviceBench::Outputs, DeviceBench::Failed> DeviceBench::RunOnce(std::size_t candidate, milliseconds limit, cache::SteadyTime until) {
  const Reply kernel = KernelOf(candidate);
  if (auto prepared = PrepareOnce(kernel); !prepared) return std::unexpected(prepared.error());
  auto memory = work_.tensors->Copy(TuneTensors::Outputs::kNoNumbers);
  if (!memory) return std::unexpected(Failed{.problem = std::move(memory.error())});
  v1::DeviceJob job;
  Describe(kernel, **memory, limit, *job.mutable_run());
  job.mutable_run()->set_module(Whole(candidate).module());  // for names in what it may say
  auto said = Judge(Await(std::move(job), (*memory)->fd(), limit, until));
  if (!said) return std::unexpected(std::move(said.error()));
  bool fits = said->positions_size() == said->result().outputs_size();
  for (int i = 0; fits && i < said->positions_size(); ++i) {
    const std::uint64_t bytes = said->result().outputs(i).tensor().bytes(), most = (*memory)->bytes();
    fits = said->positions(i) <= most && bytes <= most - said->positions(i);
  }
  if (!fits) return std::unexpected(Failed{true, v1::TUNE_FAULTED, "its worker said what cannot be"});
  return Outputs{candidate, std::move(*memory), std::move(*said)};
}

Bench::Compared DeviceBench::Compare(std::size_t candidate, std::size_t reference, milliseconds limit, cache::SteadyTime until) {
  using End = Compared::End;
  if (!reference_ || reference_->candidate != reference) {
    reference_.reset();
    auto ran = RunOnce(reference, limit, until);
    if (!ran) {
      return {ran.error().of_candidate ? End::kReferenceFailed : End::kNoDevice, ran.error().outcome, std::move(ran.error().problem)};
    }
    reference_.emplace(std::move(*ran));
  }
  std::string caution;
  auto ours = RunOnce(candidate, limit, until);
  if (!ours) return {ours.error().of_candidate ? End::kCandidateFailed : End::kNoDevice, ours.error().outcome, std::move(ours.error().problem)};
  const auto& mine = ours->said.result().outputs();
  const auto& theirs = reference_->said.result().outputs();
  if (mine.size() != theirs.size()) return {End::kDiffers, {}, fmt::format("it writes {} tensors, and the reference {}", mine.size(), theirs.size())};
  for (int i = 0; i < mine.size(); ++i) {
    const v1::RunTensor& tensor = mine[i].tensor();
    if (tensor.dtype() != theirs[i].tensor().dtype() || tensor.bytes() != theirs[i].tensor().bytes()) {
      return {End::kDiffers, {}, fmt::format("{} is another tensor than the reference's", mine[i].name())};
    }
    const auto bytes_of = [i](const Outputs& outputs) -> ReadBytes {
      return [memory = outputs.memory, from = outputs.said.positions(i)](std::uint64_t at, char* data, std::uint64_t bytes) {
        return memory->Read(from + at, data, bytes);
      };
    };
    if (auto differs = Disagreement(tensor.dtype(), tensor.bytes(), bytes_of(*ours), bytes_of(*reference_))) {
      return {End::kDiffers, {}, fmt::format("{}: {}", mine[i].name(), *differs)};
    }
    const auto little = SaysLittle(tensor.dtype(), tensor.bytes(), bytes_of(*reference_));
    if (little && caution.empty()) caution = fmt::format("in {} of the reference {}", mine[i].name(), *little);
  }
  return {.end = End::kAgrees, .problem = {}, .caution = std::move(caution)};
}

}  // namespace kiln::server
