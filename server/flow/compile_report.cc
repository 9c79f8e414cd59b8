// SPDX-License-Identifier: Apache-2.0
#include "server/flow/compile_report.h"

#include <chrono>
#include <string_view>

namespace kiln::server {
namespace {

std::string_view OutcomeName(const JobOutcome& outcome, const Outcome& made) {
  switch (outcome.end) {
    case JobOutcome::End::kResult:
      if (made) return "ok";
      return made.error().kind == Failure::Kind::kDefect ? "defect" : made.error().kind == Failure::Kind::kNoWorker ? "no-worker" : "refused";
    case JobOutcome::End::kDied: return "defect";
    case JobOutcome::End::kCancelled: return "cancelled";
    case JobOutcome::End::kLost:
    case JobOutcome::End::kNoWorker: return "no-worker";
    case JobOutcome::End::kRefused: return "refused";
    case JobOutcome::End::kElsewhere: break;  // no compile of this host
  }
  return "other";
}

std::string_view PriorityName(v1::Priority priority) {
  return priority == v1::INTERACTIVE ? "interactive" : priority == v1::BATCH ? "batch" : "tuning";
}

}  // namespace

void NoteStages(CallNotes& notes, const JobOutcome& outcome, cache::SteadyTime now) {
  using Duration = std::chrono::steady_clock::duration;
  const auto of = [](double milliseconds) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(milliseconds)); };
  const Duration queue = of(outcome.queue_ms);
  auto at = now - std::chrono::duration_cast<Duration>(outcome.ran);
  notes.Add("queue", at - queue, queue);
  for (const v1::Timing& timing : outcome.result.timings()) {
    notes.Add(timing.stage(), at, of(timing.milliseconds()));
    at += of(timing.milliseconds());
  }
}

void Report(const EndedCompile& ended, const Telemetry& telemetry, Metrics& metrics) {
  const JobOutcome& outcome = ended.outcome;
  const std::string_view name = OutcomeName(outcome, ended.made);
  // Each request's line says what the compiler made or refused. A failure of the compiler gets a line of its own.
  telemetry.Log(name == "ok" || name == "refused" ? Level::kDebug : Level::kWarning, "compile",
                {{"request", std::string_view(ended.request_id)},
                 {"key", ended.key.ToHex().substr(0, 16)},
                 {"target", std::string_view(ended.request.target())},
                 {"outcome", outcome.cause.empty() ? name : std::string_view(outcome.cause)},
                 {"stage", std::string_view(outcome.stage)},
                 {"queue_ms", outcome.queue_ms},
                 {"ms", std::chrono::duration<double, std::milli>(outcome.ran).count()},
                 {"bytes", static_cast<std::int64_t>(ended.made ? ended.made->kept.size() : 0)}});
  metrics.NoteCompile({.target = ended.request.target(),
                       .outcome = name,
                       .priority = PriorityName(ended.request.priority()),
                       .queued = std::chrono::microseconds(static_cast<std::int64_t>(outcome.queue_ms * 1000)),
                       .ran = outcome.ran,
                       .answered = outcome.end == JobOutcome::End::kResult,
                       .stages = outcome.result.timings()});
}

}  // namespace kiln::server
