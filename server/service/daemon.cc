// SPDX-License-Identifier: Apache-2.0
#include "server/service/daemon.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include "cache/memory_tier.h"
#include "cache/sqlite/sqlite_slot.h"
#include "compiler/key.h"
#include "server/access/authenticator.h"
#include "server/access/gate.h"
#include "server/door/call_watch.h"
#include "server/pool/ptxas.h"
#include "server/pool/zygote.h"
#include "server/queue/heartbeat.h"
#include "server/reply/trusted_keys.h"
#include "server/service/bundles.h"
#include "server/service/front.h"
#include "server/service/ourselves.h"
#include "server/service/shared_stores.h"
#include "server/service/upstream.h"
#include "server/system/deadline.h"
#include "server/system/file_watch.h"
#include "server/system/free_memory.h"
#include "server/system/script.h"
#include "server/system/service_manager.h"
#include "server/system/system_clock.h"
#include "server/telemetry/call_log.h"
#include "server/telemetry/grpc_lines.h"
#include "server/telemetry/journal.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/monitor.h"
#include "server/telemetry/self_description.h"
#include "server/telemetry/spans.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
constexpr unsigned kExecutorThreads = 4, kHeavyThreads = 2;
constexpr std::chrono::milliseconds kJournalPatience{100};  // of /metrics with a disk that stands still
constexpr std::chrono::milliseconds kLastBytes{200};        // for the last replies to leave, when no call is under way

}  // namespace

struct Daemon::Parts {
  Parts(Config given)
      : config(std::move(given)),
        telemetry(config.log),
        audit(OpenAuditLog(config)),
        ptxas(config.ptxas, clock),
        zygote({.executable = config.worker_executable,
                .worker_memory_bytes = config.worker_memory_bytes,
                .ptxas = config.ptxas.string(),
                .build_id = std::string(compiler::BuildId()),
                .user = config.worker_user,
                .library_path = config.library_path,
                .on_ready =
                    [this](std::string_view protections) {
                      telemetry.Log(protections.starts_with(kUnconfined) ? Level::kError : Level::kInfo, "workers", {{"protections", protections}});
                    }},
               clock),
        metrics(MetricNames(zygote)),
        journal([this](std::span<const CallRecord> records) { Record(records); }) {}
  // After a start that failed: the description may be waiting for the devices, and the upstream kilnd be about to describe itself.
  ~Parts() {
    if (devices) devices->Close();
    if (upstream) upstream->peer().Close();
  }

  const Config config;
  Telemetry telemetry;
  std::unique_ptr<Telemetry> audit;  // null: into the log
  SystemClock clock;
  GrpcLines grpc_lines{telemetry, clock};
  UniqueFd claim;
  UniqueFd inherited;  // a listening socket that systemd made
  Ptxas ptxas;
  Zygote zygote;
  Metrics metrics;
  std::unique_ptr<SpanFile> spans;
  Journal journal;
  cache::SqliteSlot* disk = nullptr;            // of the cache
  std::optional<cache::SigningKey> unkept_key;  // made because the kept key could not be read, or none could be kept
  std::atomic<bool> key_is_kept = false;        // since then: it is that of the next start, too
  cache::BundleTier* bundles = nullptr;         // of the cache; null: there are none
  std::unique_ptr<SharedStores> shared;         // null until the cache is open
  std::unique_ptr<Upstream> upstream;           // null: there is none
  std::unique_ptr<cache::TieredCache> cache;
  std::unique_ptr<Authenticator> authenticator;
  std::unique_ptr<Gate> gate;
  std::unique_ptr<Sealer> sealer;
  std::unique_ptr<FileWatch> trusted_keys;  // null: there is no such file
  std::unique_ptr<Reproducers> reproducers;
  std::unique_ptr<Maintenance> maintenance;
  std::unique_ptr<Quotas> quotas;
  std::unique_ptr<StoreKeeper> store_keeper;
  std::unique_ptr<Admission> admission;
  std::unique_ptr<CompileFlow> flow;
  std::unique_ptr<Executor> executor, heavy;
  std::unique_ptr<Heartbeat> heartbeat;
  std::unique_ptr<WorkerPool> workers;
  std::unique_ptr<DevicePool> devices;
  std::unique_ptr<RunFlow> runs;
  std::unique_ptr<TuneFlow> tunings;
  std::unique_ptr<RankMemory> rankings;
  std::unique_ptr<SpaceFlow> spaces;
  std::unique_ptr<SelfDescription> description;
  std::unique_ptr<TenantBudget> manifests;
  AcceptedCalls accepted;
  std::unique_ptr<Front> front;
  std::atomic<bool> serving = false;
  unsigned busy_looks = 0;           // of Tidy, since the last that did something
  std::unique_ptr<Monitor> monitor;  // last: it asks the others

