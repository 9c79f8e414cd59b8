// SPDX-License-Identifier: Apache-2.0
#include "server/flow/compile_flow.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ir/codec/wire_size.h"
#include "server/flow/compile_under_way.h"
#include "server/flow/two_layers.h"
#include "server/queue/refusals.h"
#include "server/wire/message_reader.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

// If the store did not have a request's result, the store is not asked again so soon while the queue is full.
constexpr std::chrono::seconds kStaysAbsent{1};

constexpr std::size_t kSmallModule = std::size_t{4} << 20;  // bytes in memory; a decode of milliseconds

// The text of an explained compile differs with what is asked for, and is never kept. `via`: where this host forwards what it was sent from
// there. Then a flight is shared by those alone who came the same way, or two kilnds that forward to each other could each wait for the other's.
cache::Digest FlightKey(const cache::Digest& key, const v1::CompileRequest& request, std::string_view via) {
  cache::Digest flight = key;
  if (request.has_explain()) flight = cache::Hasher().Update("explain").Update(flight.view()).Update(request.explain().SerializeAsString()).Finish();
  if (!via.empty()) flight = cache::Hasher().Update("via ").Update(via).Update(flight.view()).Finish();
  return flight;
}

// Gives up the memory, too, which an assignment would keep.
void Free(std::string& bytes) { std::string().swap(bytes); }

}  // namespace

class CompileFlow::Call {
 public:
  explicit Call(Request given) : request(std::move(given)) { waited.asker = request.caller.tenant; }

  Request request;
  std::optional<TenantBudget::Charge> charge;  // of the request's bytes: goes where they go
  bool counted = false;                        // by Quotas; set before anybody else knows the call
  bool durable = false;                        // answered once the store has the result; of one thread at a time
  cache::Waited waited;                        // for the store that hosts share; of the same thread
  std::atomic<bool> cancelled = false;
  std::atomic<bool> ended = false;
  cache::Mutex mutex;
  Flights::Ticket ticket KILN_GUARDED_BY(mutex);
  std::optional<std::pair<cache::Digest, std::uint64_t>> listens KILN_GUARDED_BY(mutex);
};

CompileFlow::CompileFlow(Options options, Parts parts) : options_(std::move(options)), parts_(parts) {}

std::optional<Outcome> CompileFlow::FindHot(const cache::Digest& request, std::string_view tenant, const WantsDurable& wants_durable) {
  const auto kept_under = index_.Find(KeptUnder(tenant, request));
  return kept_under ? Hot(*kept_under, tenant, wants_durable) : std::nullopt;
}

std::optional<Outcome> CompileFlow::FindHotKey(const cache::Digest& key, std::string_view tenant) { return Hot(KeptUnder(tenant, key), tenant, {}); }

std::optional<Outcome> CompileFlow::Hot(const cache::Digest& kept_under, std::string_view tenant, const WantsDurable& wants_durable) {
  auto outcome = FromMemory(kept_under, tenant);
  if (!outcome || (*outcome && !(*outcome)->durable && wants_durable && wants_durable())) return std::nullopt;
  ++parts_.metrics.counts.requests;  // or a refusal that is remembered
  ++parts_.metrics.counts.hits;
  return outcome;
}

std::optional<Failure> CompileFlow::RefusesUnread(const cache::Digest& request, std::string_view bytes, const Caller& caller) {
  const auto full = parts_.admission.Refuses(caller, SettingsOf(bytes).priority);
  if (!full || draining_) return std::nullopt;
  const cache::Digest seen = KeptUnder(caller.tenant, request);
  const auto key = index_.Find(seen);
  if (key && (flights_.Has(*key) || parts_.cache.GetWithoutBlocking(*key))) return std::nullopt;
  const auto now = parts_.clock.SteadyNow();
  if (key ? !index_.WasAbsentSince(seen, now - kStaysAbsent) : decodes_.Take(caller.tenant, now, options_.between_decodes)) return std::nullopt;
  ++parts_.metrics.counts.requests;
  ++parts_.metrics.counts.refused;
  return ToFailure(*full);
}

