// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/metrics.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "cache/mutex.h"
#include "server/reply/reply.h"
#include "server/reply/status_map.h"
#include "server/telemetry/metrics_sample.h"

namespace kiln::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;
using Names = std::vector<std::string>;

const Buckets kCallSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120};
const Buckets kCompileSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
const Buckets kStageSeconds = {0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30};
const Buckets kWaitSeconds = {0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 120};

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kCauses = {{
    {"killed by SIGABRT", "abort"},
    {"killed by SIGSEGV", "fault"},
    {"killed by SIGKILL", "killed"},
    {"killed by", "signal"},
    {"out of memory", "memory"},
    {"deadline", "deadline"},
    {"exited", "exit"},
    {"sent what", "protocol"},
    {"ended with its zygote", "zygote"},
    {"cancelled", "cancelled"},
}};

using Counts = google::protobuf::RepeatedPtrField<v1::NamedCount>;

// Sums up what has the same name; leaves out what has not happened.
void AddCount(Counts& counts, const std::string& name, const Counter& counter) {
  if (counter.Value() == 0) return;
  auto at = std::ranges::find(counts, name, &v1::NamedCount::name);
  v1::NamedCount& count = at == counts.end() ? *counts.Add() : *at;
  count.set_name(name);
  count.set_count(count.count() + static_cast<std::uint64_t>(counter.Value()));
}

double Seconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) * 1e-6; }

// The members of a family, found by the values of their labels without making a label set of each call.
template <class Metric>
class Series {
 public:
  Series(prometheus::Registry& registry, const char* name, const char* help, Names labels, Buckets buckets = {})
      : family_(prometheus::detail::Builder<Metric>().Name(name).Help(help).Register(registry)),
        labels_(std::move(labels)),
        buckets_(std::move(buckets)) {}

  Metric& At(std::string_view first, std::string_view second = {}) {
    key_.assign(first).push_back('\n');
    key_.append(second);
    auto [at, fresh] = members_.try_emplace(key_, nullptr);
    if (fresh) at->second = &Make(first, second);
    return *at->second;
  }

  // In the order of their labels.
  template <class Visit>
  void EachPair(Visit visit) const {
    for (const auto& [key, metric] : members_) {
      const std::size_t end = key.find('\n');
      visit(key.substr(0, end), key.substr(end + 1), *metric);
    }
  }
  template <class Visit>
  void Each(Visit visit) const {
    EachPair([&](const std::string& first, const std::string&, const Metric& metric) { visit(first, metric); });
  }

 private:
  Metric& Make(std::string_view first, std::string_view second) {
    prometheus::Labels labels{{labels_[0], std::string(first)}};
    if (labels_.size() > 1) labels.emplace(labels_[1], second);
    if constexpr (std::is_same_v<Metric, Histogram>) return family_.Add(labels, buckets_);
    else return family_.Add(labels);
  }

  Family<Metric>& family_;
  const Names labels_;
  const Buckets buckets_;
  std::string key_;
  std::map<std::string, Metric*, std::less<>> members_;
};

// How long the last compiles took, and how many there were.
class CompileTimes {
 public:
  void Note(std::chrono::microseconds time) { last_[seen_++ % last_.size()] = std::chrono::duration<float, std::milli>(time).count(); }

  void Describe(v1::StatsReply& reply) const {
    std::vector<float> times(last_.begin(), last_.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(seen_, last_.size())));
    std::ranges::sort(times);
    reply.set_compiles(seen_);
    if (times.empty()) return;
    reply.set_compile_p50_ms(times[times.size() / 2]);
    reply.set_compile_p99_ms(times[times.size() * 99 / 100]);
  }

 private:
  std::array<float, 1024> last_{};
  std::uint64_t seen_ = 0;
};

// A label's value if it is one of those known.
class KnownNames {
 public:
  explicit KnownNames(const Names& names) : names_(names.begin(), names.end()) {}
  std::string_view operator()(std::string_view name) const { return names_.contains(name) ? name : "other"; }