  void Reload();
  void NoteReload(std::string_view event, std::string_view error) const;
  std::expected<void, std::string> OpenGate();
  std::expected<void, std::string> OpenCache();
  bool Accepts(const cache::Entry& entry);                                                // of the disk
  std::optional<cache::Entry> TakesIn(std::string_view tier, const cache::Entry& entry);  // of other hosts
  std::expected<void, cache::Error> KeepKey();
  std::expected<void, std::string> OpenSealer();
  std::expected<void, std::string> WatchTrustedKeys();
  std::string PtxasVersion();  // that keys name: of whoever compiles
  void MakeFlow();
  std::expected<void, std::string> Serve();
  std::expected<void, std::string> StartMonitor();
  void Record(std::span<const CallRecord> records);
  void NoteGpus(const v1::DeviceList& gpus, std::string_view trouble) const;
  bool DescribeDevices(v1::CapabilitiesReply& reply, std::chrono::seconds patience) const;
  Sample Look() const;
  Probe Health();
  Probe Readiness() const;
};

// Rights that change go into both logs.
void Daemon::Parts::NoteReload(std::string_view event, std::string_view error) const {
  for (const Telemetry* log : {&telemetry, static_cast<const Telemetry*>(audit.get())}) {
    if (log != nullptr) log->Log(error.empty() ? Level::kInfo : Level::kError, event, {{"error", error}});
  }
}

void Daemon::Parts::Reload() {
  for (Telemetry* log : {&telemetry, audit.get()}) {
    if (log != nullptr && !log->Reopen()) telemetry.Log(Level::kError, "log-not-reopened", {{"audit", log == &telemetry ? "no" : "yes"}});
  }
  authenticator->Reload();
  if (trusted_keys) trusted_keys->Reload();
  if (upstream) upstream->Reload();
}

std::expected<void, std::string> Daemon::Parts::OpenGate() {
  auto opened = Authenticator::Open(
      {.tokens = config.tokens, .access = config.access, .on_reload = [this](std::string_view error) { NoteReload("access-reloaded", error); }},
      clock);
  if (!opened) return std::unexpected(std::move(opened.error()));
  authenticator = std::move(*opened);
  gate = std::make_unique<Gate>(*authenticator, audit ? *audit : telemetry, clock);
  return {};
}

