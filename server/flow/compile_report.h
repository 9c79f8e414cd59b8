// SPDX-License-Identifier: Apache-2.0
//
// What the log, the metrics and the starter's spans are told of a compile that has ended.
#pragma once

#include "cache/clock.h"
#include "cache/digest.h"
#include "server/queue/admission.h"
#include "server/reply/reply.h"
#include "server/telemetry/call_record.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

// The queue and the worker's stages, one behind the other, the last of them ending now.
void NoteStages(CallNotes& notes, const JobOutcome& outcome, cache::SteadyTime now);

struct EndedCompile {
  const std::string& request_id;
  const cache::Digest& key;
  const v1::CompileRequest& request;
  const JobOutcome& outcome;
  const Outcome& made;
};
void Report(const EndedCompile& ended, const Telemetry& telemetry, Metrics& metrics);

}  // namespace kiln::server
