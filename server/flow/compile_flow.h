// SPDX-License-Identifier: Apache-2.0
//
// One request from its bytes to its reply: the numbered steps of a compile.
//
// Threads. FindHot and Start return at once and may be called from gRPC's threads. The steps run on the executor; from a large module's
// decoding on they run on the heavy one, where it may wait for others to end (DecodingRoom). A request's `done` is called exactly once, on any of
// these threads or on the one that cancels; it should only hand over.
//
// Cancelling detaches one request. The compile goes on for the others who wait for the same key; when nobody is left the
// flight's stop token fires and the worker that runs it is killed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/leases.h"
#include "cache/mutex.h"
#include "cache/single_flight.h"
#include "cache/tiered.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/service.pb.h"
#include "server/access/caller.h"
#include "server/access/gate.h"
#include "server/access/quotas.h"
#include "server/config/accept_unsigned.h"
#include "server/config/request_limits.h"
#include "server/flow/store_keeper.h"
#include "server/queue/admission.h"
#include "server/queue/executor.h"
#include "server/queue/tenant_budget.h"
#include "server/queue/tenant_pacer.h"
#include "server/reply/reply.h"
#include "server/reply/sealer.h"
#include "server/reply/tenant_key.h"
#include "server/telemetry/call_record.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/reproducers.h"
#include "server/telemetry/stage_board.h"
#include "server/telemetry/telemetry.h"
#include "server/upstream/peer.h"
#include "server/wire/decoding_room.h"
#include "server/wire/request_index.h"
#include "server/wire/request_key.h"