std::expected<void, std::string> Daemon::Parts::OpenCache() {
  const auto warn = [this](std::string_view tier, const cache::Error& error) {
    telemetry.Log(Level::kWarning, "cache", {{"tier", tier}, {"error", cache::ToString(error.code)}, {"message", std::string_view(error.message)}});
  };
  std::vector<std::shared_ptr<cache::Tier>> tiers = {
      std::make_shared<cache::MemoryTier>(cache::MemoryTier::Options{.capacity = config.memory_cache_bytes})};
  cache::SqliteSlot::Options options{.store = {.directory = config.state_directory, .capacity = config.disk_cache_bytes}};
  options.store.on_event = [warn](const cache::Error& error) { warn("sqlite", error); };
  options.may_use = [this] { return KeepKey(); };
  options.on_open = [this] { telemetry.Log(Level::kInfo, "store-opened", {{"disk", std::string_view(config.state_directory.native())}}); };
  auto slot = std::make_shared<cache::SqliteSlot>(std::move(options), clock);
  if (const auto opened = slot->Open(); !opened) {
    if (opened.error().code == cache::ErrorCode::kRefused) {
      return std::unexpected(fmt::format("{} (--state-dir)", opened.error().message));
    }
    warn("sqlite", opened.error());  // serves from memory alone, for now
  }
  disk = slot.get();
  tiers.push_back(std::move(slot));
  if (!config.bundles.empty()) {
    auto opened = OpenBundles(config.bundles, telemetry, [this](const cache::Entry& entry) { return sealer->TakeIn(entry, Sealer::From::kBundle); });
    if (!opened) return std::unexpected(std::move(opened.error()));
    bundles = opened->get();
    tiers.push_back(std::move(*opened));
  }
  auto stores = SharedStores::Open(config, telemetry, clock);
  if (!stores) return std::unexpected(std::move(stores.error()));
  shared = std::move(*stores);
  tiers.insert(tiers.end(), shared->tiers().begin(), shared->tiers().end());
  if (config.upstream.endpoint) {
    const Upstream::Host host{compiler::BuildId(), config.workers == 0, config.limits.artifact_bytes, config.state_directory / "upstream-ptxas"};
    auto opened = Upstream::Open(config.upstream, host, telemetry, clock);
    if (!opened) return std::unexpected(std::move(opened.error()));
    upstream = std::move(*opened);
    tiers.push_back(upstream->tier());
  }
  cache::TieredCache::Options behaviour{.on_error = warn};
  behaviour.accept = [this](const cache::Entry& entry) { return Accepts(entry); };
  behaviour.shares = [this] { return !unkept_key || key_is_kept; };
  behaviour.take_in = [this](std::string_view tier, const cache::Entry& entry) { return TakesIn(tier, entry); };
  cache = std::make_unique<cache::TieredCache>(std::move(tiers), clock, std::move(behaviour));
  return {};
}

bool Daemon::Parts::Accepts(const cache::Entry& entry) {
  const auto sealed = sealer->Check(entry);
  if (!sealed) telemetry.Log(Level::kWarning, "forged", {{"key", entry.key().ToHex().substr(0, 16)}, {"why", std::string_view(sealed.error())}});
  return sealed.has_value();
}

std::optional<cache::Entry> Daemon::Parts::TakesIn(std::string_view tier, const cache::Entry& entry) {
  auto taken = sealer->TakeIn(entry, Sealer::From::kStore);
  if (taken) return std::move(*taken);
  telemetry.Log(Level::kWarning, "refused-entry",
                {{"tier", tier}, {"key", entry.key().ToHex().substr(0, 16)}, {"why", std::string_view(taken.error())}});
  return std::nullopt;
}

std::expected<void, std::string> Daemon::Parts::OpenSealer() {
  auto key = cache::SigningKey::LoadOrMake(config.signing_key);
  if (!key && key.error().code == cache::ErrorCode::kRefused) return std::unexpected(std::move(key.error().message));
  if (!key) {
    telemetry.Log(Level::kWarning, "signing-key",
                  {{"error", std::string_view(key.error().message)}, {"instead", "one for as long as this kilnd runs"}});
  }
  const cache::SigningKey signer = key ? std::move(*key) : cache::SigningKey::Make();
  if (!key) {
    unkept_key = signer;
    disk->Close();  // KeepKey reports why, and when the store is available again
  }
  sealer = std::make_unique<Sealer>(signer, Sealer::Options{.host = HostName(), .compiler = std::string(compiler::BuildId())});
  return WatchTrustedKeys();
}

