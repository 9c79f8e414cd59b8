// SPDX-License-Identifier: Apache-2.0
//
// A process that compiles the modules of one range of seeds after the other under a compile worker's limits of memory, and what became of each.
// A process that ends before its range does, or takes too long over a module, is told from one that is done; the next one goes on behind that seed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace kiln::fuzz {

struct Limits {
  double seconds = 10;                            // of processor time that one module may take
  std::uint64_t memory = std::uint64_t{4} << 30;  // of a process
  std::string target;                             // for all modules; empty: the targets in turn
  std::string among;                              // skips modules whose target's name does not begin so
};

// What became of one module.
struct Verdict {
  std::uint64_t seed = 0;
  std::string status;  // "ok", "invalid", "unsupported", "internal", "unavailable", "crash", "hang", "memory"
  std::string text;    // the message, or how the process ended and in which stage
  double seconds = 0;  // of processor time
  std::string stages;  // where the most of them went, longest first

  bool IsFault() const { return status == "internal" || status == "unavailable" || status == "crash" || status == "hang" || status == "memory"; }
};

// With a name in `llvm`, that file gets the code before and after LLVM optimized it.
Verdict CompileOne(std::uint64_t seed, const Limits& limits, const std::string& llvm = {});

class Worker {
 public:
  // Forks. The process compiles the modules from `first` to before `end`.
  Worker(std::uint64_t first, std::uint64_t end, const Limits& limits);
  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  ~Worker();

  int descriptor() const { return fd_; }
  // Takes what the process has written; false: it wrote its last.
  bool Read(const std::function<void(const Verdict&)>& take);
  // Ends a process that takes too long.
  void Watch();
  // Lets the process end with the module that it is at.
  void Stop();
  // After Read said false: how the module ended that was under way, if one was. `next()` is the first seed that nobody has compiled.
  std::optional<Verdict> Bury();
  std::uint64_t next() const { return next_; }
  std::uint64_t end() const { return end_; }
  long peak_kib() const { return peak_kib_; }

 private:
  struct Shared;  // what the process says of the module it is at; survives its end

  [[noreturn]] void Serve(int fd);
  double ProcessorSeconds() const;

  Limits limits_;
  std::uint64_t next_, end_;
  Shared* shared_;
  pid_t pid_ = -1;
  int fd_ = -1;
  bool overdue_ = false;
  double seconds_ = 0;  // of the module that was overdue
  long peak_kib_ = 0;
  std::string pending_;
};

}  // namespace kiln::fuzz
