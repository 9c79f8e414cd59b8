// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/convert.h"

#include <utility>

namespace kiln {

static_assert(static_cast<int>(Severity::kNote) == v1::Diagnostic::NOTE);
static_assert(static_cast<int>(CodeKind::kEmulator) == v1::EMULATOR);
static_assert(static_cast<int>(Origin::kBundle) == v1::BUNDLE);
static_assert(static_cast<int>(Priority::kTuning) == v1::TUNING);
static_assert(static_cast<int>(StreamK::kAlways) == v1::STREAM_K_ALWAYS);

v1::CompileRequest ToProto(const CompileRequest& request) {
  v1::CompileRequest out;
  out.set_module(request.module);
  out.set_target(request.target);
  v1::CompileOptions& options = *out.mutable_options();
  options.set_fast_math(request.options.fast_math);
  options.set_disable_async_copy(request.options.disable_async_copy);
  options.set_disable_warp_specialization(request.options.disable_warp_specialization);
  options.set_disable_tma(request.options.disable_tma);
  options.set_disable_wgmma(request.options.disable_wgmma);
  options.set_max_registers(request.options.max_registers);
  options.set_pointer_alignment(request.options.pointer_alignment);
  options.set_fast_accumulation(request.options.fast_accumulation);
  options.set_stream_k(static_cast<v1::StreamK>(request.options.stream_k));
  options.set_max_fragment_registers(request.options.max_fragment_registers);
  options.set_max_unrolled(request.options.max_unrolled);
  options.set_max_code(request.options.max_code);
  options.set_max_crowding(request.options.max_crowding);
  options.set_entry_name(request.options.entry_name);
  if (request.explain) {
    v1::Explain& explain = *out.mutable_explain();
    for (const std::string& pass : request.explain->after) explain.add_after(pass);
    explain.set_llvm(request.explain->llvm);
    explain.set_assembly(request.explain->assembly);
  }
  out.set_priority(static_cast<v1::Priority>(request.priority));
  out.set_refresh(request.refresh);
  out.set_durable(request.durable);
  return out;
}

CompileRequest FromProto(const v1::CompileRequest& request) {
  CompileRequest out;
  out.module = request.module();
  out.target = request.target();
  const v1::CompileOptions& options = request.options();
  out.options = {options.fast_math(),
                 options.disable_async_copy(),
                 options.disable_warp_specialization(),
                 options.disable_tma(),
                 options.disable_wgmma(),
                 options.max_registers(),
                 options.pointer_alignment(),
                 options.fast_accumulation(),
                 static_cast<StreamK>(options.stream_k()),
                 options.max_fragment_registers(),
                 options.max_unrolled(),
                 options.max_code(),
                 options.max_crowding(),
                 options.entry_name()};
  if (request.has_explain()) {
    const v1::Explain& explain = request.explain();
    out.explain = Explain{{explain.after().begin(), explain.after().end()}, explain.llvm(), explain.assembly()};
  }
  out.priority = static_cast<Priority>(request.priority());
  out.refresh = request.refresh();
  out.durable = request.durable();
  return out;
}

Diagnostic FromProto(const v1::Diagnostic& diagnostic) {
  return {static_cast<Severity>(diagnostic.severity()),
          diagnostic.message(),
          diagnostic.hint(),
          diagnostic.statement(),
          diagnostic.file(),
          diagnostic.line()};
}

Compiled FromProto(v1::CompileReply reply) {
  Compiled out;
  v1::Artifact& artifact = *reply.mutable_artifact();
  out.artifact = artifact.SerializeAsString();
  out.key = std::move(*reply.mutable_key());
  out.target = artifact.target();
  out.kind = static_cast<CodeKind>(artifact.kind());
  out.code = std::move(*artifact.mutable_code());
  out.cubin = std::move(*artifact.mutable_cubin());
  out.origin = static_cast<Origin>(reply.origin());
  out.durable = reply.durable();
  for (const v1::Timing& timing : reply.timings()) out.timings.push_back({timing.stage(), timing.milliseconds()});
  for (const v1::Diagnostic& warning : reply.diagnostics()) out.warnings.push_back(FromProto(warning));
  for (v1::PassDump& dump : *reply.mutable_dumps()) out.dumps.push_back({dump.pass(), std::move(*dump.mutable_text())});
  return out;
}

EnsureProgress FromProto(const v1::EnsureProgress& progress) {
  EnsureProgress out{.total = progress.total(),
                     .known = progress.known(),
                     .compiled = progress.compiled(),
                     .failed = progress.failed(),
                     .elapsed_seconds = progress.elapsed_seconds(),
                     .remaining_seconds = std::nullopt};
  if (progress.has_remaining_seconds()) out.remaining_seconds = progress.remaining_seconds();
  return out;
}

namespace {

template <class Number>
std::optional<Number> Known(bool known, Number value) {
  return known ? std::optional(value) : std::nullopt;
}

DeviceState FromProto(const v1::DeviceState& s) {
  DeviceState state{.compute_mhz = Known(s.has_compute_mhz(), s.compute_mhz()),
                    .memory_mhz = Known(s.has_memory_mhz(), s.memory_mhz()),
                    .most_compute_mhz = Known(s.has_most_compute_mhz(), s.most_compute_mhz()),
                    .most_memory_mhz = Known(s.has_most_memory_mhz(), s.most_memory_mhz()),
                    .celsius = Known(s.has_celsius(), s.celsius()),
                    .watts = Known(s.has_watts(), s.watts()),
                    .watts_limit = Known(s.has_watts_limit(), s.watts_limit()),
                    .memory_used_bytes = Known(s.has_memory_used_bytes(), std::uint64_t{s.memory_used_bytes()}),
                    .busy_percent = Known(s.has_busy_percent(), s.busy_percent()),
                    .joules = Known(s.has_joules(), s.joules()),
                    .processes = std::nullopt,
                    .problem = s.problem()};
  if (!s.knows_processes()) return state;
  state.processes.emplace();
  for (const v1::DeviceProcess& p : s.processes()) {
    state.processes->push_back({p.pid(), p.name(), Known(p.has_memory_bytes(), std::uint64_t{p.memory_bytes()})});
  }
  return state;
}

}  // namespace

Stats FromProto(const v1::StatsReply& r) {
  Stats out;
  out.uptime_seconds = r.uptime_seconds();
  out.state = r.state();
  for (const v1::TierStats& t : r.tiers()) {
    out.tiers.push_back(
        {t.name(), t.entries(), t.bytes(), t.capacity_bytes(), t.hits(), t.misses(), t.evictions(), t.corrupt(), t.state(), t.refused()});
  }
  out.requests = r.requests();
  out.hits = r.hits();
  out.compiles = r.compiles();
  out.joined = r.joined();
  out.refused = r.refused();
  out.failed = r.failed();
  out.worker_crashes = r.worker_crashes();
  out.workers = r.workers();
  out.workers_busy = r.workers_busy();
  out.queued = r.queued();
  out.compile_p50_ms = r.compile_p50_ms();
  out.compile_p99_ms = r.compile_p99_ms();
  out.queue_wait_mean_ms = r.queue_wait_mean_ms();
  out.flights = r.flights();
  out.queue_capacity = r.queue_capacity();
  out.wal_bytes = r.wal_bytes();
  out.memory_bytes = r.memory_bytes();
  const auto counts = [](const auto& from, std::vector<NamedCount>& to) {
    for (const v1::NamedCount& c : from) to.push_back({c.name(), c.count()});
  };
  counts(r.refusals(), out.refusals);
  counts(r.worker_restarts(), out.worker_restarts);
  counts(r.forwards(), out.forwards);
  counts(r.tenants(), out.tenants);
  for (const v1::TargetStats& t : r.targets()) out.targets.push_back({t.name(), t.compiles(), t.failed(), t.mean_ms()});
  const v1::TuningStats& t = r.tunings();
  out.tunings = {.running = t.running(),
                 .in_background = t.in_background(),
                 .queued = t.queued(),
                 .most = t.most(),
                 .finished = t.finished(),
                 .failed = t.failed(),
                 .cancelled = t.cancelled(),
                 .refused = t.refused(),
                 .candidates = t.candidates(),
                 .device_seconds = t.device_seconds(),
                 .compiles = t.compiles(),
                 .most_compiles = t.most_compiles()};
  for (const v1::DeviceStats& d : r.devices()) {
    out.devices.push_back({d.name(), d.workers(), d.busy(), d.queued(), d.runs(), d.faults(), d.worker_crashes(), d.busy_seconds(),
                           d.has_state() ? std::optional(FromProto(d.state())) : std::nullopt});
  }
  return out;
}

Capabilities FromProto(const v1::CapabilitiesReply& r) {
  Capabilities out{r.version(),
                   r.compiler(),
                   r.ir_version(),
                   {r.targets().begin(), r.targets().end()},
                   {r.passes().begin(), r.passes().end()},
                   {r.ops().begin(), r.ops().end()},
                   r.ptxas(),
                   {},
                   {r.gpu_problems().begin(), r.gpu_problems().end()}};
  for (const v1::DeviceInfo& d : r.devices()) {
    out.devices.push_back({d.name(), d.target(), d.description(), d.memory_bytes(), d.driver_version()});
  }
  return out;
}

CacheEntry FromProto(const v1::CacheEntry& e) {
  return {e.key(), e.target(), e.name(), e.bytes(), e.created_unix(), e.last_used_unix(), e.hits(), !e.portable_key().empty()};
}

}  // namespace kiln