// The worker may have been killed by its limits, so the key includes them: under other limits the program is tried again.
// Ranking a program is other work than compiling it: what ends the planner's worker need not end the compiler's.
cache::Digest CompileFlow::CrashKey(const cache::Digest& kept_under, WorkKind kind) const {
  const std::string_view what = kind == WorkKind::kEstimate ? "estimate " : "";
  const std::string limits = fmt::format("crash {}{} {} ", what, options_.compile_limit.count(), options_.worker_memory_bytes);
  return cache::Hasher().Update(limits).Update(kept_under.view()).Finish();
}

std::expected<void, Failure> CompileFlow::IsHarmless(const cache::Digest& kept_under, WorkKind kind, const Caller& caller, bool refresh) {
  if (refresh && caller.May(Scope::kAdmin)) return {};
  const cache::Digest key = CrashKey(kept_under, kind);
  if (const auto known = parts_.reproducers.IsOpen(key)) return std::unexpected(FailedBefore(*known));
  if (const auto doubt = parts_.reproducers.IsInDoubt(key)) return std::unexpected(KilledBefore(*doubt));
  return {};
}

std::string CompileFlow::PtxasVersion() {
  std::string version = options_.ptxas_version();
  cache::MutexLock lock(ptxas_mutex_);
  if (ptxas_ && *ptxas_ != version) index_.Forget();
  ptxas_ = version;
  return version;
}

void CompileFlow::Close() {
  closed_ = true;
  if (parts_.leases != nullptr) parts_.leases->Close();
  if (parts_.upstream != nullptr) parts_.upstream->Close();
}

void CompileFlow::LookAtPtxas() {
  if (looking_at_ptxas_.exchange(true)) return;
  parts_.executor.PostFirst([this] {
    PtxasVersion();
    looking_at_ptxas_ = false;
  });
}

bool CompileFlow::Post(Executor& executor, const std::string& tenant, Executor::Task task) {
  if (executor.Post(tenant, task)) return true;
  ++parts_.metrics.counts.refused;
  return false;
}

std::shared_ptr<CompileFlow::Call> CompileFlow::Start(Request request) {
  ++parts_.metrics.counts.requests;
  ++calls_;
  request.digest = KeptUnder(request.caller.tenant, request.digest);  // as FindHot
  if (!request.notes) request.notes = std::make_shared<CallNotes>(parts_.clock);
  auto call = std::make_shared<Call>(std::move(request));
  call->durable = call->request.durable || SettingsOf(call->request.bytes).durable;
  if (auto refused = Accept(*call)) {
    End(call, std::unexpected(std::move(*refused)));
  } else if (const bool boards = BoardsAsBefore(call); boards || !Post(parts_.executor, call->request.caller.tenant, [this, call] { Steps(call); })) {
    Free(call->request.bytes);
    call->charge.reset();
    if (!boards) End(call, std::unexpected(ExecutorFull(call->request.caller.tenant)));
  }
  return call;
}

std::expected<TenantBudget::Charge, Failure> CompileFlow::Hold(const std::string& tenant, std::size_t bytes) {
  if (auto charge = pending_.Take(tenant, bytes)) return std::move(*charge);
  ++parts_.metrics.counts.refused;
  return std::unexpected(NoMemoryFor(tenant, options_.max_pending_bytes));
}

// While a module is decoded it takes many times the memory of its bytes.
std::expected<std::size_t, Failure> CompileFlow::MemoryToDecode(const v1::CompileRequest& request) const {
  const ir::ModuleSize size = ir::MeasureModule(request.module());
  if (auto over = OverLimit(size, request.module().size(), options_.limits)) return std::unexpected(std::move(*over));
  return size.memory > ir::kMaxModuleMemory ? 0 : size.memory + size.decoded;  // that much is refused before it is taken
}

// Large modules wait for their turn to be decoded, unless they are cancelled. They wait on threads that do nothing else.
std::expected<ResolvedRequest, Failure> CompileFlow::ResolveInTurn(const v1::CompileRequest& request, std::size_t memory, CallNotes* notes,
                                                                   const std::atomic<bool>* cancelled, WantsProgram wants_program) {
  const std::string ptxas = PtxasVersion();  // which may take a while, before others are kept out
  if (memory <= kSmallModule) return Resolve(request, ptxas, options_.limits, notes, wants_program);
  const auto place = decoding_.Enter(memory, [&] { return closed_ || (cancelled != nullptr && *cancelled); });
  if (!place) return std::unexpected(closed_ ? Draining() : Cancelled());
  return Resolve(request, ptxas, options_.limits, notes, wants_program);
}

