// SPDX-License-Identifier: Apache-2.0
#include "server/compile_flow.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "server/compile_report.h"
#include "server/refusals.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

// The text of an explained compile differs with what is asked for, and is never kept.
cache::Digest FlightKey(const cache::Digest& key, const v1::CompileRequest& request) {
  if (!request.has_explain()) return key;
  return cache::Hasher().Update("explain").Update(key.view()).Update(request.explain().SerializeAsString()).Finish();
}

double Milliseconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

v1::Timing MakeTiming(std::string_view stage, double milliseconds) {
  v1::Timing timing;
  timing.set_stage(std::string(stage));
  timing.set_milliseconds(milliseconds);
  return timing;
}

}  // namespace

class CompileFlow::Call {
 public:
  explicit Call(Request given) : request(std::move(given)), bytes(request.bytes.size()) {}

  Request request;
  const std::size_t bytes;
  bool counted = true;  // by Quotas; set before anybody else knows the call
  std::atomic<bool> cancelled = false;
  std::atomic<bool> ended = false;
  std::mutex mutex;
  Flights::Ticket ticket;                                        // guarded by mutex
  std::optional<std::pair<cache::Digest, std::uint64_t>> listens;  // guarded by mutex
};

// What the starter of a flight carries through queue and worker.
struct CompileFlow::Compile {
  cache::Digest key;         // of the result, as clients know it
  cache::Digest kept_under;  // in the cache
  std::string name;
  std::string request_id;
  Caller caller;
  std::shared_ptr<CallNotes> notes;  // of the request that started it
  v1::CompileRequest request;
  Flights::Flight flight;
};

CompileFlow::CompileFlow(Options options, Parts parts) : options_(std::move(options)), parts_(parts) {}

std::optional<Outcome> CompileFlow::FindHot(const cache::Digest& request, std::string_view tenant) {
  const auto kept_under = index_.Find(KeptUnder(tenant, request));
  return kept_under ? Hot(*kept_under, tenant) : std::nullopt;
}

std::optional<Outcome> CompileFlow::FindHotKey(const cache::Digest& key, std::string_view tenant) {
  return Hot(KeptUnder(tenant, key), tenant);
}

std::optional<Outcome> CompileFlow::Hot(const cache::Digest& kept_under, std::string_view tenant) {
  auto hit = parts_.cache.GetWithoutBlocking(kept_under);
  if (!hit) return std::nullopt;
  auto outcome = OutcomeFrom(hit->entry, tenant, v1::MEMORY);
  if (outcome) {
    ++parts_.telemetry.requests;
    ++parts_.telemetry.hits;
  }
  return outcome;
}

bool CompileFlow::Post(Executor::Task task) { return parts_.executor.Post(task); }

std::shared_ptr<CompileFlow::Call> CompileFlow::Start(Request request) {
  ++parts_.telemetry.requests;
  ++calls_;
  request.digest = KeptUnder(request.caller.tenant, request.digest);  // as FindHot
  auto call = std::make_shared<Call>(std::move(request));
  if (auto begun = parts_.quotas.Begin(call->request.caller.tenant); !begun) {
    call->counted = false;
    pending_bytes_ += call->bytes;
    End(call, std::unexpected(std::move(begun.error())));
    return call;
  }
  const bool fits = (pending_bytes_ += call->bytes) <= options_.max_pending_bytes;
  if (!fits || !Post([this, call] { Steps(call); })) {
    End(call, std::unexpected(ToFailure(QueueFull{parts_.admission.queued(), std::chrono::seconds(1)})));
  }
  return call;
}

