// SPDX-License-Identifier: Apache-2.0
//
// Files that are read again when they change, each for itself. One that is wrong is reported, changes nothing, and is read again until it is
// right: a revocation must not be lost to a moment without descriptors.
//
// Threads. One, which looks once a second; it calls what the files bring along.
#pragma once

#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/mutex.h"

namespace kiln::server {

class FileWatch {
 public:
  struct File {
    std::filesystem::path path;                              // may not exist; empty: none
    std::function<std::expected<void, std::string>()> read;  // and what it says put in force
    std::function<void(std::string_view error)> told;        // of each reading but the first; an empty error: it is in force
  };

  // Reads all of them; the error is that of the first that is wrong.
  static std::expected<std::unique_ptr<FileWatch>, std::string> Start(std::vector<File> files);
  ~FileWatch();

  // Reads them again now, whether they look changed or not.
  void Reload();

 private:
  struct Watched;

  explicit FileWatch(std::vector<Watched> files);
  void Watch();
  static void Look(Watched& file, bool asked);

  std::vector<Watched> files_;  // of the thread
  cache::Mutex mutex_;
  cache::CondVar wake_;
  bool reload_ KILN_GUARDED_BY(mutex_) = false;
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kiln::server
