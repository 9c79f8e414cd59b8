// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/spans.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/spdlog.h>

#include "server/reply/reply.h"
#include "server/reply/status_map.h"
#include "server/system/guarded_file.h"
#include "server/system/json_text.h"

namespace kiln::server {
namespace {

using std::chrono::nanoseconds;

constexpr int kServer = 2;  // opentelemetry.proto.trace.v1.Span.SpanKind
constexpr int kInternal = 1;
constexpr int kOk = 1;  // Status.StatusCode
constexpr int kError = 2;

class SpanText {
 public:
  SpanText(std::string& out, const CallRecord& record, std::string_view name, std::string_view id, std::string_view parent, int kind) : out_(out) {
    fmt::format_to(std::back_inserter(out_), R"({{"traceId":"{}","spanId":"{}",)", record.trace.TraceHex(), id);
    if (!parent.empty()) fmt::format_to(std::back_inserter(out_), R"("parentSpanId":"{}",)", parent);
    out_ += R"("name":)";
    AppendQuoted(out_, name);
    fmt::format_to(std::back_inserter(out_), R"(,"kind":{})", kind);
  }

  void Times(const CallRecord& record, std::chrono::steady_clock::time_point began, std::chrono::microseconds took) {
    const nanoseconds start = record.arrived.time_since_epoch() + (began - record.began);
    fmt::format_to(std::back_inserter(out_), R"(,"startTimeUnixNano":"{}","endTimeUnixNano":"{}")", start.count(),
                   (start + nanoseconds(took)).count());
  }

  void Attribute(std::string_view name, std::string_view value) {
    if (value.empty()) return;
    out_ += std::exchange(any_, true) ? "," : R"(,"attributes":[)";
    out_ += R"({"key":)";
    AppendQuoted(out_, name);
    out_ += R"(,"value":{"stringValue":)";
    AppendQuoted(out_, value);
    out_ += "}}";
  }

  void End(int status) {
    if (any_) out_ += "]";
    fmt::format_to(std::back_inserter(out_), R"(,"status":{{"code":{}}}}})", status);
  }

 private:
  std::string& out_;
  bool any_ = false;
};

std::string SpanId() {
  const auto id = NewSpanId();
  return HexOf(id.data(), id.size());
}

void AppendCall(std::string& out, const CallRecord& record, std::string_view id) {
  const std::string parent =
      record.trace.parent == decltype(record.trace.parent){} ? std::string() : HexOf(record.trace.parent.data(), record.trace.parent.size());
  SpanText span(out, record, fmt::format("kiln.v1.Kiln/{}", record.method), id, parent, kServer);
  span.Times(record, record.began, record.took);
  span.Attribute("rpc.system", "grpc");
  span.Attribute("rpc.grpc.status_code", std::to_string(record.code));
  span.Attribute("kiln.request", RequestIdText(record.number));
  span.Attribute("kiln.tenant", record.tenant);
  span.Attribute("kiln.target", record.target);
  span.Attribute("kiln.key", record.key_prefix);
  span.Attribute("kiln.origin", OriginText(record.origin));
  span.Attribute("kiln.reason", record.reason);
  span.End(record.code == 0 ? kOk : kError);
}

}  // namespace

std::string ToOtlp(const CallRecord& given) {
  CallRecord record = given;
  if (!record.trace.known()) record.trace = NewTrace();
  std::string out = R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"kilnd"}}]},)"
                    R"("scopeSpans":[{"scope":{"name":"kiln"},"spans":[)";
  const std::string id = SpanId();
  AppendCall(out, record, id);
  for (const StageTime& stage : record.stages) {
    out.push_back(',');
    SpanText span(out, record, stage.name, SpanId(), id, kInternal);
    span.Times(record, stage.began, stage.took);
    span.End(0);
  }
  return out + "]}]}]}";
}

struct SpanFile::Sink {
  spdlog::logger logger;
};

SpanFile::SpanFile(std::unique_ptr<Sink> sink) : sink_(std::move(sink)) {}
SpanFile::~SpanFile() = default;

std::expected<std::unique_ptr<SpanFile>, std::string> SpanFile::Open(const std::string& path, std::uint64_t max_bytes) {
  const auto fail = [&](std::string_view why) {
    return std::unexpected(fmt::format("cannot write the span file {}: {}; choose another with --trace-file", path, why));
  };
  if (const std::string why = WhyNotRenamed(path); !why.empty()) return fail(why);
  try {
    auto sink = std::make_unique<Sink>(Sink{spdlog::logger("spans", std::make_shared<spdlog::sinks::rotating_file_sink_st>(path, max_bytes, 1))});
    sink->logger.set_pattern("%v");
    return std::unique_ptr<SpanFile>(new SpanFile(std::move(sink)));
  } catch (const spdlog::spdlog_ex& error) {
    return fail(error.what());
  }
}

void SpanFile::Write(std::span<const CallRecord> records) {
  for (const CallRecord& record : records) {
    if (record.trace.sampled) sink_->logger.info("{}", ToOtlp(record));
  }
  sink_->logger.flush();
}

}  // namespace kiln::server
