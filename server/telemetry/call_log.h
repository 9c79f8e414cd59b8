// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "server/telemetry/call_record.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

// One line a call: who asked for what, what became of it, how long each part took. On the journal's thread.
void LogCalls(const Telemetry& telemetry, std::span<const CallRecord> records);

}  // namespace kiln::server