std::expected<CompileFlow::Keys, Failure> CompileFlow::KeysOf(const v1::CompileRequest& request) {
  const auto memory = MemoryToDecode(request);
  if (!memory) return std::unexpected(memory.error());
  auto resolved = ResolveInTurn(request, *memory, nullptr, nullptr, WantsProgram::kYes);
  if (!resolved) return std::unexpected(std::move(resolved.error()));
  return Keys{resolved->key, *resolved->program};
}

// Nobody else knows the call yet.
std::optional<Failure> CompileFlow::Accept(Call& call) {
  const std::string& tenant = call.request.caller.tenant;
  if (!call.request.part_of_another) {
    auto begun = parts_.quotas.Begin(tenant);
    call.counted = begun.has_value();
    if (!begun) return std::move(begun.error());
  }
  if (call.request.held) {
    call.charge.emplace();
    return std::nullopt;
  }
  auto charge = Hold(tenant, call.request.bytes.size());
  if (!charge) {
    Free(call.request.bytes);
    return std::move(charge.error());
  }
  call.charge = std::move(*charge);
  return std::nullopt;
}

void CompileFlow::Steps(const std::shared_ptr<Call>& call) {
  std::string bytes = std::move(call->request.bytes);
  TenantBudget::Charge charge = std::move(*call->charge);
  if (call->ended) return;  // its client has gone
  call->request.notes->Mark("dispatch");
  if (AnswerAsBefore(call, bytes)) return;

  // 1. The request's bytes become a message.
  v1::CompileRequest request;
  if (auto read = ReadMessage(bytes, request); !read) return End(call, std::unexpected(std::move(read.error())));
  Free(bytes);
  const auto memory = MemoryToDecode(request);
  if (!memory) return End(call, std::unexpected(memory.error()));
  if (*memory <= kSmallModule) return DecodeAndJoin(call, std::move(request), *memory, std::move(charge));
  const std::string& tenant = call->request.caller.tenant;
  const bool posted = Post(parts_.heavy, tenant, [this, call, request = std::move(request), memory, charge = std::move(charge)]() mutable {
    if (!call->ended) DecodeAndJoin(call, std::move(request), *memory, std::move(charge));
  });
  if (!posted) End(call, std::unexpected(ExecutorFull(tenant)));
}

// Their text runs on the device as it is, and LLVM reads it in a worker.
std::optional<Failure> CompileFlow::MayBringFunctions(const Caller& caller) const {
  auto allowed = parts_.gate.Require(caller, Scope::kRaw, "Compile of functions in other languages");
  if (allowed) return std::nullopt;
  allowed.error().message += ". `kilnd token new --scopes=read,compile,run,raw` gives it, or a row of the file of --access";
  return std::move(allowed.error());
}