std::expected<void, std::string> Daemon::Parts::WatchTrustedKeys() {
  if (config.trusted_keys.empty()) return {};
  const auto read = [this]() -> std::expected<void, std::string> {
    auto keys = ReadTrustedKeys(config.trusted_keys);
    if (!keys) return std::unexpected(std::move(keys.error()));
    sealer->Trust(std::move(*keys));
    return {};
  };
  auto watch = FileWatch::Start({{config.trusted_keys, read, [this](std::string_view error) { NoteReload("trusted-keys-reloaded", error); }}});
  if (!watch) return std::unexpected(std::move(watch.error()));
  trusted_keys = std::move(*watch);
  return {};
}

// With a key other than that of its results, all results of a store would pass for forged; and at the next start, so would those that are
// put now.
std::expected<void, cache::Error> Daemon::Parts::KeepKey() {
  if (!unkept_key) return {};
  auto kept = unkept_key->Keep(config.signing_key);
  if (kept) key_is_kept = true;
  return kept;
}

std::string Daemon::Parts::PtxasVersion() { return config.workers == 0 ? upstream->PtxasVersion() : ptxas.Version(); }

void Daemon::Parts::MakeFlow() {
  const fs::path scratch = config.state_directory / "transfer";
  std::error_code ignored;
  fs::remove_all(scratch, ignored);
  reproducers = std::make_unique<Reproducers>(Reproducers::Options{.directory = config.state_directory / "reproducers"}, clock);
  maintenance = std::make_unique<Maintenance>(Maintenance::Options{.scratch = scratch,
                                                                   .max_import_bytes = config.disk_cache_bytes,
                                                                   .accept_import = config.accept_put,
                                                                   .build_id = std::string(compiler::BuildId())},
                                              *cache, *disk, *sealer, clock);
  quotas = std::make_unique<Quotas>([this](std::string_view tenant) { return authenticator->LimitsOf(tenant); }, clock,
                                    [this](std::string_view tenant, std::string_view why) { gate->NoteQuota(tenant, why); });
  store_keeper = std::make_unique<StoreKeeper>(*quotas, *maintenance);
  admission = std::make_unique<Admission>(config.queue, config.workers, clock);
  executor = std::make_unique<Executor>(kExecutorThreads, config.request_queue, clock);
  heavy = std::make_unique<Executor>(kHeavyThreads, config.request_queue, clock);
  heartbeat = std::make_unique<Heartbeat>(*executor, clock);
  flow = std::make_unique<CompileFlow>(CompileFlow::Options{.compile_limit = config.compile_limit,
                                                            .worker_memory_bytes = config.worker_memory_bytes,
                                                            .max_pending_bytes = config.request_memory_bytes,
                                                            .between_decodes = BetweenDecodes(std::thread::hardware_concurrency(), config.workers),
                                                            .accept_unsigned = config.accept_unsigned,
                                                            .limits = config.limits,
                                                            .build_id = std::string(compiler::BuildId()),
                                                            .ptxas_version = [this] { return PtxasVersion(); },
                                                            .forwards = config.workers == 0},
                                       CompileFlow::Parts{*cache, *admission, *executor, *heavy, *reproducers, telemetry, *gate, metrics, *sealer,
                                                          *quotas, *store_keeper, clock, shared->leases(), upstream ? &upstream->peer() : nullptr});
  const auto on_replaced = [this](std::string_view request, std::string_view cause) {
    const bool wanted = cause == "cancelled";  // killing is the only way to stop LLVM
    telemetry.Log(wanted ? Level::kDebug : Level::kWarning, "worker-replaced", {{"request", request}, {"cause", cause}});
    metrics.NoteWorkerEnd(cause);
  };
  workers = std::make_unique<WorkerPool>(
      WorkerPoolOptions{.workers = config.workers, .jobs_per_worker = config.jobs_per_worker, .on_replaced = on_replaced}, *admission, zygote, clock);
  devices = std::make_unique<DevicePool>(
      DevicePool::Options{.emulators = config.emulators,
                          .threads = std::thread::hardware_concurrency(),
                          .jobs_per_worker = config.jobs_per_worker,
                          .queue = config.queue,
                          .on_replaced = on_replaced,
                          .on_listed = [this](const v1::DeviceList& gpus, std::string_view trouble) { NoteGpus(gpus, trouble); }},
      zygote, clock);
  runs = std::make_unique<RunFlow>(RunFlow::Options{.call_bytes = config.run_data_bytes,
                                                    .total_bytes = config.run_data_total_bytes,
                                                    .calls = config.run_calls,
                                                    .arguments = config.run_arguments,
                                                    .repeats = config.run_repeats,
                                                    .limit = config.run_limit,
                                                    .transfer = config.run_transfer},
                                   RunFlow::Parts{*flow, *devices, *executor, telemetry, *quotas, metrics, clock});
  const unsigned compilers = config.workers == 0 ? std::thread::hardware_concurrency() : config.workers;
  tunings = std::make_unique<TuneFlow>(TuneFlow::Options{.tunings = config.tunings,
                                                         .candidates = config.tune_candidates,
                                                         .compiles = std::max(1u, compilers * config.tune_workers / 100),
                                                         .device_share = config.tune_device / 100.0,
                                                         .limit = config.tune_limit,
                                                         .run_limit = config.run_limit,
                                                         .transfer = config.run_transfer,
                                                         .tensors = {config.run_data_bytes, config.run_arguments},
                                                         .build_id = std::string(compiler::BuildId())},
                                       TuneFlow::Parts{*flow, *runs, *devices, *heavy, *cache, *sealer, *quotas, *store_keeper, telemetry, clock});
  rankings = std::make_unique<RankMemory>(std::string(compiler::BuildId()), RankMemory::Parts{*flow, *heavy, *cache, *sealer, *store_keeper, clock});
  spaces = std::make_unique<SpaceFlow>(SpaceFlow::Parts{*flow, *tunings, *heavy, *gate});
}

