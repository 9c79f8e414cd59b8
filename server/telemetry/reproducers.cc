// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/reproducers.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
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

// What the last daemon knew, in the order in which it came to know it.
void Reproducers::Recall() {
  for (CrashLine& line : log_.Read()) {
    const std::string path = line.reproducer.empty() ? "" : (options_.directory / line.reproducer).string();
    records_.insert_or_assign(line.key, Record{line.crashes, ++last_order_, line.last, std::move(line.cause), path});
  }
  std::erase_if(records_, [](const auto& item) { return item.second.crashes == 0; });
  while (records_.size() > options_.keys) ForgetOldest();
  if (log_.lines() != records_.size()) WriteAll();
}

void Reproducers::ForgetOldest() {
  records_.erase(std::ranges::min_element(records_, {}, [](const auto& item) { return item.second.order; }));
}

CrashLine Reproducers::LineOf(const cache::Digest& key, const Record& record) const {
  return {record.last, record.crashes, key, fs::path(record.reproducer).filename().string(), record.cause};
}

void Reproducers::Write(const CrashLine& line) {
  if (log_.lines() < 2 * options_.keys) return log_.Append(line);
  WriteAll();
}

void Reproducers::WriteAll() {
  std::vector<std::pair<std::uint64_t, CrashLine>> lines;
  for (const auto& [key, record] : records_) lines.emplace_back(record.order, LineOf(key, record));
  std::ranges::sort(lines, {}, [](const auto& line) { return line.first; });  // as Recall takes them
  std::vector<CrashLine> sorted;
  for (auto& [order, line] : lines) sorted.push_back(std::move(line));
  log_.Replace(sorted);
}

std::string Reproducers::Save(const cache::Digest& key, const v1::CompileRequest& request, std::string_view compiler, std::string_view cause) {
  v1::Reproducer reproducer;
  *reproducer.mutable_request() = request;
  reproducer.set_compiler(std::string(compiler));
  reproducer.set_cause(std::string(cause));

  cache::MutexLock lock(files_);
  std::error_code error;
  fs::create_directories(options_.directory, error);
  fs::permissions(options_.directory, fs::perms::owner_all, error);
  const fs::path path = options_.directory / fmt::format("{}{}", key.ToHex().substr(0, 16), kSuffix);
  if (!WriteFile(path, reproducer.SerializeAsString())) return {};
  RemoveOldest();
  return path.string();
}

std::set<fs::path> Reproducers::FilesOfOpen() {
  cache::MutexLock lock(mutex_);
  std::set<fs::path> files;
  for (const auto& [key, record] : records_) {
    if (record.crashes >= options_.crashes_to_open) files.insert(fs::path(record.reproducer).filename());
  }
  return files;
}

void Reproducers::RemoveOldest() {
  const std::set<fs::path> open = FilesOfOpen();
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const auto& file : fs::directory_iterator(options_.directory, error)) {
    if (file.path().extension() == kSuffix) files.emplace_back(file.last_write_time(error), file.path());
  }
  std::ranges::sort(files, std::greater());  // the newest first
  Bound kept_open, kept_others;
  for (const auto& [time, path] : files) {
    const bool is_open = open.contains(path.filename());
    const Bound& bound = is_open ? options_.open : options_.others;
    Bound& kept = is_open ? kept_open : kept_others;
    kept.bytes += fs::file_size(path, error);
    if (kept.files == bound.files || (kept.files > 0 && kept.bytes > bound.bytes)) fs::remove(path, error);
    else ++kept.files;
  }
}

void Reproducers::NoteCrash(const cache::Digest& key, std::string_view cause, std::string_view reproducer) {
  cache::MutexLock lock(mutex_);
  if (!records_.contains(key) && records_.size() >= options_.keys) ForgetOldest();
  Record& record = records_[key];
  ++record.crashes;
  record.order = ++last_order_;
  record.last = std::chrono::floor<std::chrono::seconds>(clock_.WallNow());
  record.cause = cause;
  record.reproducer = reproducer;
  Write(LineOf(key, record));
}

void Reproducers::NoteKill(const cache::Digest& key, std::string_view cause) {
  const cache::SteadyTime now = clock_.SteadyNow();
  cache::MutexLock lock(mutex_);
  std::erase_if(kills_, [&](const auto& item) { return item.second.last + options_.doubt <= now; });
  if (!kills_.contains(key) && kills_.size() >= options_.keys) {
    kills_.erase(std::ranges::min_element(kills_, {}, [](const auto& item) { return item.second.last; }));
  }
  Kills& kills = kills_[key];
  kills = {kills.count + 1, now, std::string(cause)};
}

std::optional<Reproducers::Doubt> Reproducers::IsInDoubt(const cache::Digest& key) {
  const cache::SteadyTime now = clock_.SteadyNow();
  cache::MutexLock lock(mutex_);
  const auto at = kills_.find(key);
  if (at == kills_.end() || at->second.count < options_.kills_to_doubt || at->second.last + options_.doubt <= now) return std::nullopt;
  return Doubt{at->second.count, at->second.cause, std::chrono::ceil<std::chrono::milliseconds>(at->second.last + options_.doubt - now)};
}

void Reproducers::NoteEnd(const cache::Digest& key) {
  cache::MutexLock lock(mutex_);
  kills_.erase(key);
  const auto at = records_.find(key);
  if (at == records_.end()) return;
  Record record = std::move(at->second);
  records_.erase(at);
  record.crashes = 0;
  Write(LineOf(key, record));
}

std::optional<Reproducers::KnownCrash> Reproducers::IsOpen(const cache::Digest& key) {
  KnownCrash known;
  {
    cache::MutexLock lock(mutex_);
    const auto at = records_.find(key);
    if (at == records_.end() || at->second.crashes < options_.crashes_to_open) return std::nullopt;
    known = {at->second.cause, at->second.reproducer};
  }
  std::error_code error;
  if (!fs::exists(known.reproducer, error)) known.reproducer.clear();
  return known;
}

}  // namespace kiln::server