void CompileFlow::Steps(const std::shared_ptr<Call>& call) {
  if (call->cancelled) return End(call, std::unexpected(Cancelled()));
  call->request.notes->Mark("dispatch");
  if (AnswerAsBefore(call)) return;

  // 1. The request's bytes become a message.
  v1::CompileRequest request;
  if (!request.ParseFromString(call->request.bytes)) {
    return End(call, std::unexpected(Failure{
                         .kind = Kind::kMalformed,
                         .message = "the request is no kiln.v1.CompileRequest; is the client of this protocol version?"}));
  }
  call->request.bytes = {};

  // 2. The module is decoded and the key computed.
  auto resolved = Resolve(request, options_.ptxas_version(), options_.limits, call->request.notes.get());
  if (!resolved) return End(call, std::unexpected(std::move(resolved.error())));
  request.set_target(resolved->target);
  const Caller& caller = call->request.caller;
  const cache::Digest kept_under = KeptUnder(caller.tenant, resolved->key);

  // 3. The cache may have it.
  const bool keeps = !request.has_explain();
  if (keeps && !request.refresh()) {
    for (const cache::Digest& key : {kept_under, FailureKey(kept_under, request.module())}) {
      auto known = FromCache(key, caller.tenant);
      if (!known) continue;
      index_.Remember(call->request.digest, key);
      ++parts_.telemetry.hits;
      call->request.notes->Mark("cache");
      return End(call, std::move(*known));
    }
    call->request.notes->Mark("cache");
  }
  if (call->request.lookup_only) {
    if (call->request.remember_miss) index_.Remember(call->request.digest, kept_under);
    return End(call, std::unexpected(NotCompiled()));
  }

  // 4. It must be compiled: may the caller have that done, and is it sensible now?
  if (auto allowed = parts_.gate.Require(caller, Scope::kCompile, "Compile of what is not in the cache"); !allowed) {
    return End(call, std::unexpected(std::move(allowed.error())));
  }
  if (draining_) return End(call, std::unexpected(Draining()));
  if (auto left = parts_.quotas.MayCompile(caller.tenant); !left) return End(call, std::unexpected(std::move(left.error())));
  if (const auto known = parts_.reproducers.IsOpen(kept_under); known && !request.refresh()) {
    return End(call, std::unexpected(FailedBefore(*known)));
  }

  // 5. One flight per key.
  if (keeps && !request.refresh()) index_.Remember(call->request.digest, kept_under);
  Join(call, std::move(request), *resolved);
}

// A request that was seen before byte for byte, whose result is kept or under way, needs no decoding.
bool CompileFlow::AnswerAsBefore(const std::shared_ptr<Call>& call) {
  const auto key = index_.Find(call->request.digest);
  if (!key) return false;
  if (!call->request.lookup_only && Board(call, *key)) return true;
  if (auto known = FromCache(*key, call->request.caller.tenant)) {
    ++parts_.telemetry.hits;
    call->request.notes->Mark("cache");
    End(call, std::move(*known));
    return true;
  }
  if (call->request.lookup_only) {
    End(call, std::unexpected(NotCompiled()));
    return true;
  }
  // Under a flood the same requests come again and again: it must cost little to refuse them.
  const auto full = parts_.admission.RefusesAll(call->request.caller);
  if (!full || draining_) return false;
  ++parts_.telemetry.refused;
  End(call, std::unexpected(ToFailure(*full)));
  return true;
}

// Not streams, which must hear of the stages.
bool CompileFlow::Board(const std::shared_ptr<Call>& call, const cache::Digest& key) {
  if (call->request.on_stage || !call->request.caller.May(Scope::kCompile)) return false;
  auto waiter = WaiterOf(call, nullptr);
  const auto ticket = flights_.JoinExisting(key, waiter);
  if (!ticket) return false;
  ++parts_.telemetry.joined;
  {
    std::lock_guard lock(call->mutex);
    call->ticket = *ticket;
  }
  if (call->cancelled) Cancel(call);
  return true;
}

std::optional<Outcome> CompileFlow::FromCache(const cache::Digest& kept_under, std::string_view tenant) {
  auto hit = parts_.cache.Get(kept_under);
  if (!hit) return std::nullopt;
  if (hit->level == 0) return OutcomeFrom(hit->entry, tenant, v1::MEMORY);
  if (const auto sealed = parts_.sealer.Check(hit->entry); !sealed) {
    parts_.telemetry.Log(Level::kWarning, "forged",
                         {{"key", kept_under.ToHex().substr(0, 16)}, {"why", std::string_view(sealed.error())}});
    [[maybe_unused]] const auto erased = parts_.cache.Erase(kept_under);
    return std::nullopt;
  }
  return OutcomeFrom(hit->entry, tenant, v1::DISK);
}

