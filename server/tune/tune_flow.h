// SPDX-License-Identifier: Apache-2.0
//
// One Tune from its first message to its record: the numbered steps.
//
// Who does not wait for the record (TuneMode) is told as soon as the candidates are in order, and leaves. A tuning that goes on behind its callers
// has a place among the others, memory for its tensors, and its tenant's quotas like any other; it ends by itself, or when the daemon drains.
//
// Threads. Begin, Add and Run are called by one thread at a time (gRPC's, for one call) and return at once. Keys are computed and the cache is
// asked on the executor for heavy work. Each tuning under way has a thread of its own (tuning.h), which tells all calls that share it.
// `on_progress` and `done` are called on any of these threads, `done` exactly once, or on the one that cancels; they should only hand over.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "cache/tiered.h"
#include "kiln/v1/service.pb.h"
#include "kiln/v1/tune.pb.h"
#include "server/access/caller.h"
#include "server/access/quotas.h"
#include "server/flow/compile_flow.h"
#include "server/flow/run_flow.h"
#include "server/flow/store_keeper.h"
#include "server/pool/device_pool.h"
#include "server/queue/executor.h"
#include "server/queue/tenant_budget.h"
#include "server/reply/failure.h"
#include "server/reply/sealer.h"
#include "server/telemetry/telemetry.h"
#include "server/tune/data/tune_tensors.h"
#include "server/tune/device_bench.h"
#include "server/tune/tuning.h"

