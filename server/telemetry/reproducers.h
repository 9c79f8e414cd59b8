// SPDX-License-Identifier: Apache-2.0
//
// What is kept of compiles that the compiler itself failed on: a reproducer file for each, the newest so many, and a memory of
// the keys, so that a program that kills workers again and again is answered without another try. The memory outlives the daemon
// (crash_log.h) and does not fade: a key holds the compiler's build and the limits of a worker, so what another build or a larger
// worker is given to try is another key. Only a compile that comes to an end clears a key. The files that refusals name are kept
// apart from the others, which come and go.
//
// Threads. All members may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/mutex.h"
#include "kiln/v1/compile.pb.h"
#include "server/telemetry/crash_log.h"

namespace kiln::server {

class Reproducers {
 public:
  struct Bound {
    std::size_t files = 0;
    std::uint64_t bytes = 0;  // the newest file may exceed it
  };
  struct Options {
    std::filesystem::path directory;
    Bound open{256, std::uint64_t{256} << 20};  // files of keys that are refused
    Bound others{32, std::uint64_t{128} << 20};
    std::size_t keys = 4096;
    unsigned crashes_to_open = 2;
    unsigned kills_to_doubt = 3;
    std::chrono::minutes doubt{10};  // since the last
  };

  Reproducers(Options options, const cache::Clock& clock);

  // Writes the file and returns its path; empty where it cannot be written.
  std::string Save(const cache::Digest& key, const v1::CompileRequest& request, std::string_view compiler, std::string_view cause);

  struct KnownCrash {
    std::string cause;
    std::string reproducer;  // empty: none was written, or newer ones took its place
  };
  void NoteCrash(const cache::Digest& key, std::string_view cause, std::string_view reproducer);
  void NoteEnd(const cache::Digest& key);  // without a crash

  // Set when the key has crashed so often that it should not be tried.
  std::optional<KnownCrash> IsOpen(const cache::Digest& key);

  // Notes that the worker was killed from outside, for instance by a host short of memory, whether or not the program is at fault. After a
  // few times the program is not tried for a while: otherwise clients that ask for it again and again would have others' workers killed
  // too.
  struct Doubt {
    unsigned kills = 0;
    std::string cause;
    std::chrono::milliseconds left{0};
  };
  void NoteKill(const cache::Digest& key, std::string_view cause);
  std::optional<Doubt> IsInDoubt(const cache::Digest& key);

 private:
  struct Record {
    unsigned crashes = 0;
    std::uint64_t order = 0;  // of the last crash
    std::chrono::sys_seconds last{};
    std::string cause;
    std::string reproducer;
  };

  struct Kills {
    unsigned count = 0;
    cache::SteadyTime last{};
    std::string cause;
  };
  void RemoveOldest() KILN_REQUIRES(files_);
  std::set<std::filesystem::path> FilesOfOpen();
  void Recall() KILN_REQUIRES(mutex_);
  void ForgetOldest() KILN_REQUIRES(mutex_);
  CrashLine LineOf(const cache::Digest& key, const Record& record) const;
  void Write(const CrashLine& line) KILN_REQUIRES(mutex_);
  void WriteAll() KILN_REQUIRES(mutex_);

  const Options options_;
  const cache::Clock& clock_;
  cache::Mutex files_ KILN_ACQUIRED_BEFORE(mutex_);  // one writer of the directory at a time
  cache::Mutex mutex_;
  std::unordered_map<cache::Digest, Record> records_ KILN_GUARDED_BY(mutex_);
  std::unordered_map<cache::Digest, Kills> kills_ KILN_GUARDED_BY(mutex_);
  std::uint64_t last_order_ KILN_GUARDED_BY(mutex_) = 0;
  CrashLog log_ KILN_GUARDED_BY(mutex_);  // of records_
};

}  // namespace kiln::server