void CompileFlow::DecodeAndJoin(const std::shared_ptr<Call>& call, v1::CompileRequest request, std::size_t memory, TenantBudget::Charge charge) {
  // 2. The module is decoded and the key computed.
  const std::uint64_t generation = index_.generation();
  auto resolved = ResolveInTurn(request, memory, call->request.notes.get(), &call->cancelled);
  if (!resolved) return End(call, std::unexpected(std::move(resolved.error())));
  request.set_target(resolved->target);
  const Caller& caller = call->request.caller;
  const cache::Digest kept_under = KeptUnder(caller.tenant, resolved->key);

  // 3. The cache may have it.
  const bool keeps = !request.has_explain();
  call->durable = call->durable && keeps;
  if (keeps && !request.refresh()) {
    for (const cache::Digest& key : {kept_under, FailureKey(kept_under, request.module())}) {
      auto known = FromCache(key, caller.tenant, call->waited);
      if (!known) continue;
      index_.Remember(call->request.digest, key, generation);
      ++parts_.metrics.counts.hits;
      call->request.notes->Mark("cache");
      return End(call, std::move(*known));
    }
    call->request.notes->Mark("cache");
  }
  if (call->request.lookup_only) {
    if (call->request.remember_miss && !request.refresh()) index_.Remember(call->request.digest, kept_under, generation);
    return End(call, std::unexpected(NotCompiled()));
  }

  // 4. It must be compiled: check that somebody still waits for it, that the caller may compile, and that the queue has a place.
  if (call->ended) return;
  if (auto allowed = parts_.gate.Require(caller, Scope::kCompile, "Compile of what is not in the cache"); !allowed) {
    return End(call, std::unexpected(std::move(allowed.error())));
  }
  if (auto may = resolved->has_functions ? MayBringFunctions(caller) : std::nullopt; may) return End(call, std::unexpected(*std::move(may)));
  if (ComesTooLate(call->request.accepted)) return End(call, std::unexpected(Draining()));
  if (auto left = parts_.quotas.MayCompile(caller.tenant); !left) return End(call, std::unexpected(std::move(left.error())));
  if (auto harmless = IsHarmless(kept_under, KindOf(request), caller, request.refresh()); !harmless)
    return End(call, std::unexpected(std::move(harmless.error())));
  if (auto may = MayForward(call->request.via); !may) return End(call, std::unexpected(std::move(may.error())));

  // 5. One flight per key.
  if (keeps && !request.refresh()) index_.Remember(call->request.digest, kept_under, generation);
  Join(call, std::move(request), *resolved, std::move(charge));
}

// A request that was seen before byte for byte, whose result is kept or under way, needs no decoding.
bool CompileFlow::AnswerAsBefore(const std::shared_ptr<Call>& call, std::string_view bytes) {
  const auto key = index_.Find(call->request.digest);
  if (!key) return false;
  if (!call->request.lookup_only && Board(call, *key)) return true;
  const auto full = parts_.admission.Refuses(call->request.caller, SettingsOf(bytes).priority);
  const bool looks = call->request.lookup_only || !full || !index_.WasAbsentSince(call->request.digest, parts_.clock.SteadyNow() - kStaysAbsent);
  const std::string& tenant = call->request.caller.tenant;
  if (auto known = looks ? FromCache(*key, tenant, call->waited) : FromMemory(*key, tenant)) {
    ++parts_.metrics.counts.hits;
    call->request.notes->Mark("cache");
    End(call, std::move(*known));
    return true;
  }
  if (looks) index_.NoteAbsent(call->request.digest, parts_.clock.SteadyNow());
  if (call->request.lookup_only) {
    End(call, std::unexpected(NotCompiled()));
    return true;
  }
  // Under a flood the same requests come again and again, so refusing them must be cheap.
  if (!full || draining_) return false;
  ++parts_.metrics.counts.refused;
  End(call, std::unexpected(ToFailure(*full)));
  return true;
}

bool CompileFlow::BoardsAsBefore(const std::shared_ptr<Call>& call) {
  const auto key = index_.Find(call->request.digest);
  return key && !call->request.lookup_only && Board(call, *key);
}

// Not streams, which must hear of the stages, nor what has flights of its own (FlightKey).
bool CompileFlow::Board(const std::shared_ptr<Call>& call, const cache::Digest& key) {
  if (call->request.on_stage || !call->request.caller.May(Scope::kCompile)) return false;
  if (options_.forwards && !call->request.via.empty()) return false;
  auto waiter = WaiterOf(call, nullptr);
  const auto ticket = flights_.JoinExisting(key, waiter);
  if (!ticket) return false;
  ++parts_.metrics.counts.joined;
  {
    cache::MutexLock lock(call->mutex);
    call->ticket = *ticket;
  }
  if (call->cancelled) Cancel(call);
  return true;
}

std::optional<Outcome> CompileFlow::FromMemory(const cache::Digest& kept_under, std::string_view tenant) {
  auto hit = parts_.cache.GetWithoutBlocking(kept_under);
  if (!hit) return std::nullopt;
  return OutcomeFrom(hit->entry, tenant, v1::MEMORY, hit->durable);
}

