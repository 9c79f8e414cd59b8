// SPDX-License-Identifier: Apache-2.0
//
// kiln::Client: compiles tile programs through kilnd.
//
//   auto client = kiln::Client::Connect();
//   auto compiled = client->Compile({.module = text, .target = "cuda:sm_90a"});
//   if (!compiled) std::cerr << compiled.error().message;
//
// Standard types only. A client may be used from several threads; it keeps one connection. A call that a daemon refuses for want of room
// is made again when that says, until the timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

enum class Severity : std::uint8_t { kError, kWarning, kNote };

struct Diagnostic {
  Severity severity = Severity::kError;
  std::string message;
  std::string hint;       // what to try
  std::string statement;  // its text
  std::string file;
  std::uint32_t line = 0;  // 0: unknown
};

enum class ErrorCode : std::uint8_t {
  kInvalid,      // the program or the request is wrong: diagnostics
  kUnsupported,  // this compiler or target cannot do it: diagnostics
  kNotFound,
  kRefused,      // the daemon is configured not to, or the certificate is not accepted
  kBusy,         // the queue is full, and there is no time to ask again: retry_after; or it is more than the daemon takes
  kUnavailable,  // no daemon, or it shuts down
  kDeadline,
  kCancelled,
  kInternal,  // the compiler failed: reproducer
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::vector<Diagnostic> diagnostics;
  std::string reproducer;  // a file on the daemon's host
  std::optional<std::chrono::milliseconds> retry_after;
  std::string request_id;  // as in the daemon's log
};

enum class CodeKind : std::uint8_t { kNone, kPtx, kHsaco, kCubin, kEmulator };
enum class Origin : std::uint8_t { kUnknown, kMemory, kDisk, kCompiled, kJoined, kCluster, kBundle };
enum class Priority : std::uint8_t { kInteractive, kBatch, kTuning };
enum class StreamK : std::uint8_t { kAuto, kNever, kAlways };

struct Options {
  bool fast_math = false;
  bool disable_async_copy = false;
  bool disable_warp_specialization = false;
  bool disable_tma = false;
  bool disable_wgmma = false;
  std::uint32_t max_registers = 0;  // 0: the compiler's choice
  // Bytes every tensor's address is a multiple of, a power of two; 0: 16. Tensors that start elsewhere need a compile with less.
  std::uint32_t pointer_alignment = 0;
  bool fast_accumulation = false;            // products of 8-bit floats keep the matrix unit's own sums, which have 13 bits on sm_90a
  StreamK stream_k = StreamK::kAuto;         // whether blocks share the steps of tiles: by cost, or pinned
  std::uint32_t max_fragment_registers = 0;  // of a thread, that fragments take at a time; programs with more are refused; 0: 640
  std::uint32_t max_unrolled = 0;            // statements that an unrolled loop becomes; longer ones stay loops; 0: 4096
  // LLVM instructions of the kernels before optimization; a branch counts as 16; more are refused; 0: 600000, for AMD's GPUs 60000
  std::uint32_t max_code = 0;
  // AMD's GPUs: values alive beyond 256, added up over all instructions; kernels with more are optimized only in part; 0: 64000
  std::uint32_t max_crowding = 0;
  // What the kernels' names begin with, as profilers show them; a program is compiled and kept once for each. Empty: "kernel".
  std::string entry_name;
};

// What a person wants to see; such a compile is never cached.
struct Explain {
  std::vector<std::string> after;  // passes; "all"
  bool llvm = false;
  bool assembly = false;
};

struct CompileRequest {
  std::string module;  // a serialized kiln.v1.Module, or the text form of the IR
  std::string target;  // "cuda:sm_90a", "hip:gfx942"
  Options options;
  std::optional<Explain> explain;
  Priority priority = Priority::kInteractive;
  bool refresh = false;      // compile even if the result is known
  bool durable = false;      // answered once the daemon's store has the result, or could not take it: Compiled::durable says which
  std::string trace_parent;  // W3C traceparent of the caller's span; empty: that of the connection
};

struct Timing {
  std::string stage;
  double milliseconds = 0;
};

struct PassDump {
  std::string pass;
  std::string text;
};

struct Compiled {
  std::string key;       // 32 bytes; empty where no daemon was asked
  std::string artifact;  // a serialized kiln.v1.Artifact, as clients/runtime loads it
  std::string target;
  CodeKind kind = CodeKind::kNone;
  std::string code;   // PTX text or the HSACO
  std::string cubin;  // where the daemon has a ptxas
  Origin origin = Origin::kUnknown;
  bool durable = false;  // the daemon's store has it: it survives the daemon's end, however it ends, until it is evicted
  std::vector<Timing> timings;
  std::vector<Diagnostic> warnings;
  std::vector<PassDump> dumps;
};

