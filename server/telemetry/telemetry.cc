// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/telemetry.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <expected>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "server/system/guarded_file.h"
#include "server/system/json_text.h"

namespace kiln::server {
namespace {

struct Append {
  std::string& out;
  void operator()(std::string_view text) const { AppendQuoted(out, text); }
  void operator()(std::int64_t number) const { fmt::format_to(std::back_inserter(out), "{}", number); }
  void operator()(double number) const { fmt::format_to(std::back_inserter(out), "{:.3f}", number); }
};

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(std::string path) : path_(std::move(path)) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    if (const auto opened = Reopen(); !opened) spdlog::throw_spdlog_ex(fmt::format("cannot open {}: {}", path_, opened.error()));
  }

  std::expected<void, std::string> Reopen() {
    auto opened = OpenLog(path_);
    if (!opened) return std::unexpected(std::move(opened.error()));
    File file(::fdopen(opened->get(), "a"));
    if (!file) return std::unexpected(std::strerror(errno));
    opened->Release();
    std::lock_guard lock(mutex_);
    file_ = std::move(file);
    return {};
  }

 private:
  using File = std::unique_ptr<std::FILE, decltype([](std::FILE* file) { std::fclose(file); })>;

  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size()) Complain();
  }
  void flush_() override {
    if (std::fflush(file_.get()) != 0) Complain();
  }

  // On stderr, by the logger, at most once a second.
  [[noreturn]] void Complain() const {
    const int error = errno;
    std::clearerr(file_.get());
    spdlog::throw_spdlog_ex("cannot write " + path_, error);
  }

  const std::string path_;
  File file_;  // guarded by mutex_
};

}  // namespace

struct Telemetry::Sink {
  explicit Sink(const LogOptions& options)
      : json(options.json),
        file(options.file.empty() ? nullptr : std::make_shared<FileSink>(options.file)),
        logger("kilnd", file ? spdlog::sink_ptr(file) : std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_level(ToSpdlog(options.level));
    logger.set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%f%z","level":"%l",%v})" : "time=%Y-%m-%dT%H:%M:%S.%f%z level=%l %v");
  }
  bool json;
  std::shared_ptr<FileSink> file;  // null: stderr
  spdlog::logger logger;
};

Telemetry::Telemetry(const LogOptions& options) : sink_(std::make_unique<Sink>(options)) {}
Telemetry::~Telemetry() = default;

void Telemetry::Log(Level level, std::string_view event, std::initializer_list<Field> fields) const {
  LogUnflushed(level, event, {fields.begin(), fields.size()});
  Flush();
}

void Telemetry::LogUnflushed(Level level, std::string_view event, std::span<const Field> fields) const {
  if (!sink_->logger.should_log(ToSpdlog(level))) return;
  std::string line = sink_->json ? fmt::format(R"("event":"{}")", event) : fmt::format("event={}", event);
  for (const auto& [name, value] : fields) {
    line += sink_->json ? fmt::format(R"(,"{}":)", name) : fmt::format(" {}=", name);
    std::visit(Append{line}, value);
  }
  sink_->logger.log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void Telemetry::Flush() const { sink_->logger.flush(); }

bool Telemetry::Reopen() { return !sink_->file || sink_->file->Reopen().has_value(); }

}  // namespace kiln::server
