// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/metrics_sample.h"

#include <string>
#include <utility>

#include "server/system/process_usage.h"

namespace kiln::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  // Starts a family; what follows are its members.
  Families& Gauge(const char* name, const char* help) { return Start(name, help, MetricType::Gauge); }
  Families& Counter(const char* name, const char* help) { return Start(name, help, MetricType::Counter); }

  Families& Value(double value, Labels labels = {}) {
    MetricFamily& family = families_.back();
    ClientMetric& metric = family.metric.emplace_back();
    metric.label = std::move(labels);
    (family.type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
    return *this;
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  Families& Start(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
    return *this;
  }

  std::vector<MetricFamily> families_;
};

using TierReport = cache::TieredCache::TierReport;

template <class Read>
void EachTier(Families& families, const Sample& sample, Read read) {
  for (const TierReport& tier : sample.tiers) families.Value(static_cast<double>(read(tier)), {{"tier", std::string(tier.name)}});
}

void DescribeStore(const Sample& sample, Families& out) {
  out.Gauge("kiln_store_bytes", "Bytes of entries in a tier");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.bytes; });
  out.Gauge("kiln_store_capacity_bytes", "Bytes a tier evicts at");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.capacity; });
  out.Gauge("kiln_store_entries", "Entries in a tier");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.entries; });
  out.Gauge("kiln_store_up", "1 while a tier is used, 0 while it is left alone after an error or could not be opened");
  EachTier(out, sample, [](const TierReport& t) { return t.enabled; });
  out.Gauge("kiln_store_read_only", "1 while a tier takes no entries because it is full");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.read_only; });
  out.Gauge("kiln_wal_bytes", "Bytes of a tier's write-ahead log");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.wal_bytes; });
  out.Counter("kiln_store_lookups_total", "Lookups in a tier, by result");
  for (const TierReport& t : sample.tiers) {
    out.Value(static_cast<double>(t.stats.hits), {{"tier", std::string(t.name)}, {"result", "hit"}});
    out.Value(static_cast<double>(t.stats.misses), {{"tier", std::string(t.name)}, {"result", "miss"}});
  }
  out.Counter("kiln_store_evictions_total", "Entries evicted for space");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.evictions; });
  out.Counter("kiln_store_corrupt_total", "Entries found corrupt and evicted");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.corrupt; });
  out.Counter("kiln_store_refused_total", "Entries from other hosts without the seal of a trusted key");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.refused; });
  out.Counter("kiln_store_errors_total", "Operations of a tier that failed");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.errors; });
  out.Counter("kiln_store_dropped_puts_total", "Entries a tier did not take");
  EachTier(out, sample, [](const TierReport& t) { return t.stats.dropped_puts; });
  out.Counter("kiln_leases_total", "Leases on what the cluster store lacked: taken by this host, held by another, or none to be had");
  const auto count = [&](const char* result, std::uint64_t value) { out.Value(static_cast<double>(value), {{"result", result}}); };
  count("taken", sample.leases.taken);
  count("awaited", sample.leases.awaited);
  count("none", sample.leases.none);
}

void DescribeDevices(const Sample& sample, Families& out) {
  const auto each = [&](auto read) {
    for (const v1::DeviceStats& d : sample.devices) out.Value(static_cast<double>(read(d)), {{"device", d.name()}});
  };
  out.Counter("kiln_device_busy_seconds_total", "Seconds of runs on a device; over time and workers, the share it is busy");
  each([](const v1::DeviceStats& d) { return d.busy_seconds(); });
  out.Counter("kiln_device_runs_total", "Runs of kernels on a device");
  each([](const v1::DeviceStats& d) { return d.runs(); });
  out.Counter("kiln_device_faults_total", "Runs in which a kernel did something wrong");
  each([](const v1::DeviceStats& d) { return d.faults(); });
  out.Counter("kiln_device_worker_crashes_total", "Device workers that had to be replaced");
  each([](const v1::DeviceStats& d) { return d.worker_crashes(); });
  out.Gauge("kiln_device_workers", "Runs a device may have at one time");
  each([](const v1::DeviceStats& d) { return d.workers(); });
  out.Gauge("kiln_device_busy", "Runs on a device now");
  each([](const v1::DeviceStats& d) { return d.busy(); });
  out.Gauge("kiln_device_queue_length", "Runs that wait for a device");
  each([](const v1::DeviceStats& d) { return d.queued(); });
}

void DescribeTunings(const v1::TuningStats& tunings, Families& out) {
  out.Gauge("kiln_tunings", "Tunings under way: all, those of them that nobody waits for, and those that wait for a device that another has");
  out.Value(tunings.running(), {{"state", "running"}});
  out.Value(tunings.in_background(), {{"state", "background"}});
  out.Value(tunings.queued(), {{"state", "queued"}});
  out.Gauge("kiln_tunings_most", "Tunings that may be under way at one time").Value(tunings.most());
  out.Counter("kiln_tunings_total", "Tunings by how they ended; refused: for want of a place");
  const auto ended = [&](const char* outcome, std::uint64_t count) { out.Value(static_cast<double>(count), {{"outcome", outcome}}); };
  ended("finished", tunings.finished());
  ended("failed", tunings.failed());
  ended("cancelled", tunings.cancelled());
  ended("refused", tunings.refused());
  out.Counter("kiln_tuning_candidates_total", "Candidates that tunings with a record have measured").Value(static_cast<double>(tunings.candidates()));
  out.Counter("kiln_tuning_device_seconds_total", "Seconds that tunings kept devices busy").Value(tunings.device_seconds());
  out.Gauge("kiln_tuning_compiles", "Candidates that are ranked or compiled now").Value(tunings.compiles());
  out.Gauge("kiln_tuning_compiles_most", "Candidates that may be ranked or compiled at one time").Value(tunings.most_compiles());
}

}  // namespace

std::vector<MetricFamily> Describe(const Sample& sample) {
  Families out;
  out.Gauge("kiln_ready", "1 while /readyz says so").Value(sample.ready);
  out.Gauge("kiln_draining", "1 from SIGTERM on").Value(sample.draining);
  out.Gauge("kiln_queue_length", "Compiles that wait for a worker").Value(static_cast<double>(sample.queued));
  out.Gauge("kiln_queue_capacity", "Compiles that may wait").Value(static_cast<double>(sample.queue_capacity));
  out.Gauge("kiln_flights", "Keys being compiled or waiting for it").Value(static_cast<double>(sample.flights));
  out.Gauge("kiln_calls", "Compile requests that have no answer yet").Value(static_cast<double>(sample.calls));
  out.Gauge("kiln_workers", "Compiles that may run at one time").Value(sample.workers);
  out.Gauge("kiln_workers_busy", "Compiles that run now").Value(sample.workers_busy);
  out.Counter("kiln_records_dropped_total", "Calls whose log line and span were left out: the log's disk is slow")
      .Value(static_cast<double>(sample.records_dropped));
  DescribeStore(sample, out);
  DescribeDevices(sample, out);
  DescribeTunings(sample.tunings, out);
  const ProcessUsage usage = ReadProcessUsage();
  out.Gauge("process_resident_memory_bytes", "Memory of this process in RAM").Value(static_cast<double>(usage.resident_bytes));
  out.Gauge("process_open_fds", "Descriptors this process has open").Value(static_cast<double>(usage.open_descriptors));
  out.Gauge("process_max_fds", "Descriptors this process may have open").Value(static_cast<double>(usage.max_descriptors));
  out.Counter("process_cpu_seconds_total", "CPU time of this process, without its workers").Value(usage.cpu_seconds);
  return out.Take();
}

}  // namespace kiln::server