// Requests × targets, all of which are to be kept by the daemon. Without targets each request is for its own.
struct Manifest {
  std::vector<CompileRequest> requests;
  std::vector<std::string> targets;
};

struct EnsureProgress {
  std::uint32_t total = 0, known = 0, compiled = 0, failed = 0;
  double elapsed_seconds = 0;
  std::optional<double> remaining_seconds;  // an estimate
};

struct Ensured {
  std::size_t request = 0;  // index in the manifest
  std::string target;
  std::string key;  // empty: failed
  Origin origin = Origin::kUnknown;
  std::uint64_t bytes = 0;
  bool durable = false;  // as Compiled::durable; the daemon has waited for it
  std::optional<Error> error;
};

struct RunRequest;
struct RunResult;
struct Chosen;
struct TuneRequest;
struct TuneProgress;
struct Tuned;
struct RankRequest;
struct Ranked;

struct TierStats {
  std::string name;
  std::uint64_t entries = 0, bytes = 0, capacity_bytes = 0, hits = 0, misses = 0, evictions = 0, corrupt = 0;
  std::string state;
  std::uint64_t refused = 0;  // entries that came from outside without the seal of a trusted key
};
struct NamedCount {
  std::string name;
  std::uint64_t count = 0;
};
struct TargetStats {
  std::string name;
  std::uint64_t compiles = 0, failed = 0;
  double mean_ms = 0;
};
// A process that has memory or kernels on a GPU, whoever started it.
struct DeviceProcess {
  std::uint32_t pid = 0;
  std::string name;  // empty: the host does not tell
  std::optional<std::uint64_t> memory_bytes;
};
// What a GPU does at this moment, whoever makes it do so. What its driver does not tell is absent.
struct DeviceState {
  std::optional<std::uint32_t> compute_mhz, memory_mhz, most_compute_mhz, most_memory_mhz;
  std::optional<double> celsius, watts, watts_limit;
  std::optional<std::uint64_t> memory_used_bytes;
  std::optional<std::uint32_t> busy_percent;
  std::optional<double> joules;  // since its driver started
  std::optional<std::vector<DeviceProcess>> processes;
  std::string problem;  // why nothing is known
};
struct DeviceStats {
  std::string name;
  std::uint32_t workers = 0, busy = 0, queued = 0;
  std::uint64_t runs = 0, faults = 0, worker_crashes = 0;
  double busy_seconds = 0;
  std::optional<DeviceState> state;  // of a GPU, where Client::Stats was asked for it
};
// Tunings that measure.
struct TuningStats {
  std::uint32_t running = 0, in_background = 0, queued = 0;  // queued: another has the device for now
  std::uint32_t most = 0;                                    // that may run at one time
  std::uint64_t finished = 0, failed = 0, cancelled = 0, refused = 0, candidates = 0;
  double device_seconds = 0;
  std::uint32_t compiles = 0, most_compiles = 0;  // of candidates, at one time
};
struct Stats {
  double uptime_seconds = 0;
  std::string state;
  std::vector<TierStats> tiers;
  std::uint64_t requests = 0, hits = 0, compiles = 0, joined = 0, refused = 0, failed = 0, worker_crashes = 0;
  std::uint32_t workers = 0, workers_busy = 0, queued = 0;
  double compile_p50_ms = 0, compile_p99_ms = 0;
  double queue_wait_mean_ms = 0;
  std::uint32_t flights = 0, queue_capacity = 0;
  std::uint64_t wal_bytes = 0, memory_bytes = 0;
  std::vector<NamedCount> refusals, worker_restarts, tenants, forwards;
  std::vector<TargetStats> targets;
  std::vector<DeviceStats> devices;
  TuningStats tunings;
};

// A device of the daemon's host.
struct RemoteDevice {
  std::string name;         // as RunRequest.device takes it: "emu:sm_90a", "cuda:0"
  std::string target;       // what to compile for
  std::string description;  // "NVIDIA H200", "emulator"
  std::uint64_t memory_bytes = 0;
  std::string driver_version;
};

struct Capabilities {
  std::string version;
  std::string compiler;  // build id
  std::uint32_t ir_version = 0;
  std::vector<std::string> targets, passes, ops;
  std::string ptxas;
  std::vector<RemoteDevice> devices;      // of the daemon's host
  std::vector<std::string> gpu_problems;  // why it has no GPU, where it has none
};

struct CacheEntry {
  std::string key;
  std::string target;
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t created_unix = 0, last_used_unix = 0;
  std::uint64_t hits = 0;
  bool cubin = false;  // the result with a cubin; the PTX alone is kept beside it, for another ptxas
};

