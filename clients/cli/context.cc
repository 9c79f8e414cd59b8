// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "clients/cli/commands.h"

namespace kiln::cli {
namespace {

std::string_view Name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid: return "invalid";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kRefused: return "refused";
    case ErrorCode::kBusy: return "busy";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kDeadline: return "deadline";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

Json ToJson(const Diagnostic& diagnostic) {
  return Json::Object({{"message", diagnostic.message},
                       {"hint", diagnostic.hint},
                       {"statement", diagnostic.statement},
                       {"file", diagnostic.file},
                       {"line", diagnostic.line}});
}

void Print(const Diagnostic& diagnostic, bool colours) {
  const bool error = diagnostic.severity == Severity::kError;
  std::string place = diagnostic.file;
  if (diagnostic.line > 0) place += (place.empty() ? "line " : ":") + std::to_string(diagnostic.line);
  if (!place.empty()) place += ": ";
  fmt::print(
      stderr, "{}{}: {}\n", Paint(place, Style::kBold, colours),
      error ? Paint("error", Style::kBad, colours) : Paint(diagnostic.severity == Severity::kWarning ? "warning" : "note", Style::kWarn, colours),
      diagnostic.message);
  if (!diagnostic.statement.empty()) fmt::print(stderr, "    {}\n", diagnostic.statement);
  if (!diagnostic.hint.empty()) fmt::print(stderr, "    {} {}\n", Paint("try:", Style::kAccent, colours), diagnostic.hint);
}

}  // namespace

CLI::Validator Seconds(double least, double most) {
  const auto check = [=](const std::string& text) -> std::string {
    double seconds = 0;
    const bool fits = CLI::detail::lexical_cast(text, seconds) && seconds > 0 && seconds >= least && seconds <= most;
    if (fits) return {};
    return least == 0 ? text + " is no time: give a number of seconds above 0" : fmt::format("give from {} to {} seconds, not {}", least, most, text);
  };
  return {check, "SECONDS"};
}

std::chrono::milliseconds Context::timeout() const {
  constexpr std::chrono::duration<double> kYear = std::chrono::hours(24 * 365);  // what clocks count ends some time after one
  return std::chrono::ceil<std::chrono::milliseconds>(std::min(std::chrono::duration<double>(timeout_seconds), kYear));
}

std::expected<Client, Error> Context::Connect() const {
  ConnectOptions options = connect;
  options.timeout = timeout();
  return Client::Connect(std::move(options));
}

void Context::LeaveStdoutTo(const std::string& file) {
  struct stat named{}, out{};
  if (file.empty() || ::stat(file.c_str(), &named) != 0 || ::fstat(STDOUT_FILENO, &out) != 0) return;
  const bool keeps_nothing = S_ISCHR(out.st_mode) && ::isatty(STDOUT_FILENO) == 0;  // /dev/null
  if (keeps_nothing || named.st_dev != out.st_dev || named.st_ino != out.st_ino) return;
  LeaveStdout();
}

void Context::LeaveStdout() {
  report = stderr;
  terminal.out_is_terminal = ::isatty(STDERR_FILENO) != 0;
  terminal.out = terminal.err;
}

void Context::Print(const Json& value) const { fmt::print(report, "{}\n", value.text()); }

void Context::Fail(const Error& error) {
  status = 1;
  if (json()) {
    Print(Json::Object({{"error", Name(error.code)},
                        {"message", error.message},
                        {"diagnostics", Json::Map(error.diagnostics, ToJson)},
                        {"reproducer", error.reproducer},
                        {"retry_after_ms", error.retry_after ? Json(std::int64_t{error.retry_after->count()}) : Json::Null()},
                        {"request", error.request_id}}));
    return;
  }
  for (const Diagnostic& diagnostic : error.diagnostics) cli::Print(diagnostic, terminal.err);
  if (error.diagnostics.empty() || error.code == ErrorCode::kInternal) {
    fmt::print(stderr, "{} {}\n", Paint("kiln:", Style::kBad, terminal.err), error.message);
  }
}

}  // namespace kiln::cli