// `starts` tells at the end whether this call's request was the one that was compiled; null: it was not.
CompileFlow::Flights::Waiter CompileFlow::WaiterOf(const std::shared_ptr<Call>& call, std::shared_ptr<std::atomic<bool>> starts) {
  return [this, call, starts = std::move(starts)](cache::FlightEnd end, const std::shared_ptr<const Made>& made) {
    if (end != cache::FlightEnd::kFinished) return End(call, std::unexpected(Draining()));
    Outcome outcome = *made;
    const bool joined = !starts || !*starts;
    if (joined) call->request.notes->Mark("flight");  // that another request started
    if (outcome && outcome->origin == v1::COMPILED && joined) outcome->origin = v1::JOINED;
    End(call, std::move(outcome));
  };
}

void CompileFlow::Join(const std::shared_ptr<Call>& call, v1::CompileRequest request, const ResolvedRequest& resolved) {
  const cache::Digest kept_under = KeptUnder(call->request.caller.tenant, resolved.key);
  const cache::Digest flight_key = FlightKey(kept_under, request);
  if (call->request.on_stage) {
    std::lock_guard lock(call->mutex);
    call->listens.emplace(flight_key, stages_.Subscribe(flight_key, call->request.on_stage));
    call->request.on_stage("queued");
  }
  const auto starts = std::make_shared<std::atomic<bool>>(false);
  Flights::Joined joined = flights_.Join(flight_key, WaiterOf(call, starts));
  {
    std::lock_guard lock(call->mutex);
    call->ticket = joined.ticket;
  }
  if (joined.flight) {
    *starts = true;
    Launch(std::make_shared<Compile>(Compile{resolved.key, kept_under, resolved.name, call->request.id,
                                             call->request.caller, call->request.notes, std::move(request),
                                             std::move(*joined.flight)}));
  } else {
    ++parts_.telemetry.joined;
    parts_.admission.Promote(flight_key, request.priority());
  }
  if (call->cancelled) Cancel(call);
}

void CompileFlow::Launch(std::shared_ptr<Compile> compile) {
  // Between the look in the cache and the join another flight may have landed.
  if (!compile->request.has_explain() && !compile->request.refresh()) {
    if (auto hit = parts_.cache.GetWithoutBlocking(compile->kept_under)) {
      if (auto known = OutcomeFrom(hit->entry, compile->caller.tenant, v1::MEMORY)) {
        return compile->flight.Finish(std::move(*known));
      }
    }
  }
  // 6. The queue for the workers.
  auto job = std::make_unique<Job>();
  job->key = compile->flight.key();
  job->request_id = compile->request_id;
  job->caller = compile->caller;
  job->priority = compile->request.priority();
  job->work.set_id(++last_job_);
  *job->work.mutable_request() = compile->request;
  job->work.set_timeout_seconds(std::chrono::duration<double>(options_.compile_limit).count());
  job->stop = compile->flight.stop_token();
  job->on_stage = [this, key = job->key](std::string_view stage) { stages_.Publish(key, stage); };
  // Not on the worker's thread, which has the next job to begin.
  job->done = [this, compile](JobOutcome outcome) {
    parts_.executor.PostFirst([this, compile, outcome = std::move(outcome)]() mutable { Land(*compile, std::move(outcome)); });
  };
  if (const auto queued = parts_.admission.Submit(job); !queued) {
    ++parts_.telemetry.refused;
    compile->flight.Finish(std::unexpected(draining_ ? Draining() : ToFailure(queued.error())));
  }
}

// 7. The worker is done with it, or it with the worker.
void CompileFlow::Land(Compile& compile, JobOutcome outcome) {
  NoteStages(*compile.notes, outcome);
  Made made = Judge(compile, outcome);
  Report({compile.request_id, compile.key, compile.request, outcome, made}, parts_.telemetry, parts_.metrics);
  compile.flight.Finish(std::move(made));
}

