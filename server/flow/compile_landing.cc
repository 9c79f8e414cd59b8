// SPDX-License-Identifier: Apache-2.0
//
// CompileFlow from the worker's end of a job to the end of its flight.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/flow/compile_report.h"
#include "server/flow/compile_under_way.h"
#include "server/flow/two_layers.h"
#include "server/queue/refusals.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

double Milliseconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

v1::Timing MakeTiming(std::string_view stage, double milliseconds) {
  v1::Timing timing;
  timing.set_stage(std::string(stage));
  timing.set_milliseconds(milliseconds);
  return timing;
}

// The setting behind the limit that ended a worker, if one did.
std::string_view SettingBehind(std::string_view cause) {
  if (cause == "deadline") return " (--compile-limit)";
  if (cause == "out of memory") return " (--worker-memory)";
  return {};
}

}  // namespace

// 7. The worker is done with it, or it with the worker.
void CompileFlow::Land(Compile& compile, JobOutcome outcome) {
  NoteStages(*compile.notes, outcome, parts_.clock.SteadyNow());
  Made made = Judge(compile, outcome);
  if (outcome.end == JobOutcome::End::kResult && (made || made.error().kind == Kind::kInvalid || made.error().kind == Kind::kUnsupported)) {
    parts_.reproducers.NoteEnd(CrashKey(compile.kept_under, KindOf(compile.request)));
  }
  Report({compile.request_id, compile.key, compile.request, outcome, made}, parts_.telemetry, parts_.metrics);
  compile.lease.reset();  // behind the put, or at once where there is nothing for others
  compile.flight.Finish(std::move(made));
}

