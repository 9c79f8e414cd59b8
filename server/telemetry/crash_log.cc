// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/crash_log.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kNoFile = "-";
constexpr std::size_t kMaxCause = 200;

std::optional<CrashLine> ParseLine(const std::string& text) {
  std::istringstream words(text);
  std::int64_t seconds = 0;
  CrashLine line;
  std::string key;
  if (!(words >> seconds >> line.crashes >> key >> line.reproducer)) return std::nullopt;
  const auto digest = cache::Digest::FromHex(key);
  if (!digest) return std::nullopt;
  line.last = std::chrono::sys_seconds(std::chrono::seconds(seconds));
  line.key = *digest;
  if (line.reproducer == kNoFile) line.reproducer.clear();
  if (line.reproducer.find('/') != std::string::npos) return std::nullopt;
  std::getline(words >> std::ws, line.cause);
  return line;
}

}  // namespace

std::string Format(const CrashLine& line) {
  std::string cause = line.cause.substr(0, kMaxCause);
  std::ranges::replace(cause, '\n', ' ');
  return fmt::format("{} {} {} {} {}", line.last.time_since_epoch().count(), line.crashes, line.key.ToHex(),
                     line.reproducer.empty() ? kNoFile : line.reproducer, cause);
}

std::vector<CrashLine> ParseCrashLog(std::string_view text) {
  std::vector<CrashLine> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == text.npos) break;
    if (auto line = ParseLine(std::string(text.substr(0, end)))) lines.push_back(std::move(*line));
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::vector<CrashLine> CrashLog::Read() {
  std::ostringstream text;
  text << std::ifstream(path_, std::ios::binary).rdbuf();
  auto lines = ParseCrashLog(text.view());
  lines_ = lines.size();
  return lines;
}

void CrashLog::Append(const CrashLine& line) {
  std::error_code error;
  const std::uintmax_t size = fs::exists(path_, error) ? fs::file_size(path_, error) : 0;
  std::ofstream file(path_, std::ios::binary | std::ios::app);
  file << Format(line) << '\n';
  file.close();
  if (!file.fail()) {
    ++lines_;
  } else if (!error) {
    fs::resize_file(path_, size, error);  // what a full disk took of it would spoil the next line
  }
}

void CrashLog::Replace(std::span<const CrashLine> lines) {
  const fs::path temporary = path_.string() + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  for (const CrashLine& line : lines) file << Format(line) << '\n';
  file.close();
  std::error_code error;
  if (!file.fail()) fs::rename(temporary, path_, error);
  if (file.fail() || error) fs::remove(temporary, error);
  lines_ = lines.size();
}

}  // namespace kiln::server
