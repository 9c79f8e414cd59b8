// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/grpc_lines.h"

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <grpc/support/log.h>

#include "cache/mutex.h"
#include "server/telemetry/line_budget.h"

namespace kiln::server {
namespace {

// gRPC takes a function and nothing to go with it.
struct Destination {
  cache::Mutex mutex;
  const Telemetry* telemetry KILN_GUARDED_BY(mutex) = nullptr;
  const cache::Clock* clock KILN_GUARDED_BY(mutex) = nullptr;
  LineBudget lines;
};

Destination& TheDestination() {
  static auto* const destination = new Destination;  // threads of gRPC's may outlive main
  return *destination;
}

Level LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG: return Level::kDebug;
    case GPR_LOG_SEVERITY_INFO: return Level::kInfo;
    case GPR_LOG_SEVERITY_ERROR: return Level::kError;
  }
  return Level::kError;
}

void Write(gpr_log_func_args* said) {
  const std::string_view path = said->file;
  const std::string at = fmt::format("{}:{}", path.substr(path.rfind('/') + 1), said->line);
  Destination& destination = TheDestination();
  cache::MutexLock lock(destination.mutex);
  if (destination.telemetry == nullptr) return;
  const auto left_out = destination.lines.Take(at, destination.clock->SteadyNow());
  if (!left_out) return;
  destination.telemetry->Log(
      LevelOf(said->severity), "grpc",
      {{"at", std::string_view(at)}, {"message", std::string_view(said->message)}, {"left-out", static_cast<std::int64_t>(*left_out)}});
}

void Direct(const Telemetry* telemetry, const cache::Clock* clock) {
  Destination& destination = TheDestination();
  cache::MutexLock lock(destination.mutex);
  destination.telemetry = telemetry;
  destination.clock = clock;
}

}  // namespace

GrpcLines::GrpcLines(const Telemetry& telemetry, const cache::Clock& clock) {
  Direct(&telemetry, &clock);
  gpr_set_log_function(Write);
}

GrpcLines::~GrpcLines() {
  gpr_set_log_function(nullptr);
  Direct(nullptr, nullptr);
}

}  // namespace kiln::server
