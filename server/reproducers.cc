// SPDX-License-Identifier: Apache-2.0
#include "server/reproducers.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kMaxRecords = 4096;
constexpr std::string_view kSuffix = ".kilnrepro";
constexpr const char* kCrashLog = "crashes";

bool WriteFile(const fs::path& path, const std::string& bytes) {
  const fs::path temporary = path.string() + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code error;
  if (!file.fail()) fs::rename(temporary, path, error);
  if (file.fail() || error) fs::remove(temporary, error);
  return fs::exists(path, error);
}

}  // namespace

Reproducers::Reproducers(Options options, const cache::Clock& clock)
    : options_(std::move(options)), clock_(clock), log_(options_.directory / kCrashLog) {
  Recall();
}

// What the last daemon knew. A wall clock that was turned back meanwhile makes a crash as old as nothing, not younger.
void Reproducers::Recall() {
  using std::chrono::seconds;
  const auto wall = std::chrono::floor<seconds>(clock_.WallNow());
  const auto now = clock_.SteadyNow();
  for (CrashLine& line : log_.Read()) {
    const seconds age = std::clamp(wall - line.last, seconds(0), options_.stay_open + seconds(1));
    const std::string path = line.reproducer.empty() ? "" : (options_.directory / line.reproducer).string();
    records_.insert_or_assign(line.key, Record{line.crashes, now - age, std::move(line.cause), path});
  }
  Forget(now);
  if (log_.lines() == records_.size()) return;
  std::vector<CrashLine> lines;
  for (const auto& [key, record] : records_) lines.push_back(LineOf(key, record));
  log_.Replace(lines);
}

void Reproducers::Forget(cache::SteadyTime now) {
  std::erase_if(records_, [&](const auto& item) { return now - item.second.last > options_.stay_open; });
  if (records_.size() >= kMaxRecords) records_.clear();
}

CrashLine Reproducers::LineOf(const cache::Digest& key, const Record& record) const {
  using std::chrono::seconds;
  const auto age = clock_.SteadyNow() - record.last;
  return {std::chrono::floor<seconds>(clock_.WallNow() - std::chrono::duration_cast<seconds>(age)), record.crashes, key,
          fs::path(record.reproducer).filename().string(), record.cause};
}

void Reproducers::Write(const cache::Digest& key, const Record& record) {
  if (log_.lines() < 2 * kMaxRecords) return log_.Append(LineOf(key, record));
  std::vector<CrashLine> lines;
  for (const auto& [each, its] : records_) lines.push_back(LineOf(each, its));
  log_.Replace(lines);
}

std::string Reproducers::Save(const cache::Digest& key, const v1::CompileRequest& request, std::string_view compiler,
                              std::string_view cause) {
  v1::Reproducer reproducer;
  *reproducer.mutable_request() = request;
  reproducer.set_compiler(std::string(compiler));
  reproducer.set_cause(std::string(cause));

  std::lock_guard lock(files_);
  std::error_code error;
  fs::create_directories(options_.directory, error);
  fs::permissions(options_.directory, fs::perms::owner_all, error);
  const fs::path path = options_.directory / fmt::format("{}{}", key.ToHex().substr(0, 16), kSuffix);
  if (!WriteFile(path, reproducer.SerializeAsString())) return {};
  RemoveOldest();
  return path.string();
}

void Reproducers::RemoveOldest() {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const auto& file : fs::directory_iterator(options_.directory, error)) {
    if (file.path().extension() == kSuffix) files.emplace_back(file.last_write_time(error), file.path());
  }
  if (files.size() <= options_.keep) return;
  std::ranges::sort(files);
  files.resize(files.size() - options_.keep);
  for (const auto& [time, path] : files) fs::remove(path, error);
}

void Reproducers::NoteCrash(const cache::Digest& key, std::string_view cause, std::string_view reproducer) {
  std::lock_guard lock(mutex_);
  const auto now = clock_.SteadyNow();
  if (records_.size() >= kMaxRecords) Forget(now);
  Record& record = records_[key];
  if (now - record.last > options_.stay_open) record.crashes = 0;
  ++record.crashes;
  record.last = now;
  record.cause = cause;
  record.reproducer = reproducer;
  Write(key, record);
}

std::optional<Reproducers::KnownCrash> Reproducers::IsOpen(const cache::Digest& key) {
  std::lock_guard lock(mutex_);
  const auto at = records_.find(key);
  if (at == records_.end() || at->second.crashes < options_.crashes_to_open) return std::nullopt;
  const auto since = clock_.SteadyNow() - at->second.last;
  if (since > options_.stay_open) return std::nullopt;
  return KnownCrash{at->second.cause, at->second.reproducer,
                    std::chrono::ceil<std::chrono::seconds>(options_.stay_open - since)};
}

}  // namespace kiln::server