void Daemon::Parts::NoteGpus(const v1::DeviceList& gpus, std::string_view trouble) const {
  std::string names, problems;
  for (const v1::DeviceInfo& gpu : gpus.devices()) {
    const bool always_loose = trouble.empty() && gpu.name().starts_with("hip:");
    names += (names.empty() ? "" : ",") + gpu.name() + (always_loose ? " (loose)" : "");
  }
  for (const std::string& problem : gpus.problems()) problems += (problems.empty() ? "" : "; ") + problem;
  if (names.empty()) {
    telemetry.Log(Level::kInfo, "gpus", {{"found", "none"}, {"why", problems.empty() ? trouble : std::string_view(problems)}});
  } else if (trouble.empty()) {
    telemetry.Log(Level::kInfo, "workers", {{"devices", names}, {"protections", gpus.protections()}});
  } else {
    telemetry.Log(Level::kWarning, "workers", {{"devices", names}, {"protections", gpus.protections()}, {"trouble", trouble}});
  }
}

bool Daemon::Parts::DescribeDevices(v1::CapabilitiesReply& reply, std::chrono::seconds patience) const {
  reply.clear_devices();
  reply.clear_gpu_problems();
  for (v1::DeviceInfo& device : devices->Devices(patience)) *reply.add_devices() = std::move(device);
  for (std::string& problem : devices->Problems()) reply.add_gpu_problems(std::move(problem));
  return devices->listed();
}