CompileFlow::Made CompileFlow::Judge(Compile& compile, JobOutcome& outcome) {
  parts_.quotas.ChargeCompile(compile.caller.tenant, outcome.ran);
  switch (outcome.end) {
    case JobOutcome::End::kResult: {
      ++parts_.telemetry.compiles;
      parts_.telemetry.NoteCompile(Milliseconds(outcome.ran));
      const auto& diagnostics = outcome.result.diagnostics();
      const bool refused = std::ranges::any_of(
          diagnostics, [](const v1::Diagnostic& d) { return d.severity() == v1::Diagnostic::ERROR; });
      if (outcome.result.has_artifact() && !refused) return Keep(compile, outcome);
      return std::unexpected(Refusal(compile, outcome));
    }
    case JobOutcome::End::kDied: return std::unexpected(Defect(compile, outcome, outcome.cause));
    case JobOutcome::End::kNoWorker:
      return std::unexpected(Failure{.kind = Kind::kNoWorker, .message = outcome.cause});
    case JobOutcome::End::kCancelled:
      outcome.cause = "cancelled";
      if (outcome.ran >= options_.suspicious_after) {
        Defect(compile, outcome, fmt::format("abandoned after {:.1f} s", Milliseconds(outcome.ran) / 1000));
      }
      return std::unexpected(draining_ ? Draining() : Cancelled());
  }
  std::unreachable();
}

// 8. Seal and put. The result is visible in memory before the flight ends.
CompileFlow::Made CompileFlow::Keep(Compile& compile, JobOutcome& outcome) {
  const std::size_t artifact_bytes = outcome.result.artifact().ByteSizeLong();
  if (artifact_bytes > options_.limits.artifact_bytes) return std::unexpected(ArtifactTooLarge(artifact_bytes, options_.limits));
  if (auto fits = parts_.store_keeper.Fits(compile.caller.tenant, artifact_bytes); !fits) return std::unexpected(std::move(fits.error()));
  v1::CompileReply reply;
  reply.set_key(compile.key.bytes.data(), compile.key.bytes.size());
  reply.mutable_artifact()->Swap(outcome.result.mutable_artifact());
  reply.mutable_diagnostics()->Swap(outcome.result.mutable_diagnostics());

  Reply kept;
  if (compile.request.has_explain()) {
    reply.mutable_dumps()->Swap(outcome.result.mutable_dumps());
    auto bytes = std::make_shared<const std::string>(parts_.sealer.Seal(reply, compile.request));
    kept = {.key = compile.key, .owner = bytes, .kept = *bytes};
  } else if (auto entry = SealReply(compile.kept_under, compile.caller.tenant, parts_.sealer.Seal(reply, compile.request),
                                    reply.artifact().target(), compile.name)) {
    compile.notes->Mark("seal");
    kept = **OutcomeFrom(*entry, compile.caller.tenant, v1::COMPILED);
    const std::size_t sealed_bytes = entry->sealed().size();
    parts_.cache.Put(std::move(*entry));
    parts_.store_keeper.Note(compile.caller.tenant, sealed_bytes);
    compile.notes->Mark("put");
  } else {
    return std::unexpected(Failure{.kind = Kind::kUnsupported,
                                   .message = "the artifact is larger than an entry of the cache may be: " +
                                              entry.error().message});
  }
  kept.origin = v1::COMPILED;
  kept.timings.assign(outcome.result.timings().begin(), outcome.result.timings().end());
  kept.timings.push_back(MakeTiming("queue", outcome.queue_ms));
  return kept;
}

