// SPDX-License-Identifier: Apache-2.0
//
// kilnd's side of the zygote: a process that has the compiler initialised and forks workers from itself (worker_process.h).
//
// Threads. Start before any thread and before gRPC exists. One thread reads what the zygote says and hands it out: forked
// workers to the caller of Fork, one at a time; ends of workers to WaitForEnd. All members may be called from any thread.
//
// A zygote that dies takes its workers with it (PDEATHSIG). The next Fork starts another; one that cannot even become ready is
// started at most once a second, and Fork fails at once in between.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "clients/common/unique_fd.h"
#include "server/worker/worker_protocol.h"

namespace kiln::server {

struct ZygoteOptions {
  std::filesystem::path executable;
  std::uint64_t worker_memory_bytes = 0;
  std::string ptxas;
  std::string build_id;                                        // a zygote of another build is not used
  std::optional<unsigned> user;                                // whom the workers of root become
  std::string library_path;                                    // folders between colons, where GPU drivers may be
  std::function<void(std::string_view protections)> on_ready;  // of its workers (sandbox.h); may be empty
};

// How a worker ended.
struct WorkerEnd {
  int status = 0;  // as of wait(2)
  std::uint32_t max_rss_kib = 0;
};

class Zygote {
 public:
  struct Child {
    pid_t pid = 0;
    std::uint64_t generation = 0;  // of the zygote it was forked from
    UniqueFd socket;
    UniqueFd log;  // its stderr; the file offset is where it stopped writing
  };

  Zygote(ZygoteOptions options, const cache::Clock& clock);
  ~Zygote();
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  // Starts the process, and does not wait until it is ready. An error here is final: the executable cannot be run.
  std::expected<void, std::string> Start();

  // A new worker; waits for the zygote to be ready. The error says why there is none and what to do.
  // A GPU's worker opens `device` ("cuda:0") before its first job; empty: none.
  std::expected<Child, std::string> Fork(WorkerRole role, std::string_view device = {});

  void Kill(const Child& child);

  // The end of a worker whose socket has closed or that was killed; empty when it does not come in time or the zygote itself
  // is gone. Forgets the child.
  std::optional<WorkerEnd> WaitForEnd(const Child& child, std::chrono::milliseconds patience);

  // True when the zygote the child came from is gone, and the child for that reason.
  bool Lost(const Child& child);

  // By which its workers' times are limited.
  const cache::Clock& clock() const { return clock_; }

  // The compiler's passes, in their order; waits for the zygote to be ready.
  std::vector<std::string> Passes();

 private:
  struct Peer;  // one zygote process

  std::expected<void, std::string> Spawn() KILN_REQUIRES(mutex_);
  void ReadEvents(std::shared_ptr<Peer> peer);
  void Note(Peer& peer, const ZygoteEvent& event, UniqueFd socket, UniqueFd log) KILN_REQUIRES(mutex_);
  std::expected<std::shared_ptr<Peer>, std::string> ReadyPeer() KILN_REQUIRES(mutex_);
  std::optional<std::expected<Child, std::string>> Ask(Peer& zygote, WorkerRole role, std::string_view device) KILN_REQUIRES(forking_, mutex_);

  const ZygoteOptions options_;
  const cache::Clock& clock_;
  cache::Mutex forking_ KILN_ACQUIRED_BEFORE(mutex_);  // one Fork at a time

  mutable cache::Mutex mutex_;
  cache::CondVar changed_;
  std::shared_ptr<Peer> peer_ KILN_GUARDED_BY(mutex_);
  std::uint64_t generation_ KILN_GUARDED_BY(mutex_) = 0;
  cache::SteadyTime last_spawn_ KILN_GUARDED_BY(mutex_){};
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::server