std::expected<void, std::string> Daemon::Parts::Serve() {
  description = std::make_unique<SelfDescription>(
      DescribeOurselves(*sealer),
      SelfDescription::Sources{.passes = [this] { return zygote.Passes(); },
                               .ptxas = [this] { return PtxasVersion(); },
                               .devices = [this](auto& reply, auto patience) { return DescribeDevices(reply, patience); }});
  manifests = std::make_unique<TenantBudget>(config.manifest_memory_bytes);
  const KilnService::Parts service{*flow,
                                   *runs,
                                   *tunings,
                                   *rankings,
                                   *spaces,
                                   *devices,
                                   *executor,
                                   *heavy,
                                   *maintenance,
                                   *store_keeper,
                                   *cache,
                                   *admission,
                                   *workers,
                                   metrics,
                                   *quotas,
                                   *description,
                                   clock,
                                   config.accept_put,
                                   config.limits,
                                   config.max_message_bytes,
                                   config.manifest_memory_bytes,
                                   *manifests};
  auto opened = Front::Open({config, *gate, journal, accepted, service, clock}, std::move(inherited));
  if (!opened) return std::unexpected(std::move(opened.error()));
  front = std::move(*opened);
  serving = true;
  telemetry.Log(Level::kInfo, "serving",
                {{"listen", std::string_view(front->address())},
                 {"version", KILN_VERSION},
                 {"compiler", compiler::BuildId()},
                 {"workers", static_cast<std::int64_t>(config.workers)},
                 {"signing-key", sealer->public_key().ToText()},
                 {"disk", !disk->available() ? "none" : std::string_view(config.state_directory.native())}});
  return {};
}

void Daemon::Parts::Record(std::span<const CallRecord> records) {
  for (const CallRecord& record : records) metrics.NoteCall(record);
  if (spans) spans->Write(records);
  LogCalls(telemetry, records);
}

Sample Daemon::Parts::Look() const {
  return {.ready = Readiness().ok,
          .draining = flow->draining(),
          .queued = admission->queued(),
          .queue_capacity = admission->capacity(),
          .flights = flow->flights(),
          .calls = flow->calls(),
          .workers = workers->workers(),
          .workers_busy = workers->busy(),
          .tiers = cache->Report(),
          .leases = shared->leases() != nullptr ? shared->leases()->Stats() : cache::LeaseStats(),
          .devices = devices->Stats(),
          .tunings = tunings->Stats(),
          .records_dropped = journal.dropped()};
}

Probe Daemon::Parts::Health() {
  const bool alive = heartbeat->Alive();
  return {alive, alive ? "ok\n" : "the executor runs nothing any more: restart kilnd, and send its log\n"};
}

// Without a store kilnd serves from memory, and with a full queue it serves hits: both are ready.
Probe Daemon::Parts::Readiness() const {
  const bool draining = flow->draining();
  Probe probe{serving && !draining, draining ? "draining\n" : serving ? "serving\n" : "starting\n"};
  for (const auto& tier : cache->Report()) {
    probe.text += fmt::format("tier {}: {}\n", tier.name, !tier.enabled ? "disabled" : tier.stats.read_only ? "read-only" : "ok");
  }
  probe.text += fmt::format("queue: {} of {}\n", admission->queued(), config.queue);
  return probe;
}

