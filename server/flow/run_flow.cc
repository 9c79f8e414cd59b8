// SPDX-License-Identifier: Apache-2.0
#include "server/flow/run_flow.h"

#include <algorithm>
#include <stop_token>
#include <utility>

#include <fmt/format.h>

#include "cache/mutex.h"
#include "server/flow/run_outputs.h"
#include "server/queue/refusals.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

constexpr std::string_view kRunning = "it ran the kernel";
constexpr std::string_view kLoading = "it loaded the kernel";
constexpr std::string_view kStarting = "its driver started";

// The emulator ends a run that takes too long, and reports where its threads are. If the emulator itself does not end in this further time,
// its worker is killed.
constexpr std::chrono::milliseconds kGrace{2'000};
constexpr std::chrono::milliseconds kLeastLimit{100};  // a worker that is killed for less costs more than the run

Failure Malformed(std::string message) { return {.kind = Kind::kMalformed, .message = std::move(message)}; }
Failure RunCancelled() { return {.kind = Kind::kCancelled, .message = "the run was cancelled"}; }
Failure RunDraining() { return {.kind = Kind::kDraining, .message = "kilnd is shutting down and runs nothing new; try again shortly"}; }
Failure Full(std::string message) { return {.kind = Kind::kQueueFull, .message = std::move(message), .retry_after = std::chrono::seconds(1)}; }

Failure Later(const std::string& reason) { return Full(reason + "; try again in a second"); }

std::uint64_t RoundUp(std::uint64_t bytes) { return (bytes + RunMemory::kPage - 1) / RunMemory::kPage * RunMemory::kPage; }

double Milliseconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

void AddTiming(v1::RunResult& result, std::string_view stage, double milliseconds) {
  v1::Timing& timing = *result.add_timings();
  timing.set_stage(std::string(stage));
  timing.set_milliseconds(milliseconds);
}

// Bytes of the tensors as announced; nullopt if the sum overflows.
std::optional<std::uint64_t> BytesOf(const v1::RunStart& start) {
  std::uint64_t sum = 0;
  for (const v1::RunArgument& argument : start.arguments()) {
    if (__builtin_add_overflow(sum, argument.tensor().bytes(), &sum)) return std::nullopt;
  }
  return sum;
}

// Each tensor has bytes of its own or shares those of an earlier one that has.
std::optional<Failure> CheckStorages(const v1::RunStart& start) {
  for (int i = 0; i < start.arguments_size(); ++i) {
    const v1::RunTensor& tensor = start.arguments(i).tensor();
    if (tensor.storage() == 0) continue;
    const auto owner = std::int64_t{tensor.storage()} - 1;
    if (tensor.bytes() != 0) {
      return Malformed(fmt::format("argument {} shares the bytes of argument {} and has bytes of its own", i, owner));
    }
    const v1::RunArgument* before = owner < i ? &start.arguments(static_cast<int>(owner)) : nullptr;
    if (before != nullptr && before->has_tensor() && before->tensor().storage() == 0) continue;
    return Malformed(fmt::format("argument {} shares the bytes of argument {}, which is no tensor before it with bytes of its own", i, owner));
  }
  return std::nullopt;
}

}  // namespace

class RunFlow::Call {
 public:
  Call(Caller who, Quotas::InFlight counted, std::string id, std::shared_ptr<CallNotes> where, bool in_time, v1::RunStart given)
      : caller(std::move(who)),
        request_id(std::move(id)),
        notes(std::move(where)),
        accepted(in_time),
        start(std::move(given)),
        in_flight(std::move(counted)) {}

  const Caller caller;
  const std::string request_id;
  const std::shared_ptr<CallNotes> notes;
  const bool accepted;
  v1::RunStart start;
  std::shared_ptr<RunMemory> memory;
  std::vector<std::uint64_t> positions;  // of each argument's bytes
  std::uint64_t expected = 0, received = 0;
  int filling = 0;           // the argument whose bytes come next
  std::uint64_t filled = 0;  // of it
  std::uint64_t used = 0;    // of the memory
  std::chrono::milliseconds limit{0};
  std::optional<DevicePool::Found> device;
  v1::RunResult known;  // what is known before it runs: origin, timings