std::optional<Outcome> CompileFlow::FromCache(const cache::Digest& kept_under, std::string_view tenant, cache::Waited& waited) {
  auto hit = parts_.cache.Get(kept_under, waited);
  if (!hit) return std::nullopt;
  if (hit->outside) parts_.store_keeper.Note(std::string(tenant), hit->entry.sealed().size());
  const v1::Origin origin = hit->outside ? v1::CLUSTER : hit->read_only ? v1::BUNDLE : hit->level == 0 ? v1::MEMORY : v1::DISK;
  return OutcomeFrom(hit->entry, tenant, origin, hit->durable);
}

// `starts` says at the end whether this call's request was the one that was compiled; null: it was not.
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

void CompileFlow::Join(const std::shared_ptr<Call>& call, v1::CompileRequest request, const ResolvedRequest& resolved, TenantBudget::Charge charge) {
  const cache::Digest kept_under = KeptUnder(call->request.caller.tenant, resolved.key);
  const cache::Digest flight_key = FlightKey(kept_under, request, options_.forwards ? call->request.via : std::string_view());
  if (call->request.on_stage) {
    cache::MutexLock lock(call->mutex);
    if (call->ended) return;  // with who listens
    call->listens.emplace(flight_key, stages_.Subscribe(flight_key, call->request.on_stage));
    call->request.on_stage("queued");
  }
  const auto starts = std::make_shared<std::atomic<bool>>(false);
  Flights::Joined joined = flights_.Join(flight_key, WaiterOf(call, starts));
  {
    cache::MutexLock lock(call->mutex);
    call->ticket = joined.ticket;
  }
  if (joined.flight) {
    *starts = true;
    Launch(std::shared_ptr<Compile>(new Compile{resolved.key, kept_under, call->request.digest, index_.generation(), resolved.name, resolved.ptxas,
                                                resolved.portable, call->request.id, call->request.caller, call->request.notes, std::move(request),
                                                std::move(charge), std::move(*joined.flight), call->request.via, call->waited}));
  } else {
    ++parts_.metrics.counts.joined;
    parts_.admission.Promote(flight_key, request.priority());
  }
  if (call->cancelled) Cancel(call);
}

void CompileFlow::Launch(std::shared_ptr<Compile> compile) {
  // Between the look in the cache and the join another flight may have landed.
  if (!compile->request.has_explain() && !compile->request.refresh()) {
    if (auto hit = parts_.cache.GetWithoutBlocking(compile->kept_under)) {
      if (auto known = OutcomeFrom(hit->entry, compile->caller.tenant, v1::MEMORY, hit->durable)) {
        return compile->flight.Finish(std::move(*known));
      }
    }
  }
  if (options_.forwards) return Forward(std::move(compile));
  // 6. The queue for the workers.
  auto job = std::make_unique<Job>();
  job->key = compile->flight.key();
  job->request_id = compile->request_id;
  job->caller = compile->caller;
  job->priority = compile->request.priority();
  job->work.set_id(++last_job_);
  job->work.mutable_request()->Swap(&compile->request);
  job->work.set_timeout_seconds(std::chrono::duration<double>(options_.compile_limit).count());
  job->stop = compile->flight.stop_token();
  job->on_stage = [this, key = job->key](std::string_view stage) { stages_.Publish(key, stage); };
  // Checks again when the job's turn has come. While it waited, others may have used up the quota, or explained compiles of this program,
  // which are separate flights, may have killed their workers.
  job->may_begin = [this, caller = job->caller, kept_under = compile->kept_under, kind = KindOf(job->work.request()),
                    refresh = job->work.request().refresh()] {
    auto may = IsHarmless(kept_under, kind, caller, refresh);
    return may ? parts_.quotas.MayCompile(caller.tenant) : may;
  };
  // Not on the worker's thread, which has to start the next job. But usage is charged and a crash noted before.
  if (parts_.leases != nullptr && !job->work.request().has_explain()) {
    job->is_ours = [this, compile, refresh = job->work.request().refresh()] { return IsOurs(*compile, refresh); };
  }
  // When its turn has come, since the PTX would take memory while the job waits.
  job->prepare = [this, compile, work = &job->work] {
    compile->ptx = FindPtx(*compile, work->request());
    if (compile->ptx) work->mutable_portable()->Swap(compile->ptx->reply.mutable_artifact());
  };
  job->had_place = compile->again;
  job->done = [this, compile, work = &job->work](JobOutcome outcome) {
    if (outcome.end == JobOutcome::End::kElsewhere) {
      compile->request.Swap(work->mutable_request());
      return parts_.executor.PostFirst([this, compile] { AwaitOthers(compile); });
    }
    parts_.quotas.ChargeCompile(compile->caller.tenant, outcome.ran);
    compile->request.Swap(work->mutable_request());
    if (compile->ptx) compile->ptx->reply.mutable_artifact()->Swap(work->mutable_portable());
    if (compile->ptx && IsRefused(outcome)) return parts_.executor.PostFirst([this, compile] { LaunchAnew(compile); });
    if (outcome.end == JobOutcome::End::kDied) return Land(*compile, std::move(outcome));
    parts_.executor.PostFirst([this, compile, outcome = std::move(outcome)]() mutable { Land(*compile, std::move(outcome)); });
  };
  if (const auto queued = parts_.admission.Submit(job); !queued) {
    ++parts_.metrics.counts.refused;
    compile->flight.Finish(std::unexpected(closed_ ? Draining() : ToFailure(queued.error())));
  }
}

