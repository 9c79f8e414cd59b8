// SPDX-License-Identifier: Apache-2.0
#include "server/system/file_watch.h"

#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kLookEvery{1};

// What a file looks like from outside.
struct Stamp {
  explicit Stamp(const std::filesystem::path& path) {
    struct stat status{};
    if (!path.empty() && ::stat(path.c_str(), &status) == 0) {
      facts = {static_cast<std::int64_t>(status.st_ino),
               status.st_size,
               status.st_mtim.tv_sec,
               status.st_mtim.tv_nsec,
               status.st_ctim.tv_sec,
               status.st_ctim.tv_nsec};
    }
  }
  bool operator==(const Stamp&) const = default;
  std::array<std::int64_t, 6> facts{};
};

}  // namespace

struct FileWatch::Watched {
  File file;
  std::optional<Stamp> read;  // as it was when it was last read without an error
  std::string problem;        // that has been reported
};

FileWatch::FileWatch(std::vector<Watched> files) : files_(std::move(files)), thread_([this] { Watch(); }) {}

std::expected<std::unique_ptr<FileWatch>, std::string> FileWatch::Start(std::vector<File> files) {
  std::vector<Watched> watched;
  for (File& file : files) {
    const Stamp before(file.path);
    if (auto read = file.read(); !read) return std::unexpected(std::move(read.error()));
    watched.push_back({std::move(file), before, {}});
  }
  return std::unique_ptr<FileWatch>(new FileWatch(std::move(watched)));
}

FileWatch::~FileWatch() {
  {
    cache::MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void FileWatch::Reload() {
  {
    cache::MutexLock lock(mutex_);
    reload_ = true;
  }
  wake_.NotifyAll();
}

void FileWatch::Look(Watched& watched, bool asked) {
  const Stamp now(watched.file.path);
  if (!asked && watched.read == now) return;
  const auto done = watched.file.read();
  watched.read = done ? std::optional(now) : std::nullopt;
  const std::string problem = done ? "" : done.error();
  const bool known = !asked && !done && problem == watched.problem;
  watched.problem = problem;
  if (!known && watched.file.told) watched.file.told(problem);
}

void FileWatch::Watch() {
  cache::MutexLock lock(mutex_);
  for (;;) {
    wake_.WaitFor(mutex_, kLookEvery, [&]() KILN_REQUIRES(mutex_) { return stopping_ || reload_; });
    if (stopping_) return;
    const bool asked = std::exchange(reload_, false);
    lock.Unlock();
    for (Watched& file : files_) Look(file, asked);
    lock.Lock();
  }
}

}  // namespace kiln::server