Failure CompileFlow::Refusal(Compile& compile, JobOutcome& outcome) {
  Failure failure{.kind = Kind::kInvalid};
  const auto& all = outcome.result.diagnostics();
  failure.diagnostics.assign(all.begin(), all.end());
  std::ranges::stable_sort(failure.diagnostics, {}, &v1::Diagnostic::severity);  // errors first
  if (all.empty()) return Defect(compile, outcome, "the compiler gave neither an artifact nor a diagnostic");

  const auto is_error = [](v1::Diagnostic::Kind kind) {
    return [kind](const v1::Diagnostic& d) { return d.severity() == v1::Diagnostic::ERROR && d.kind() == kind; };
  };
  failure.message = FirstMessage(failure.diagnostics);
  if (std::ranges::any_of(failure.diagnostics, is_error(v1::Diagnostic::INTERNAL))) {
    Failure defect = Defect(compile, outcome, failure.message);
    defect.diagnostics = std::move(failure.diagnostics);
    return defect;
  }
  ++parts_.telemetry.failed;
  if (std::ranges::none_of(failure.diagnostics, is_error(v1::Diagnostic::INVALID))) failure.kind = Kind::kUnsupported;
  Remember(compile, failure);
  return failure;
}

// The same program gets the same answer from this build of the compiler, which is part of the key.
void CompileFlow::Remember(const Compile& compile, const Failure& failure) {
  if (compile.request.has_explain()) return;
  auto entry = SealFailure(FailureKey(compile.kept_under, compile.request.module()), compile.caller.tenant, failure,
                           compile.request.target(), compile.name);
  if (entry) parts_.cache.Put(std::move(*entry));
}

Failure CompileFlow::Defect(Compile& compile, const JobOutcome& outcome, const std::string& cause) {
  ++parts_.telemetry.failed;
  if (outcome.end == JobOutcome::End::kDied) ++parts_.telemetry.worker_crashes;
  const std::string place = outcome.stage.empty() ? "" : fmt::format(" in stage {}", outcome.stage);
  const std::string path = parts_.reproducers.Save(compile.key, compile.request, options_.build_id,
                                                   fmt::format("{}{}\n{}", cause, place, outcome.said));
  if (outcome.end == JobOutcome::End::kDied) parts_.reproducers.NoteCrash(compile.kept_under, cause, path);
  return {.kind = Kind::kDefect,
          .message = fmt::format("the compiler failed on this program: {}{}. {}", cause, place,
                                 path.empty() ? "The reproducer could not be written; look at the state directory."
                                              : fmt::format("`kiln compile --repro {}` runs it again.", path)),
          .reproducer = path};
}

void CompileFlow::Cancel(const std::shared_ptr<Call>& call) {
  call->cancelled = true;
  Flights::Ticket ticket;
  {
    std::lock_guard lock(call->mutex);
    ticket = call->ticket;
  }
  if (flights_.Leave(ticket)) End(call, std::unexpected(Cancelled()));
}

void CompileFlow::End(const std::shared_ptr<Call>& call, Outcome outcome) {
  if (call->ended.exchange(true)) return;
  {
    std::lock_guard lock(call->mutex);
    if (call->listens) stages_.Unsubscribe(call->listens->first, call->listens->second);
  }
  auto done = std::move(call->request.done);
  done(std::move(outcome));
  if (call->counted) parts_.quotas.End(call->request.caller.tenant);
  pending_bytes_ -= call->bytes;
  --calls_;
}

void CompileFlow::Lookup(const cache::Digest& key, const std::string& tenant,
                         std::move_only_function<void(Outcome)> done) {
  ++parts_.telemetry.requests;
  auto shared = std::make_shared<std::move_only_function<void(Outcome)>>(std::move(done));
  const bool posted = Post([this, key, tenant, shared] {
    if (auto reply = FromCache(KeptUnder(tenant, key), tenant)) {
      ++parts_.telemetry.hits;
      return (*shared)(std::move(*reply));
    }
    (*shared)(std::unexpected(
        Failure{.kind = Kind::kNotFound, .message = fmt::format("nothing is known under the key {}", key.ToHex())}));
  });
  if (!posted) (*shared)(std::unexpected(ToFailure(QueueFull{parts_.admission.queued(), std::chrono::seconds(1)})));
}

}  // namespace kiln::server