  std::stop_source stop;
  cache::Mutex mutex;
  std::optional<Quotas::InFlight> in_flight KILN_GUARDED_BY(mutex);  // until the client is told
  std::shared_ptr<CompileFlow::Call> compile KILN_GUARDED_BY(mutex);
  Done done KILN_GUARDED_BY(mutex);  // empty: not yet run, or ended

  void Layout() {
    for (const v1::RunArgument& argument : start.arguments()) {
      const std::uint32_t storage = argument.tensor().storage();
      positions.push_back(storage == 0 ? used : positions[storage - 1]);
      used += RoundUp(argument.tensor().bytes());
    }
  }
};

RunFlow::RunFlow(Options options, Parts parts) : options_(options), parts_(parts), budget_({.bytes = options.total_bytes, .calls = options.calls}) {}

// 1. What the first message says.
std::optional<Failure> RunFlow::Check(const v1::RunStart& start) const {
  if (start.what_case() == v1::RunStart::WHAT_NOT_SET) return Malformed("a run names a program or a key");
  if (const auto arguments = static_cast<unsigned>(start.arguments_size()); arguments > options_.arguments) {
    return Malformed(fmt::format("a run of {} arguments; this kilnd takes {} (--max-run-arguments)", arguments, options_.arguments));
  }
  if (start.options().repeat() > options_.repeats) {
    return Malformed(
        fmt::format("a run that is timed {} times; this kilnd times it at most {} (--max-run-repeats)", start.options().repeat(), options_.repeats));
  }
  const double limit = static_cast<double>(options_.limit.count()) / 1000;
  const double wanted = start.options().timeout_seconds();
  if (!(wanted >= 0 && wanted <= limit)) {
    return Malformed(fmt::format("a timeout of {} s; this kilnd allows a run up to {} s (--run-limit)", wanted, limit));
  }
  if (auto problem = CheckStorages(start)) return problem;
  const auto bytes = BytesOf(start);
  if (!bytes || *bytes > options_.call_bytes) {
    return Failure{.kind = Kind::kTooMuch,
                   .message = fmt::format("the tensors of this call have {} bytes; this kilnd takes {} (--run-data)",
                                          bytes ? fmt::format("{}", *bytes) : "far too many", options_.call_bytes)};
  }
  return std::nullopt;
}

std::expected<std::shared_ptr<RunFlow::Call>, Failure> RunFlow::Begin(Caller caller, std::string request_id, std::shared_ptr<CallNotes> notes,
                                                                      bool accepted, v1::RunStart start) {
  if (parts_.compile.ComesTooLate(accepted)) return std::unexpected(RunDraining());
  if (auto problem = Check(start)) return std::unexpected(std::move(*problem));
  if (auto left = parts_.quotas.MayRun(caller.tenant); !left) return std::unexpected(std::move(left.error()));
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return std::unexpected(std::move(in_flight.error()));
  auto call = std::make_shared<Call>(std::move(caller), std::move(*in_flight), std::move(request_id), std::move(notes), accepted, std::move(start));
  const double wanted = call->start.options().timeout_seconds();
  call->limit = wanted > 0 ? std::max(kLeastLimit, std::chrono::milliseconds(static_cast<std::int64_t>(wanted * 1000))) : options_.limit;
  call->expected = *BytesOf(call->start);
  call->Layout();
  auto hold = budget_.Begin(call->caller.tenant, call->used + call->start.ByteSizeLong());
  if (!hold) {
    ++parts_.metrics.counts.refused;
    return std::unexpected(Later(hold.error()));
  }
  auto memory = RunMemory::Create(call->used, std::move(*hold));
  if (!memory) return std::unexpected(Later(memory.error()));
  call->memory = std::move(*memory);
  return call;
}

