// SPDX-License-Identifier: Apache-2.0
//
// Spans of requests as OTLP JSON, one ExportTraceServiceRequest a line (https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/),
// as a collector's file receiver reads them: a server span for each call and a child for each stage it went through. Calls whose client
// said "not sampled" are left out; those without a trace of their own get one.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>

#include "server/telemetry/call_record.h"

namespace kiln::server {

class SpanFile {
 public:
  // The file is moved to FILE.1 (a.json: a.1.json) when it has so many bytes: the two hold at most twice that.
  static std::expected<std::unique_ptr<SpanFile>, std::string> Open(const std::string& path, std::uint64_t max_bytes);
  ~SpanFile();

  void Write(std::span<const CallRecord> records);

 private:
  struct Sink;
  explicit SpanFile(std::unique_ptr<Sink> sink);
  const std::unique_ptr<Sink> sink_;
};

// One line, without its end.
std::string ToOtlp(const CallRecord& record);

}  // namespace kiln::server