 private:
  const std::set<std::string, std::less<>> names_;
};

}  // namespace

std::string_view RestartCause(std::string_view cause) {
  for (const auto& [words, name] : kCauses) {
    if (cause.starts_with(words)) return name;
  }
  return "other";
}

struct Metrics::Impl {
  explicit Impl(const Options& options) : target(options.targets), ask_stages(options.stages) {
    prometheus::BuildGauge()
        .Name("kiln_build_info")
        .Help("1; what runs here, in its labels")
        .Register(registry)
        .Add({{"version", options.version}, {"compiler", options.compiler}})
        .Set(1);
    for (const auto& [words, name] : kCauses) restarts.At(name);
    for (const std::string_view outcome : kForwardOutcomes) forwards.At(outcome);
    for (const std::string& reason : options.reasons) refusals.At(reason);
    for (const v1::Origin origin : {v1::MEMORY, v1::DISK, v1::COMPILED, v1::JOINED, v1::CLUSTER, v1::BUNDLE}) results.At(OriginText(origin));
  }

  std::string_view Tenant(const std::string& name) KILN_REQUIRES(mutex) {
    if (name.empty()) return "unknown";
    if (tenant_names.contains(name)) return name;
    if (tenant_names.size() >= kTenants) return "other";
    return *tenant_names.insert(name).first;
  }

  mutable cache::Mutex mutex;
  prometheus::Registry registry;
  const KnownNames target;
  const std::function<Names()> ask_stages;
  std::optional<KnownNames> stage KILN_GUARDED_BY(mutex);
  std::set<std::string, std::less<>> tenant_names KILN_GUARDED_BY(mutex);
  Series<Histogram> calls KILN_GUARDED_BY(mutex){
      registry, "kiln_request_seconds", "Time from a call's arrival to its status", {"method", "code"}, kCallSeconds};
  Series<Counter> results KILN_GUARDED_BY(mutex){registry, "kiln_results_total", "Kernels handed out, by where they came from", {"origin"}};
  Series<Counter> reply_bytes KILN_GUARDED_BY(mutex){registry, "kiln_reply_bytes_total", "Bytes of replies", {"method"}};
  Series<Counter> refusals KILN_GUARDED_BY(mutex){registry, "kiln_refusals_total", "Requests that got no result, by reason", {"reason"}};
  Series<Counter> tenants KILN_GUARDED_BY(mutex){registry, "kiln_tenant_requests_total", "Requests by tenant", {"tenant", "code"}};
  Series<Histogram> waits KILN_GUARDED_BY(mutex){
      registry, "kiln_queue_wait_seconds", "Time a compile waited for a worker", {"priority"}, kWaitSeconds};
  Series<Histogram> compiles KILN_GUARDED_BY(mutex){
      registry, "kiln_compile_seconds", "Time a compile took in its worker", {"target", "outcome"}, kCompileSeconds};
  Series<Histogram> stages KILN_GUARDED_BY(mutex){
      registry, "kiln_compile_stage_seconds", "Time of one stage of a compile", {"stage", "target"}, kStageSeconds};
  CompileTimes times KILN_GUARDED_BY(mutex);
  Series<Counter> restarts KILN_GUARDED_BY(mutex){registry, "kiln_worker_restarts_total", "Workers replaced, by cause", {"cause"}};
  Series<Counter> forwards KILN_GUARDED_BY(mutex){
      registry, "kiln_forwards_total", "Compiles that the upstream kilnd was asked for, by how that ended", {"outcome"}};
};