// 2. The tensors' bytes, into the memory that the worker will see.
std::optional<Failure> RunFlow::Add(Call& call, std::string_view data) {
  if (data.size() > kPiece) {
    return Malformed(fmt::format("a piece of data has {} bytes; send at most {}", data.size(), kPiece));
  }
  call.received += data.size();
  while (!data.empty() && call.filling < call.start.arguments_size()) {
    const std::uint64_t bytes = call.start.arguments(call.filling).tensor().bytes();
    const std::string_view part = data.substr(0, bytes - call.filled);
    if (!call.memory->Write(call.positions[static_cast<std::size_t>(call.filling)] + call.filled, part)) {
      return Full("there is no memory for the tensors; try again, with smaller ones");
    }
    call.filled += part.size();
    data.remove_prefix(part.size());
    if (call.filled < bytes) break;
    ++call.filling;
    call.filled = 0;
  }
  if (data.empty()) return std::nullopt;
  return Malformed(fmt::format("more data came than the {} bytes that were announced for the tensors", call.expected));
}

void RunFlow::Run(const std::shared_ptr<Call>& call, Done done) {
  ++calls_;
  {
    cache::MutexLock lock(call->mutex);
    call->done = std::move(done);
  }
  if (call->received < call->expected) {
    return End(call, std::unexpected(Malformed(fmt::format("{} of the tensors' {} bytes came", call->received, call->expected))));
  }
  call->notes->Mark("receive");
  const bool posted = parts_.compile.Post(parts_.executor, call->caller.tenant, [this, call] { FindDevice(call); });
  if (!posted) End(call, std::unexpected(ExecutorFull(call->caller.tenant)));
}

// 3. The device.
void RunFlow::FindDevice(const std::shared_ptr<Call>& call) {
  if (call->stop.stop_requested()) return End(call, std::unexpected(RunCancelled()));
  // Held weakly: if the client goes, neither its call nor its memory is kept until a driver has answered.
  std::move_only_function<void()> again = [this, waits = std::weak_ptr(call)] {
    if (auto call = waits.lock()) parts_.executor.Resume(call->caller.tenant, [this, call] { FindDevice(call); });
  };
  if (parts_.devices.Park(call->start.device(), again)) return;
  auto found = parts_.devices.Find(call->start.device());
  if (!found) return End(call, std::unexpected(std::move(found.error())));
  call->device.emplace(std::move(*found));
  FindKernel(call);
}

// 4. The kernel: compiled, or from the cache.
void RunFlow::FindKernel(const std::shared_ptr<Call>& call) {
  const auto next = [this, call, began = parts_.clock.SteadyNow()](Outcome kernel) {
    if (!kernel) return End(call, std::unexpected(std::move(kernel.error())));
    AddTiming(call->known, "compile", std::chrono::duration<double, std::milli>(parts_.clock.SteadyNow() - began).count());
    call->known.set_origin(kernel->origin);
    Launch(call, *kernel);
  };
  if (!call->start.has_program()) return FindKey(*call, next);
  v1::CompileRequest& program = *call->start.mutable_program();
  const std::string& target = call->device->info.target();
  if (program.target().empty()) program.set_target(target);
  if (call->device->threads > 0 && program.target() != target) {
    return next(std::unexpected(
        Malformed(fmt::format("the program is to be compiled for {} and run on {}; leave its target empty", program.target(), target))));
  }
  program.clear_explain();
  program.clear_refresh();
  std::string bytes = program.SerializeAsString();
  const cache::Digest digest = DigestOf("Compile", bytes);
  if (auto hit = parts_.compile.FindHot(digest, call->caller.tenant, {})) return next(std::move(*hit));
  auto compile = parts_.compile.Start({.id = call->request_id,
                                       .caller = call->caller,
                                       .bytes = std::move(bytes),
                                       .digest = digest,
                                       .accepted = call->accepted,
                                       .part_of_another = true,
                                       .notes = call->notes,
                                       .on_stage = {},
                                       .done = next});
  {
    cache::MutexLock lock(call->mutex);
    call->compile = compile;
  }
  if (call->stop.stop_requested()) parts_.compile.Cancel(compile);
}

void RunFlow::FindKey(Call& call, std::function<void(Outcome)> next) {
  const auto key = cache::Digest::FromBytes(call.start.key());
  if (!key) return next(std::unexpected(Malformed("a key has 32 bytes, as in CompileReply.key")));
  if (auto hit = parts_.compile.FindHotKey(*key, call.caller.tenant)) return next(std::move(*hit));
  parts_.compile.Lookup(*key, call.caller.tenant, std::move(next));
}

