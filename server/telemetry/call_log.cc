// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/call_log.h"

#include <string>
#include <vector>

#include <grpcpp/support/status_code_enum.h>

#include "server/reply/reply.h"
#include "server/reply/status_map.h"

namespace kiln::server {
namespace {

// Our own defects; everything else is the client's business or the environment's.
bool IsDefect(int code) { return code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::UNKNOWN; }

double Milliseconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

void LogCall(const Telemetry& telemetry, const CallRecord& record) {
  const std::string id = RequestIdText(record.number);
  const std::string trace = record.trace.known() ? record.trace.TraceHex() : "";
  std::vector<Telemetry::Field> fields = {{"method", record.method}, {"request", std::string_view(id)}};
  const auto add = [&](std::string_view name, std::string_view value) {
    if (!value.empty()) fields.emplace_back(name, value);
  };
  add("trace", trace);
  add("tenant", record.tenant);
  add("caller", record.caller);
  add("target", record.target);
  add("key", record.key_prefix);
  add("outcome", CodeName(record.code));
  add("reason", record.reason);
  add("origin", OriginText(record.origin));
  fields.emplace_back("ms", Milliseconds(record.took));
  std::vector<std::string> names;
  names.reserve(record.stages.size());
  for (const StageTime& stage : record.stages) {
    names.push_back(stage.name + "_ms");
    fields.emplace_back(names.back(), Milliseconds(stage.took));
  }
  if (record.bytes_in > 0) fields.emplace_back("bytes_in", static_cast<std::int64_t>(record.bytes_in));
  fields.emplace_back("bytes_out", static_cast<std::int64_t>(record.bytes_out));
  telemetry.LogUnflushed(IsDefect(record.code) ? Level::kWarning : Level::kInfo, "request", fields);
}

}  // namespace

void LogCalls(const Telemetry& telemetry, std::span<const CallRecord> records) {
  for (const CallRecord& record : records) LogCall(telemetry, record);
  telemetry.Flush();
}

}  // namespace kiln::server