struct ConnectOptions {
  std::string address;  // "unix:PATH" or "HOST:PORT"; empty: $KILN_ADDRESS, else where kilnd listens by default
  // TCP is always TLS. PEM files; empty: $KILN_TLS_ROOTS (else the system's roots), $KILN_TLS_CERT, $KILN_TLS_KEY.
  std::string tls_roots;
  std::string tls_certificate;
  std::string tls_key;
  std::string token;                           // as `kilnd token new` printed it; empty: $KILN_TOKEN, else what the file $KILN_TOKEN_FILE holds
  std::chrono::milliseconds timeout{300'000};  // of each call; a run with a longer one of its own has that and two minutes
  std::string trace_parent;                    // W3C traceparent for every call; empty: $TRACEPARENT
  std::string record;                          // a folder to note requests in (Recording::folder), besides those of $KILN_RECORD
};

class Client {
 public:
  template <class T>
  using Result = std::expected<T, Error>;
  using OnStage = std::function<void(std::string_view stage)>;
  using OnProgress = std::function<void(const EnsureProgress&)>;

  // Does not wait for the daemon: a call that cannot reach it says so.
  static Result<Client> Connect(ConnectOptions options = {});
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // `on_stage` is called on this thread when the compile enters another stage.
  Result<Compiled> Compile(const CompileRequest& request, const OnStage& on_stage = {});
  // One of several programs that do the same, as space.mode says (tune.h). What its candidates leave out is the request's: module and target; the
  // options are each candidate's own. Its arguments are recipes and numbers. Of those that do not compile the next is taken.
  Result<Chosen> CompileSpace(const CompileRequest& request, const TuneRequest& space,
                              const std::function<void(const TuneProgress&)>& on_progress = {});

  // What is known; never compiles.
  Result<Compiled> Lookup(const CompileRequest& request);
  Result<Compiled> LookupKey(std::string_view key);

  // Compiles what of the manifest is not known. One result for each request and target, in the order in which they ended. A manifest
  // larger than a message goes in several calls, with one progress.
  Result<std::vector<Ensured>> Ensure(const Manifest& manifest, const OnProgress& on_progress = {});

  // Runs a kernel on a device of the daemon's host (clients/cpp/run.h). What the kernel does wrong is in the result.
  Result<RunResult> Run(const RunRequest& request);

  // Finds the fastest of several programs that do the same, or knows it from a record (clients/cpp/tune.h). `on_progress` is called on this
  // thread.
  Result<Tuned> Tune(const TuneRequest& request, const std::function<void(const TuneProgress&)>& on_progress = {});
  // The record of a tuning that goes on behind its caller (Tuned::watch); kNotFound where it is not under way and left none.
  Result<Tuned> WatchTune(const std::string& watch, const std::function<void(const TuneProgress&)>& on_progress = {});

  // What the planner expects each of several programs to take, the fastest first (clients/cpp/rank.h).
  Result<std::vector<Ranked>> Rank(const RankRequest& request);

  // Gives the daemon an artifact (serialized kiln.v1.Artifact) of the same compiler build. Returns the key.
  Result<std::string> Put(const CompileRequest& request, std::string_view artifact);

  // With `device_states`, the daemon asks the drivers what its GPUs do now.
  Result<kiln::Stats> Stats(bool device_states = false);
  Result<kiln::Capabilities> Capabilities();

  // In the order of keys; at most `limit`, 0: all.
  Result<std::vector<CacheEntry>> CacheList(std::string_view key_prefix = {}, std::string_view target = {}, std::uint32_t limit = 0);
  // The programs of the caller's tenant that were used most, of those that another build of the compiler compiled; 0: 1000. Ensure compiles
  // them anew.
  Result<std::vector<CompileRequest>> CacheHot(std::uint32_t limit = 0);
  struct VerifyReport {
    std::uint64_t checked = 0, corrupt = 0, forged = 0;
    bool store_damaged = false;  // the whole store was set aside
  };
  Result<VerifyReport> CacheVerify();
  struct GcReport {
    std::uint64_t evicted = 0, bytes_freed = 0;
  };
  Result<GcReport> CacheGc(std::uint64_t target_bytes);
  // Entries of the keys (all, where empty) to a file; its size.
  Result<std::uint64_t> CacheExport(const std::filesystem::path& file, const std::vector<std::string>& keys = {});
  struct ImportReport {
    std::uint64_t imported = 0, rejected = 0;
  };
  Result<ImportReport> CacheImport(const std::filesystem::path& file);

  const std::string& address() const;

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln
