// SPDX-License-Identifier: Apache-2.0
//
// What is kept of compiles that the compiler itself failed on: a reproducer file for each, the newest so many, and a memory of
// the keys, so that a program that kills workers again and again is answered without another try for a while. The memory outlives
// the daemon (crash_log.h); a key holds the compiler's build, so what another build is given to try is another key.
//
// Threads. All members may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "cache/clock.h"
#include "cache/digest.h"
#include "kiln/v1/compile.pb.h"
#include "server/crash_log.h"

namespace kiln::server {

class Reproducers {
 public:
  struct Options {
    std::filesystem::path directory;
    std::size_t keep = 32;
    unsigned crashes_to_open = 2;
    std::chrono::seconds stay_open{86'400};  // what killed them may have been the host
  };

  Reproducers(Options options, const cache::Clock& clock);

  // Writes the file and returns its path; empty where it cannot be written.
  std::string Save(const cache::Digest& key, const v1::CompileRequest& request, std::string_view compiler,
                   std::string_view cause);

  struct KnownCrash {
    std::string cause;
    std::string reproducer;
    std::chrono::seconds retry_in;
  };
  void NoteCrash(const cache::Digest& key, std::string_view cause, std::string_view reproducer);

  // Set when the key has crashed so often that it should not be tried now.
  std::optional<KnownCrash> IsOpen(const cache::Digest& key);

 private:
  struct Record {
    unsigned crashes = 0;
    cache::SteadyTime last{};
    std::string cause;
    std::string reproducer;
  };

  void RemoveOldest();
  void Recall();
  void Forget(cache::SteadyTime now);
  CrashLine LineOf(const cache::Digest& key, const Record& record) const;
  void Write(const cache::Digest& key, const Record& record);

  const Options options_;
  const cache::Clock& clock_;
  std::mutex files_;
  std::mutex mutex_;
  std::unordered_map<cache::Digest, Record> records_;
  CrashLog log_;  // of records_
};

}  // namespace kiln::server
