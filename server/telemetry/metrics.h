// SPDX-License-Identifier: Apache-2.0
//
// The metrics of one kilnd, in Prometheus' text format. Every label has few values: targets are those of the table, stages those of
// the compiler, reasons and causes those of tables here, and of tenants the first kTenants have a name of their own. What is not known
// counts as "other".
//
// Threads. Any thread may note; one mutex, held for the time of a lookup.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/leases.h"
#include "cache/tiered.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/service.pb.h"
#include "server/telemetry/call_record.h"

namespace kiln::server {

// What is read at the moment of a scrape.
struct Sample {
  bool ready = false;
  bool draining = false;
  std::size_t queued = 0;
  std::size_t queue_capacity = 0;
  std::size_t flights = 0;
  std::size_t calls = 0;  // compiles asked for and not answered
  unsigned workers = 0;
  unsigned workers_busy = 0;
  std::vector<cache::TieredCache::TierReport> tiers;
  cache::LeaseStats leases;  // of hosts that share a store
  std::vector<v1::DeviceStats> devices;
  v1::TuningStats tunings;
  std::uint64_t records_dropped = 0;  // of the journal
};

// The end of one compile, whoever waited for it.
struct CompileEnd {
  std::string_view target;
  std::string_view outcome;  // of kCompileOutcomes
  std::string_view priority;
  std::chrono::microseconds queued{0};
  std::chrono::microseconds ran{0};
  bool answered = false;  // by its worker, whatever that said
  const google::protobuf::RepeatedPtrField<v1::Timing>& stages;
};
inline constexpr std::string_view kCompileOutcomes[] = {"ok", "refused", "defect", "no-worker", "cancelled"};
// "refused" is the program, "forbidden" this host, "distrusted" the answer.
inline constexpr std::string_view kForwardOutcomes[] = {"ok", "refused", "defect", "busy", "unavailable", "forbidden", "distrusted", "cancelled"};

// The class of a worker's end, from its cause in words (worker_pool.h).
std::string_view RestartCause(std::string_view cause);

class Metrics {
 public:
  static constexpr std::size_t kTenants = 64;
  struct Options {
    std::string version;
    std::string compiler;  // build id
    std::vector<std::string> targets;
    std::function<std::vector<std::string>()> stages;  // asked when the first compile has ended
    std::vector<std::string> reasons;                  // of refusals, so that each is there from the start
  };

  explicit Metrics(const Options& options);
  ~Metrics();

  // What Stats tells of and the series below do not: they count calls, and these what calls lead to. Counted where it happens.
  struct Counts {
    std::atomic<std::uint64_t> requests = 0;  // for kernels, those of a manifest among them
    std::atomic<std::uint64_t> hits = 0;
    std::atomic<std::uint64_t> joined = 0;
    std::atomic<std::uint64_t> refused = 0;  // for want of room
    std::atomic<std::uint64_t> failed = 0;   // by the compiler
    std::atomic<std::uint64_t> worker_crashes = 0;
  };
  Counts counts;

  void NoteCall(const CallRecord& record);
  void NoteCompile(const CompileEnd& end);
  void NoteWorkerEnd(std::string_view cause);  // in words
  void NoteForward(std::string_view outcome);  // of kForwardOutcomes: of a compile that the upstream kilnd was asked for

  // Counts since the start, for the Stats call.
  void Describe(v1::StatsReply& reply) const;

  // The text of everything, the sample included.
  std::string Text(const Sample& sample) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kiln::server