CompileFlow::Made CompileFlow::Judge(Compile& compile, JobOutcome& outcome) {
  switch (outcome.end) {
    case JobOutcome::End::kResult: {
      if (!outcome.result.unavailable().empty()) {
        outcome.cause = outcome.result.unavailable();
        return std::unexpected(HostFailed(outcome.cause));
      }
      // Whichever ptxas made it, the key, and so the cache, names the one that was found before the compile.
      if (compile.ptxas && *compile.ptxas != PtxasVersion()) {
        outcome.cause = "another ptxas was installed while it was compiled";
        return std::unexpected(HostFailed(outcome.cause));
      }
      const auto& diagnostics = outcome.result.diagnostics();
      const bool refused = std::ranges::any_of(diagnostics, [](const v1::Diagnostic& d) { return d.severity() == v1::Diagnostic::ERROR; });
      const bool estimated = compile.request.explain().has_estimate() && outcome.result.has_estimate();
      const bool made = compile.ptx || outcome.result.has_artifact() || estimated;
      if (made && !refused && compile.portable && !estimated && !outcome.result.has_assembled()) {
        outcome.cause = "the worker has no ptxas";
        return std::unexpected(HostFailed(outcome.cause));
      }
      if (made && !refused) return Keep(compile, outcome);
      return std::unexpected(Refusal(compile, outcome));
    }
    case JobOutcome::End::kDied: return std::unexpected(Defect(compile, outcome, outcome.cause));
    case JobOutcome::End::kLost:
      ++parts_.metrics.counts.worker_crashes;
      if (outcome.killed) parts_.reproducers.NoteKill(CrashKey(compile.kept_under, KindOf(compile.request)), outcome.cause);
      return std::unexpected(WorkerLost(outcome.cause));
    case JobOutcome::End::kNoWorker: return std::unexpected(Failure{.kind = Kind::kNoWorker, .message = outcome.cause});
    case JobOutcome::End::kRefused: return std::unexpected(std::move(outcome.refusal));
    case JobOutcome::End::kElsewhere: break;  // does not land here
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
  if (!compile.portable) outcome.result.clear_assembled();  // the key says that no ptxas has a part in it
  const std::size_t artifact_bytes =
      (compile.ptx ? compile.ptx->reply.artifact() : outcome.result.artifact()).ByteSizeLong() + outcome.result.assembled().ByteSizeLong();
  if (artifact_bytes > options_.limits.artifact_bytes) return std::unexpected(ArtifactTooLarge(artifact_bytes, options_.limits));
  if (auto fits = parts_.store_keeper.Fits(compile.caller.tenant, artifact_bytes); !fits) return std::unexpected(std::move(fits.error()));
  v1::CompileReply reply;
  if (compile.ptx) {
    reply.Swap(&compile.ptx->reply);
  } else {
    reply.mutable_artifact()->Swap(outcome.result.mutable_artifact());
    reply.mutable_diagnostics()->Swap(outcome.result.mutable_diagnostics());
    if (compile.portable && !compile.request.has_explain()) KeepPtx(compile, reply);
  }
  if (outcome.result.has_assembled()) AddAssembled(std::move(*outcome.result.mutable_assembled()), reply);
  reply.set_key(compile.key.bytes.data(), compile.key.bytes.size());

  Reply kept;
  const Sealer::About about = {.tenant = compile.caller.tenant,
                               .name = compile.name,
                               .portable = compile.portable,
                               .taken_from = compile.ptx ? std::string_view(compile.ptx->maker) : std::string_view()};
  const std::string target = reply.artifact().target();
  if (compile.request.has_explain()) {
    reply.mutable_dumps()->Swap(outcome.result.mutable_dumps());
    if (outcome.result.has_estimate()) reply.mutable_estimate()->Swap(outcome.result.mutable_estimate());
    auto bytes = std::make_shared<const std::string>(parts_.sealer.Seal(std::move(reply), compile.request, about));
    kept = {.key = compile.key, .owner = bytes, .kept = *bytes};
  } else if (auto entry =
                 SealReply(compile.kept_under, compile.caller.tenant, parts_.sealer.Seal(std::move(reply), compile.request, about),
                           {.target = target, .name = compile.name, .compiler = options_.build_id, .portable_key = PortableIn(compile.portable)},
                           ProgramToKeep(compile.request))) {
    compile.notes->Mark("seal");
    kept = **OutcomeFrom(*entry, compile.caller.tenant, v1::COMPILED, false);
    const std::size_t sealed_bytes = entry->sealed().size();
    if (compile.request.refresh()) parts_.cache.EraseOutside(compile.kept_under);
    parts_.cache.Put(std::move(*entry));
    parts_.store_keeper.Note(compile.caller.tenant, sealed_bytes);
    compile.notes->Mark("put");
  } else {
    return std::unexpected(
        Failure{.kind = Kind::kUnsupported, .message = "the artifact is larger than an entry of the cache may be: " + entry.error().message});
  }
  kept.origin = v1::COMPILED;
  kept.timings.assign(outcome.result.timings().begin(), outcome.result.timings().end());
  kept.timings.push_back(MakeTiming(kQueueStage, outcome.queue_ms));
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
  ++parts_.metrics.counts.failed;
  if (std::ranges::none_of(failure.diagnostics, is_error(v1::Diagnostic::INVALID))) failure.kind = Kind::kUnsupported;
  Remember(compile, failure);
  return failure;
}

// The same program gets the same answer from this build of the compiler, which is part of the key.
void CompileFlow::Remember(const Compile& compile, const Failure& failure) {
  if (compile.request.has_explain()) return;
  const cache::Digest key = FailureKey(compile.kept_under, compile.request.module());
  const v1::KeptFailure kept =
      parts_.sealer.Seal(key, ToKeep(failure), compile.request.target(), {.tenant = compile.caller.tenant, .name = compile.name});
  auto entry = SealFailure(key, compile.caller.tenant, kept, {.target = compile.request.target(), .name = compile.name});
  if (!entry) return;
  const std::size_t sealed_bytes = entry->sealed().size();
  if (!parts_.store_keeper.Fits(compile.caller.tenant, sealed_bytes)) return;
  parts_.cache.Put(std::move(*entry));
  parts_.store_keeper.Note(compile.caller.tenant, sealed_bytes);
  if (!compile.request.refresh()) index_.Remember(compile.asked, key, compile.generation);
}

Failure CompileFlow::Defect(Compile& compile, const JobOutcome& outcome, const std::string& cause) {
  ++parts_.metrics.counts.failed;
  if (outcome.end == JobOutcome::End::kDied) ++parts_.metrics.counts.worker_crashes;
  const std::string place = outcome.stage.empty() ? "" : fmt::format(" in stage {}", outcome.stage);
  const std::string path =
      parts_.reproducers.Save(compile.key, compile.request, options_.build_id, fmt::format("{}{}\n{}", cause, place, outcome.said));
  if (outcome.end == JobOutcome::End::kDied) parts_.reproducers.NoteCrash(CrashKey(compile.kept_under, KindOf(compile.request)), cause, path);
  return {.kind = Kind::kDefect,
          .message = fmt::format("the compiler failed on this program: {}{}{}. {}", cause, SettingBehind(cause), place,
                                 path.empty() ? "The reproducer could not be written; look at the state directory."
                                              : fmt::format("`kiln compile --repro {}` runs it again.", path)),
          .reproducer = path};
}

}  // namespace kiln::server