namespace kiln::server {

class CompileFlow {
 public:
  struct Options {
    std::chrono::milliseconds compile_limit{120'000};  // of one job in a worker
    std::uint64_t worker_memory_bytes = 0;
    std::chrono::milliseconds suspicious_after{30'000};     // a compile that is cancelled after this time leaves a reproducer
    std::size_t max_pending_bytes = std::size_t{64} << 20;  // of requests under way, and again of the modules that are being decoded
    std::chrono::microseconds between_decodes{25'000};      // of requests that are refused unless the store has their results
    AcceptUnsigned accept_unsigned = AcceptUnsigned::kOfNobody;
    RequestLimits limits;
    std::string build_id;
    std::function<std::string()> ptxas_version;  // asked on the executor, once it is needed
    bool forwards = false;                       // this host has no workers: its upstream kilnd compiles
  };
  struct Parts {
    cache::TieredCache& cache;
    Admission& admission;
    Executor& executor;
    Executor& heavy;  // what may wait there for memory: modules that take much of it, and puts
    Reproducers& reproducers;
    Telemetry& telemetry;
    const Gate& gate;
    Metrics& metrics;
    const Sealer& sealer;
    Quotas& quotas;
    StoreKeeper& store_keeper;
    const cache::Clock& clock;
    cache::Leases* leases = nullptr;  // among the hosts that share a store; null: there is none
    Peer* upstream = nullptr;         // null: there is none
  };

  struct Request {
    std::string id;
    Caller caller;
    std::string bytes;      // a serialized CompileRequest
    cache::Digest digest;   // of the bytes
    bool accepted = false;  // before a drain began: it goes through while there is grace
    bool lookup_only = false;
    bool durable = false;                        // whatever the bytes say: answered once the store has the result, or could not take it
    bool part_of_another = false;                // which Quotas counts already
    bool held = false;                           // its bytes are counted already (Hold), as those of the call that it is a part of
    bool remember_miss = false;                  // lookups: the same bytes are compiled next, and then looked up again by others
    std::string via = {};                        // the kilnds that forwarded it (via.h)
    std::shared_ptr<CallNotes> notes = nullptr;  // told of the stages; null: nobody reads them
    StageBoard::Listener on_stage;               // may be empty
    std::move_only_function<void(Outcome)> done;
  };
  // One request under way. Cancel may be called at any time; `done` is then called with kCancelled unless it was before.
  class Call;

  CompileFlow(Options options, Parts parts);

  // From memory, or nothing: where the store has yet to take it and the caller wants to wait for that, too.
  using WantsDurable = std::function<bool()>;
  std::optional<Outcome> FindHot(const cache::Digest& request, std::string_view tenant, const WantsDurable& wants_durable);
  std::optional<Outcome> FindHotKey(const cache::Digest& key, std::string_view tenant);

  // Why a request is refused before it is decoded. Under a flood kilnd would spend its time on decoding requests that are then refused. So
  // while the queue has no place for the tenant and priority, three things are done instead: a known request that is neither in memory nor
  // under way is looked for in the store, at most once a second if it is not there; a few of the unknown requests are decoded, since the
  // store may have their results; the rest is refused.
  std::optional<Failure> RefusesUnread(const cache::Digest& request, std::string_view bytes, const Caller& caller);

  std::shared_ptr<Call> Start(Request request);
  void Cancel(const std::shared_ptr<Call>& call);

  // The key of a request's result, and that of its program; on the caller's thread, which may have to wait for memory to decode the module.
  struct Keys {
    cache::Digest result, program;
  };
  std::expected<Keys, Failure> KeysOf(const v1::CompileRequest& request);

  // Of the ptxas that keys name; asked on the caller's thread, once it is needed.
  std::string PtxasVersion();

  // A reply known under its key, from any tier; on the executor.
  void Lookup(const cache::Digest& key, const std::string& tenant, std::move_only_function<void(Outcome)> done);

  // The entry that is kept for a tenant, for a kilnd downstream; from this host's own tiers.
  using FetchEnd = std::move_only_function<void(std::expected<cache::Entry, Failure>)>;
  void Fetch(const cache::Digest& kept_under, const std::string& tenant, FetchEnd done);

  // Keeps what another compiler of the same build made, as the caller's. `done` is called once it is durable, with its key, or with why not.
  using PutEnd = std::move_only_function<void(std::expected<cache::Digest, Failure>)>;
  void Put(const Caller& caller, v1::PutRequest put, PutEnd done);

  // Reserves so many bytes of the memory for requests under way.
  std::expected<TenantBudget::Charge, Failure> Hold(const std::string& tenant, std::size_t bytes);

  // False, and counted, where the executor has no place for the tenant.
  bool Post(Executor& executor, const std::string& tenant, Executor::Task task);

  // From now on nothing new is compiled but for requests that were accepted before; what is known is still served.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // The grace period has ended, for those too. Before the workers stop.
  void Close();
  bool closed() const { return closed_; }
  bool ComesTooLate(bool accepted) const { return closed_ || (draining_ && !accepted); }
  // Whether another ptxas is there by now, on the executor: what is answered without decoding says nothing of that.
  void LookAtPtxas();

  // Called once every call has ended: waits until nothing is waiting for the store. Waiting work uses the executor.
  void AwaitCommits();

  std::size_t calls() const { return calls_; }
  std::size_t flights() const { return flights_.flights(); }
  bool forwards() const { return options_.forwards; }

 private:
  using Made = std::expected<Reply, Failure>;
  using Flights = cache::SingleFlight<Made>;
  struct Compile;

  std::expected<std::size_t, Failure> MemoryToDecode(const v1::CompileRequest& request) const;
  enum class WorkKind : std::uint8_t { kCompile, kEstimate };
  static WorkKind KindOf(const v1::CompileRequest& request) { return request.explain().has_estimate() ? WorkKind::kEstimate : WorkKind::kCompile; }
  cache::Digest CrashKey(const cache::Digest& kept_under, WorkKind kind) const;
  // Whether the program is harmless to workers, as far as is known. An admin's refresh is tried in any case.
  std::expected<void, Failure> IsHarmless(const cache::Digest& kept_under, WorkKind kind, const Caller& caller, bool refresh);
  std::expected<ResolvedRequest, Failure> ResolveInTurn(const v1::CompileRequest& request, std::size_t memory, CallNotes* notes,
                                                        const std::atomic<bool>* cancelled, WantsProgram wants_program = WantsProgram::kNo);
  std::optional<Failure> Accept(Call& call);
  void Steps(const std::shared_ptr<Call>& call);
  std::optional<Failure> MayBringFunctions(const Caller& caller) const;
  void DecodeAndJoin(const std::shared_ptr<Call>& call, v1::CompileRequest request, std::size_t memory, TenantBudget::Charge charge);
  bool AnswerAsBefore(const std::shared_ptr<Call>& call, std::string_view bytes);
  bool BoardsAsBefore(const std::shared_ptr<Call>& call);
  bool Board(const std::shared_ptr<Call>& call, const cache::Digest& key);
  std::optional<Outcome> Hot(const cache::Digest& kept_under, std::string_view tenant, const WantsDurable& wants_durable);
  std::optional<Outcome> FromCache(const cache::Digest& kept_under, std::string_view tenant, cache::Waited& waited);
  std::optional<Outcome> FromMemory(const cache::Digest& kept_under, std::string_view tenant);
  Flights::Waiter WaiterOf(const std::shared_ptr<Call>& call, std::shared_ptr<std::atomic<bool>> starts);
  void Join(const std::shared_ptr<Call>& call, v1::CompileRequest request, const ResolvedRequest& resolved, TenantBudget::Charge charge);
  void Launch(std::shared_ptr<Compile> compile);
  struct Ptx;
  std::optional<Ptx> FindPtx(Compile& compile, const v1::CompileRequest& request);
  void LaunchAnew(const std::shared_ptr<Compile>& compile);
  void KeepPtx(const Compile& compile, const v1::CompileReply& ptx);
  void Land(Compile& compile, JobOutcome outcome);
  bool IsOurs(Compile& compile, bool refresh);
  void AwaitOthers(const std::shared_ptr<Compile>& compile);
  void LookAgain(const std::shared_ptr<Compile>& compile);
  // compile_forwarded.cc
  std::expected<void, Failure> MayForward(std::string_view via) const;
  void Forward(std::shared_ptr<Compile> compile);
  void LandForwarded(const std::shared_ptr<Compile>& compile, const Peer::Answer& answer);
  void AskForRefusal(const std::shared_ptr<Compile>& compile, Failure said);
  Made RefusalFrom(Compile& compile, const Peer::Answer& answer, const Failure& said);
  Made KeepForwarded(Compile& compile, const grpc::ByteBuffer& reply);
  std::unexpected<Failure> Distrust(Compile& compile, std::string_view why);
  void EndForwarded(Compile& compile, Made made);
  struct ToPut;
  std::expected<ToPut, Failure> PrepareToPut(const Caller& caller, v1::PutRequest put);
  std::expected<void, Failure> MayPut(const Caller& caller, const v1::PutRequest& put, const std::string& key) const;
  Made Judge(Compile& compile, JobOutcome& outcome);
  Made Keep(Compile& compile, JobOutcome& outcome);
  Failure Refusal(Compile& compile, JobOutcome& outcome);
  void Remember(const Compile& compile, const Failure& failure);
  Failure Defect(Compile& compile, const JobOutcome& outcome, const std::string& cause);
  void EndOnceDurable(const std::shared_ptr<Call>& call, Outcome outcome);
  void End(const std::shared_ptr<Call>& call, Outcome outcome);

  const Options options_;
  const Parts parts_;
  RequestIndex index_;
  cache::Mutex ptxas_mutex_;
  std::optional<std::string> ptxas_ KILN_GUARDED_BY(ptxas_mutex_);  // its version, which is in the keys of the index
  std::atomic<bool> looking_at_ptxas_ = false;
  StageBoard stages_;
  Flights flights_;
  std::atomic<std::uint64_t> last_job_ = 0;
  std::atomic<std::size_t> calls_ = 0;
  std::atomic<std::size_t> committing_ = 0;  // durable calls whose results the store has yet to take, also of clients that have gone
  TenantBudget pending_{options_.max_pending_bytes};
  DecodingRoom decoding_{options_.max_pending_bytes};
  TenantPacer decodes_;  // of requests while the queue is full
  std::atomic<bool> draining_ = false;
  std::atomic<bool> closed_ = false;
};

}  // namespace kiln::server