namespace kiln::server {

class TuneFlow {
 public:
  struct Options {
    unsigned tunings = 4;                         // under way
    unsigned candidates = 4096;                   // of one
    unsigned compiles = 1;                        // of candidates at one time
    double device_share = 0.9;                    // of the time, that tuning may keep a device busy
    unsigned energy = 4;                          // candidates, the fastest, of which it is measured unless a caller says otherwise
    std::chrono::milliseconds limit{300'000};     // of one tuning
    std::chrono::milliseconds run_limit{60'000};  // of one measurement
    std::chrono::milliseconds transfer{60'000};   // of the candidates and tensors from the client
    TuneTensors::Limits tensors;
    std::string build_id;
  };
  struct Parts {
    CompileFlow& compile;
    RunFlow& runs;
    DevicePool& devices;
    Executor& heavy;
    cache::TieredCache& cache;
    const Sealer& sealer;
    Quotas& quotas;
    StoreKeeper& store_keeper;
    Telemetry& telemetry;
    const cache::Clock& clock;
  };
  using Told = std::expected<v1::TuneProgress, Failure>;  // with the record
  using Done = std::move_only_function<void(Told)>;
  class Call;

  TuneFlow(Options options, Parts parts);
  ~TuneFlow();

  std::chrono::milliseconds transfer() const { return options_.transfer; }

  // Why a tuning does not begin, by its first message alone.
  std::optional<Failure> Check(const v1::TuneStart& start) const;

  // Checks what can be checked at once, and takes memory for the tensors.
  std::expected<std::shared_ptr<Call>, Failure> Begin(Caller caller, std::string request_id, bool accepted, v1::TuneStart start);
  std::optional<Failure> Add(Call& call, v1::TuneCandidate candidate);
  std::optional<Failure> Add(Call& call, std::string_view data);

  // All has come.
  void Run(const std::shared_ptr<Call>& call, Tuning::OnProgress on_progress, Done done);

  // The tuning of the caller's tenant that has that key, or its record.
  std::shared_ptr<Call> Watch(Caller caller, std::string request_id, Quotas::InFlight counted, const cache::Digest& key,
                              Tuning::OnProgress on_progress, Done done);

  // May be called at any time; `done`, where Run was called, is then called with kCancelled unless it was before. A tuning that nobody waits
  // for any more ends.
  void Cancel(const std::shared_ptr<Call>& call);

  // Ends all tunings, and waits for their ends.
  void Close();

  std::size_t calls() const { return calls_; }

  // Of tunings that measure; those that only rank are no tunings here.
  v1::TuningStats Stats();

 private:
  // A tuning under way and those who wait for it.
  struct Flight {
    std::shared_ptr<Tuning> tuning;
    std::vector<std::shared_ptr<Call>> calls;
    cache::Digest key;  // of the record
    std::string tenant;
    bool ranks_only = false;
    bool goes_on = false;                     // though nobody is left
    std::optional<v1::TuneProgress> choices;  // once they are known
    std::optional<v1::TuneProgress> news;     // the latest, for who comes now
  };
  struct Thread {
    std::atomic<bool> over = false;
    std::jthread thread;
  };

  void Steps(const std::shared_ptr<Call>& call);
  std::expected<void, Failure> Complete(Call& call);
  struct Keys {
    cache::Digest record;  // of all that decides what is found
    cache::Digest near;    // the same without the driver and the compiler
  };
  std::expected<Keys, Failure> KeysOf(Call& call);
  std::optional<v1::TuneRecord> Sufficing(const Call& call, const cache::Entry& entry) const;
  std::optional<cache::TieredCache::Hit> FromOthers(const Call& call, const cache::Entry& own, cache::Waited& waited);
  std::optional<v1::TuneProgress> FromCache(Call& call);
  v1::TuneProgress ToldFrom(const cache::TieredCache::Hit& hit, v1::TuneRecord record) const;
  bool FromNear(Call& call);
  void Ordered(const cache::Digest& flight, const v1::TuneProgress& choices);
  bool MayShare(const std::shared_ptr<Call>& call, std::optional<v1::TuneProgress>& told) KILN_REQUIRES(mutex_);
  std::optional<Failure> Launch(const std::shared_ptr<Call>& call, std::optional<v1::TuneProgress>& told) KILN_REQUIRES(mutex_);
  void Join(const std::shared_ptr<Call>& call);
  void JoinUntuned(const std::shared_ptr<Call>& call, std::string why);
  static v1::TuneProgress For(const Call& call, v1::TuneProgress told);
  void BeginWatch(const std::shared_ptr<Call>& call);
  static v1::EstimateOptions EstimateOf(const Call& call);
  std::vector<DevicePool::Found> OthersOf(const Call& call) const;
  std::shared_ptr<Tuning> Make(Call& call);
  void Fly(const std::shared_ptr<Call>& first, const std::shared_ptr<Tuning>& tuning, TenantBudget::Charge place);
  static cache::Digest FlightOf(const Call& call);
  std::optional<TenantBudget::Charge> TakePlace(TenantBudget& places, const std::string& tenant);
  void Log(const Call& first, const std::expected<v1::TuneRecord, Failure>& record, double ms) const;
  std::vector<std::shared_ptr<Call>> Listeners(const cache::Digest& flight, const v1::TuneProgress& news);
  std::vector<std::shared_ptr<Call>> EndFlight(const cache::Digest& flight, const Tuning& tuning);
  v1::TuneRecord Keep(const Call& call, v1::TuneRecord record);
  void KeepNear(const Call& call, v1::TuneRecord record);
  void Reap() KILN_REQUIRES(mutex_);
  void End(const std::shared_ptr<Call>& call, Told told);

  // Since the start.
  struct Counts {
    std::atomic<std::uint64_t> finished = 0, failed = 0, cancelled = 0, refused = 0, candidates = 0;
    std::atomic<std::uint64_t> device_microseconds = 0;
  };
  void Count(const std::expected<v1::TuneRecord, Failure>& end);

  const Options options_;
  const Parts parts_;
  Counts counts_;
  CompileShare share_;
  DeviceTurns turns_;
  TenantBudget places_;    // of tunings under way
  TenantBudget rankings_;  // the same of those that only rank
  std::atomic<std::size_t> calls_ = 0;
  std::atomic<std::uint64_t> sessions_ = 0;
  cache::Mutex mutex_;
  std::map<cache::Digest, Flight> flights_ KILN_GUARDED_BY(mutex_);
  std::map<cache::Digest, Keys> known_ KILN_GUARDED_BY(mutex_);  // keys, by the digest of what was sent: nothing need be decoded
  std::list<Thread> threads_ KILN_GUARDED_BY(mutex_);
  bool closed_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