void CompileFlow::Cancel(const std::shared_ptr<Call>& call) {
  call->cancelled = true;
  Flights::Ticket ticket;
  {
    cache::MutexLock lock(call->mutex);
    ticket = call->ticket;
  }
  flights_.Leave(ticket);
  End(call, std::unexpected(Cancelled()));  // wherever it is: its client has gone, and may call again before a thread has come to it
}

void CompileFlow::EndOnceDurable(const std::shared_ptr<Call>& call, Outcome outcome) {
  if (call->ended) return;  // its client has gone, and kilnd perhaps goes
  const cache::Digest kept_under = KeptUnder(call->request.caller.tenant, outcome->key);
  call->durable = false;
  ++committing_;
  auto shared = std::make_shared<Outcome>(std::move(outcome));
  parts_.executor.PostFirst([this, call, kept_under, shared] {  // which may ask the store
    parts_.cache.MakeDurable(kept_under, [this, call, shared](const std::expected<void, cache::Error>& kept) {
      (*shared)->durable = kept.has_value();
      parts_.executor.PostFirst([this, call, shared] {
        call->request.notes->Mark("commit");
        End(call, std::move(*shared));
        if (--committing_ == 0) committing_.notify_all();
      });
    });
  });
}

void CompileFlow::AwaitCommits() {
  if (parts_.upstream != nullptr) parts_.upstream->AwaitIdle();
  for (std::size_t left = committing_; left > 0; left = committing_) committing_.wait(left);
}

void CompileFlow::End(const std::shared_ptr<Call>& call, Outcome outcome) {
  if (outcome && !outcome->durable && call->durable) return EndOnceDurable(call, std::move(outcome));
  if (call->ended.exchange(true)) return;
  {
    cache::MutexLock lock(call->mutex);
    if (call->listens) stages_.Unsubscribe(call->listens->first, call->listens->second);
  }
  if (call->counted) parts_.quotas.End(call->request.caller.tenant);  // before the client may call again
  auto done = std::move(call->request.done);
  done(std::move(outcome));
  --calls_;
}

void CompileFlow::Lookup(const cache::Digest& key, const std::string& tenant, std::move_only_function<void(Outcome)> done) {
  ++parts_.metrics.counts.requests;
  auto shared = std::make_shared<std::move_only_function<void(Outcome)>>(std::move(done));
  const bool posted = Post(parts_.executor, tenant, [this, key, tenant, shared] {
    cache::Waited waited{.asker = tenant};
    if (auto reply = FromCache(KeptUnder(tenant, key), tenant, waited)) {
      ++parts_.metrics.counts.hits;
      return (*shared)(std::move(*reply));
    }
    (*shared)(std::unexpected(Failure{.kind = Kind::kNotFound, .message = fmt::format("nothing is known under the key {}", key.ToHex())}));
  });
  if (!posted) (*shared)(std::unexpected(ExecutorFull(tenant)));
}

}  // namespace kiln::server
