// SPDX-License-Identifier: Apache-2.0
#include "server/grpc_lines.h"

#include <mutex>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <grpc/support/log.h>

#include "server/line_budget.h"

namespace kiln::server {
namespace {

// gRPC takes a function and nothing to go with it.
struct Destination {
  std::mutex mutex;
  const Telemetry* telemetry = nullptr;  // guarded by mutex
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
  const auto left_out = destination.lines.Take(at, LineBudget::Clock::now());
  if (!left_out) return;
  std::lock_guard lock(destination.mutex);
  if (destination.telemetry == nullptr) return;
  destination.telemetry->Log(LevelOf(said->severity), "grpc",
                             {{"at", std::string_view(at)},
                              {"message", std::string_view(said->message)},
                              {"left-out", static_cast<std::int64_t>(*left_out)}});
}

void Direct(const Telemetry* telemetry) {
  Destination& destination = TheDestination();
  std::lock_guard lock(destination.mutex);
  destination.telemetry = telemetry;
}

}  // namespace

GrpcLines::GrpcLines(const Telemetry& telemetry) {
  Direct(&telemetry);
  gpr_set_log_function(Write);
}

GrpcLines::~GrpcLines() {
  gpr_set_log_function(nullptr);
  Direct(nullptr);
}

}  // namespace kiln::server