Metrics::Metrics(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Metrics::~Metrics() = default;

void Metrics::NoteCall(const CallRecord& record) {
  cache::MutexLock lock(impl_->mutex);
  const std::string_view code = CodeName(record.code);
  impl_->calls.At(record.method, code).Observe(Seconds(record.took));
  impl_->reply_bytes.At(record.method).Increment(static_cast<double>(record.bytes_out));
  impl_->tenants.At(impl_->Tenant(record.tenant), code).Increment();
  if (record.origin != v1::ORIGIN_UNSPECIFIED) impl_->results.At(OriginText(record.origin)).Increment();
  if (record.code != 0) impl_->refusals.At(record.reason.empty() ? code : record.reason).Increment();
}

void Metrics::NoteCompile(const CompileEnd& end) {
  cache::MutexLock lock(impl_->mutex);
  if (!impl_->stage) impl_->stage.emplace(impl_->ask_stages());
  const std::string_view target = impl_->target(end.target);
  if (end.answered) impl_->times.Note(end.ran);
  impl_->waits.At(end.priority).Observe(Seconds(end.queued));
  impl_->compiles.At(target, end.outcome).Observe(Seconds(end.ran));
  for (const v1::Timing& timing : end.stages) {
    impl_->stages.At((*impl_->stage)(timing.stage()), target).Observe(timing.milliseconds() * 1e-3);
  }
}

void Metrics::NoteWorkerEnd(std::string_view cause) {
  cache::MutexLock lock(impl_->mutex);
  impl_->restarts.At(RestartCause(cause)).Increment();
}

void Metrics::NoteForward(std::string_view outcome) {
  cache::MutexLock lock(impl_->mutex);
  impl_->forwards.At(outcome).Increment();
}

void Metrics::Describe(v1::StatsReply& reply) const {
  reply.set_requests(counts.requests);
  reply.set_hits(counts.hits);
  reply.set_joined(counts.joined);
  reply.set_refused(counts.refused);
  reply.set_failed(counts.failed);
  reply.set_worker_crashes(counts.worker_crashes);
  cache::MutexLock lock(impl_->mutex);
  impl_->times.Describe(reply);
  impl_->refusals.Each([&](const std::string& reason, const Counter& counter) { AddCount(*reply.mutable_refusals(), reason, counter); });
  impl_->restarts.Each([&](const std::string& cause, const Counter& counter) { AddCount(*reply.mutable_worker_restarts(), cause, counter); });
  impl_->forwards.Each([&](const std::string& outcome, const Counter& counter) { AddCount(*reply.mutable_forwards(), outcome, counter); });
  impl_->tenants.Each([&](const std::string& tenant, const Counter& counter) { AddCount(*reply.mutable_tenants(), tenant, counter); });
  impl_->compiles.EachPair([&](const std::string& target, const std::string& outcome, const Histogram& histogram) {
    const auto seen = histogram.Collect().histogram;
    auto at = std::ranges::find(*reply.mutable_targets(), target, &v1::TargetStats::name);
    v1::TargetStats& stats = at == reply.mutable_targets()->end() ? *reply.add_targets() : *at;
    stats.set_name(target);
    // A running mean over the outcomes.
    const double sum = stats.mean_ms() * static_cast<double>(stats.compiles()) + seen.sample_sum * 1000;
    stats.set_compiles(stats.compiles() + seen.sample_count);
    if (outcome != "ok") stats.set_failed(stats.failed() + seen.sample_count);
    stats.set_mean_ms(sum / static_cast<double>(std::max<std::uint64_t>(stats.compiles(), 1)));
  });
  prometheus::ClientMetric::Histogram waits;
  impl_->waits.Each([&](const std::string&, const Histogram& histogram) {
    waits.sample_count += histogram.Collect().histogram.sample_count;
    waits.sample_sum += histogram.Collect().histogram.sample_sum;
  });
  reply.set_queue_wait_mean_ms(waits.sample_count == 0 ? 0 : waits.sample_sum * 1000 / static_cast<double>(waits.sample_count));
}

std::string Metrics::Text(const Sample& sample) const {
  std::ostringstream text;
  const prometheus::TextSerializer serializer;
  {
    cache::MutexLock lock(impl_->mutex);
    serializer.Serialize(text, impl_->registry.Collect());
  }
  serializer.Serialize(text, server::Describe(sample));
  return text.str();
}

}  // namespace kiln::server