// 5. Memory for the outputs, and the device's queue.
void RunFlow::Launch(const std::shared_ptr<Call>& call, const Reply& kernel) {
  const std::uint64_t outputs = OutputBytes(call->start, kernel.kept, RunMemory::kPage, options_.call_bytes - call->expected);
  if (auto sealed = call->memory->Seal(outputs); !sealed) {
    ++parts_.metrics.counts.refused;
    return End(call, std::unexpected(Later(sealed.error())));
  }
  auto task = std::make_unique<DeviceTask>();
  v1::DeviceRun& run = *task->job.mutable_run();
  run.set_device(call->device->info.name());
  run.set_reply(std::string(kernel.kept));
  run.set_module(call->start.program().module());
  *run.mutable_arguments() = call->start.arguments();
  *run.mutable_options() = call->start.options();
  for (const std::uint64_t position : call->positions) run.add_positions(position);
  run.set_memory_bytes(call->memory->bytes());
  run.set_memory_used(call->used);
  run.set_limit_bytes(options_.call_bytes);
  run.set_threads(call->device->threads);
  task->request_id = call->request_id;
  task->tenant = call->caller.tenant;
  task->memory = call->memory->fd();
  run.set_limit_seconds(static_cast<double>(call->limit.count()) / 1000);
  task->limit = call->limit + (call->device->threads > 0 ? kGrace : std::chrono::milliseconds(0));
  task->stop = call->stop.get_token();
  task->may_begin = [this, tenant = task->tenant] { return parts_.quotas.MayRun(tenant); };  // others ran meanwhile
  task->done = [this, call](DeviceOutcome outcome) { Land(call, std::move(outcome)); };
  if (call->device->line->Submit(task)) return;
  ++parts_.metrics.counts.refused;
  End(call, std::unexpected(parts_.compile.closed()
                                ? RunDraining()
                                : Full(fmt::format("too many runs wait for {} already; try again in a second", call->device->info.name()))));
}

// 6. The worker is done with it, or it with the worker.
void RunFlow::Land(const std::shared_ptr<Call>& call, DeviceOutcome outcome) {
  parts_.quotas.ChargeGpu(call->caller.tenant, outcome.ran);
  Ran ran = Judge(*call, outcome);
  const auto waited = std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double, std::milli>(outcome.queue_ms));
  const auto now = parts_.clock.SteadyNow();
  call->notes->Add("queue", now - outcome.ran - waited, waited);
  call->notes->Add("run", now - outcome.ran, outcome.ran);
  DeviceCounters& counters = call->device->line->counters();
  const bool faulty = ran && ran->result.faults_size() > 0;
  if (ran) ++counters.runs;
  if (faulty) ++counters.faults;
  parts_.telemetry.Log(ran ? Level::kInfo : Level::kWarning, "run",
                       {{"request", call->request_id},
                        {"tenant", std::string_view(call->caller.tenant)},
                        {"device", std::string_view(call->device->info.name())},
                        {"outcome", !ran     ? std::string_view(outcome.cause.empty() ? "refused" : outcome.cause)
                                    : faulty ? std::string_view(ran->result.faults(0).kind())
                                             : "ok"},
                        {"stage", std::string_view(outcome.stage)},
                        {"queue_ms", outcome.queue_ms},
                        {"ms", Milliseconds(outcome.ran)},
                        {"bytes", static_cast<std::int64_t>(call->expected)}});
  End(call, std::move(ran));
}

RunFlow::Ran RunFlow::Judge(Call& call, DeviceOutcome& outcome) {
  switch (outcome.end) {
    case DeviceOutcome::End::kResult: return Take(call, outcome);
    case DeviceOutcome::End::kDied:
    case DeviceOutcome::End::kTimeout: return Broken(call, outcome);
    case DeviceOutcome::End::kRefused: return std::unexpected(std::move(outcome.refusal));
    case DeviceOutcome::End::kNoWorker: return std::unexpected(Failure{.kind = Kind::kNoWorker, .message = outcome.cause});
    case DeviceOutcome::End::kCancelled:
      outcome.cause = "cancelled";
      return std::unexpected(parts_.compile.draining() ? RunDraining() : RunCancelled());
  }
  std::unreachable();
}

