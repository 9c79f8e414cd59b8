// SPDX-License-Identifier: Apache-2.0
//
// What a request is told when the flow does not serve it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/queue/admission.h"
#include "server/reply/failure.h"
#include "server/telemetry/reproducers.h"

namespace kiln::server {

Failure ToFailure(const QueueFull& full);
Failure ExecutorFull(std::string_view tenant);
Failure MaintenanceFull();
Failure MessageTooLarge(std::size_t bytes, std::size_t limit);
Failure NoMemoryFor(std::string_view tenant, std::size_t capacity);
Failure NoMemoryForMessages(std::string_view tenant, std::size_t capacity);
Failure NoMemoryForManifest(std::string_view tenant, std::size_t capacity);
Failure ManifestTooLarge(std::size_t bytes, std::size_t capacity);
Failure Draining();
Failure Cancelled();
Failure NotCompiled();
Failure NotStored(std::string_view why);
Failure FailedBefore(const Reproducers::KnownCrash& known);
Failure KilledBefore(const Reproducers::Doubt& doubt);
Failure WorkerLost(std::string_view cause);  // for a reason outside of the program
Failure HostFailed(std::string_view what);   // to do something for the compiler

// The first diagnostic, with its line, and how many there are beside it.
std::string FirstMessage(const std::vector<v1::Diagnostic>& diagnostics);

}  // namespace kiln::server