std::expected<void, std::string> Daemon::Parts::StartMonitor() {
  if (!config.trace_file.empty()) {
    auto opened = SpanFile::Open(config.trace_file, config.trace_file_bytes);
    if (!opened) return std::unexpected(std::move(opened.error()));
    spans = std::move(*opened);
  }
  if (config.metrics_address.empty()) return {};
  auto started = Monitor::Start(config.metrics_address, {.metrics =
                                                             [this] {
                                                               journal.Flush(kJournalPatience);
                                                               return metrics.Text(Look());
                                                             },
                                                         .health = [this] { return Health(); },
                                                         .readiness = [this] { return Readiness(); }});
  if (!started) return std::unexpected(std::move(started.error()));
  monitor = std::move(*started);
  telemetry.Log(Level::kInfo, "monitoring", {{"listen", std::string_view(monitor->address())}});
  return {};
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

std::expected<std::unique_ptr<Daemon>, std::string> Daemon::Start(Config config) {
  auto inherited = TakeListener(config.service_manager);
  if (!inherited) return std::unexpected(std::move(inherited.error()));
  if (*inherited) config.endpoint = {.address = AddressOf(*inherited)};
  auto parts = std::make_unique<Parts>(std::move(config));
  auto claim = Claim(parts->config.endpoint);
  if (!claim) return std::unexpected(std::move(claim.error()));
  parts->claim = std::move(*claim);
  parts->inherited = std::move(*inherited);
  if (IsScript(parts->config.ptxas)) {
    parts->telemetry.Log(
        Level::kWarning, "ptxas",
        {{"script", parts->config.ptxas.string()}, {"why", "a worker that Landlock confines cannot start it; name the program that it starts"}});
  }
  if (auto started = parts->zygote.Start(); !started) return std::unexpected(std::move(started.error()));
  if (auto opened = parts->OpenGate(); !opened) return std::unexpected(std::move(opened.error()));
  if (auto opened = parts->OpenCache(); !opened) return std::unexpected(std::move(opened.error()));
  if (auto opened = parts->OpenSealer(); !opened) return std::unexpected(std::move(opened.error()));
  if (parts->bundles != nullptr) DescribeBundles(*parts->bundles, parts->telemetry, compiler::BuildId());
  if (parts->upstream) parts->upstream->Begin(*parts->sealer);
  parts->disk->KeepTrying();
  parts->MakeFlow();
  if (auto monitored = parts->StartMonitor(); !monitored) return std::unexpected(std::move(monitored.error()));
  if (auto served = parts->Serve(); !served) return std::unexpected(std::move(served.error()));
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

void Daemon::Reload() { parts_->Reload(); }

void Daemon::Tidy() {
  constexpr unsigned kBusyLooks = 10;
  if (!parts_->config.ptxas.empty() || parts_->config.workers == 0) parts_->flow->LookAtPtxas();
  if (parts_->accepted.open() > 0 && ++parts_->busy_looks < kBusyLooks) return;
  parts_->busy_looks = 0;
  ReturnFreeMemory();
}

bool Daemon::Alive() { return parts_->heartbeat->Alive(); }

void Daemon::Drain(const std::function<bool()>& hurry) {
  Parts& p = *parts_;
  p.accepted.Close();
  p.telemetry.Log(Level::kInfo, "draining", {{"calls", static_cast<std::int64_t>(p.accepted.open())}});
  p.front->SayNotServing();
  p.flow->Drain();
  p.tunings->Close();
  const Deadline until(p.clock, p.config.grace);
  const auto open = [&] { return p.accepted.open() + p.flow->calls() + p.runs->calls() + p.tunings->calls(); };
  while (open() > 0 && !until.IsOver() && !hurry()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  p.front->StopAccepting();
  p.monitor.reset();
  p.flow->Close();
  p.workers->Stop();  // what still runs or waits ends as UNAVAILABLE
  p.devices->Close();
  p.front->Shutdown(std::chrono::system_clock::now() + kLastBytes);
}

Daemon::~Daemon() {
  Parts& p = *parts_;
  p.front->StopAccepting();
  p.monitor.reset();
  p.tunings->Close();
  p.workers->Stop();
  p.devices->Close();
  p.flow->Close();  // those who wait for other hosts
  p.front.reset();
  p.description.reset();
  p.workers.reset();
  p.flow->AwaitCommits();
  p.executor.reset();  // runs what is posted, which uses the flow, and posts to the other
  p.heavy.reset();
  p.maintenance.reset();
  p.tunings.reset();
  p.devices.reset();  // its runs have ended, and the last of their callers is told
  p.runs.reset();
  p.flow.reset();
  p.cache.reset();  // commits what was put
  std::error_code ignored;
  if (p.config.endpoint.socket) fs::remove(*p.config.endpoint.socket, ignored);
  p.telemetry.Log(Level::kInfo, "stopped", {});
  p.telemetry.Flush();
}

}  // namespace kiln::server