// The worker's answer is trusted only as far as it can be checked: where the outputs are.
RunFlow::Ran RunFlow::Take(Call& call, DeviceOutcome& outcome) {
  v1::DeviceResult& said = *outcome.event.mutable_result();
  if (!said.refusal().empty()) return std::unexpected(Malformed(std::move(*said.mutable_refusal())));
  Output output{.memory = call.memory};
  std::uint64_t all = 0;
  for (int i = 0; i < said.result().outputs_size() && i < said.positions_size(); ++i) {
    const Output::Extent extent{said.positions(i), said.result().outputs(i).tensor().bytes()};
    const std::uint64_t most = call.memory->bytes();
    if (extent.position > most || extent.bytes > most - extent.position || extent.bytes > most - all) break;
    all += extent.bytes;
    output.extents.push_back(extent);
  }
  if (output.extents.size() != static_cast<std::size_t>(said.result().outputs_size())) {
    outcome.cause = "said what cannot be";
    return Broken(call, outcome);
  }
  output.result = std::move(*said.mutable_result());
  for (v1::RunFault& fault : *output.result.mutable_faults()) {
    if (fault.kind() == "timeout") fault.set_message(TooLong(call, kRunning) + "; " + fault.message());
  }
  output.result.set_origin(call.known.origin());
  AddTiming(call.known, "queue", outcome.queue_ms);
  call.known.mutable_timings()->MergeFrom(output.result.timings());
  output.result.mutable_timings()->Swap(call.known.mutable_timings());
  return output;
}

std::string RunFlow::TooLong(const Call& call, std::string_view doing) const {
  return fmt::format("the run was ended after {} s, while {}{}; this kilnd allows a timeout of up to {} s (--run-limit)",
                     static_cast<double>(call.limit.count()) / 1000, doing, doing == kStarting ? "" : ": a loop that does not end, or too much work",
                     static_cast<double>(options_.limit.count()) / 1000);
}

// The run took its worker along.
RunFlow::Ran RunFlow::Broken(Call& call, const DeviceOutcome& outcome) {
  Output output;
  output.result = call.known;
  output.result.set_target(call.device->info.target());
  output.result.set_device(call.device->info.description());
  v1::RunFault& fault = *output.result.add_faults();
  const std::string_view doing = outcome.stage == "run" ? kRunning : outcome.stage == "driver" ? kStarting : kLoading;
  if (outcome.end == DeviceOutcome::End::kTimeout) {
    fault.set_kind("timeout");
    fault.set_message(TooLong(call, doing));
    return output;
  }
  const bool emulated = call.device->threads > 0;
  const std::string_view advice =
      emulated && !call.start.options().check() ? "; with check the run tells which statement accesses memory that it must not" : "";
  fault.set_kind("crash");
  fault.set_message(fmt::format("the worker for {} ended while {}: {}{}", call.device->info.name(), doing, outcome.cause, advice));
  return output;
}

void RunFlow::Cancel(const std::shared_ptr<Call>& call) {
  call->stop.request_stop();
  std::shared_ptr<CompileFlow::Call> compile;
  {
    cache::MutexLock lock(call->mutex);
    compile = call->compile;
  }
  if (compile) parts_.compile.Cancel(compile);
  Tell(call, std::unexpected(RunCancelled()));
}

// 7. The answer; what is not part of it is given back before, for the client's next call.
void RunFlow::End(const std::shared_ptr<Call>& call, Ran ran) {
  call->memory.reset();
  Tell(call, std::move(ran));
}

// A call is told once: whoever comes second finds no `done`.
void RunFlow::Tell(const std::shared_ptr<Call>& call, Ran ran) {
  Done done;
  {
    cache::MutexLock lock(call->mutex);
    done = std::exchange(call->done, {});
    call->in_flight.reset();
  }
  if (!done) return;
  done(std::move(ran));
  --calls_;
}

}  // namespace kiln::server
