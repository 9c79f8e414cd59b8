// SPDX-License-Identifier: Apache-2.0
//
// Structured logs and counters. One line an event, with the id of its request; never the text of a program, a path of a
// client's source, or a name from inside a kernel.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kiln::server {

enum class Level { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  Level level = Level::kInfo;
  bool json = false;    // else key=value
  std::string file;     // empty: stderr
};

class Telemetry {
 public:
  using Value = std::variant<std::string_view, std::int64_t, double>;
  using Field = std::pair<std::string_view, Value>;

  explicit Telemetry(const LogOptions& options);
  ~Telemetry();

  void Log(Level level, std::string_view event, std::initializer_list<Field> fields) const;
  // Many lines at a time: they are written when Flush is called.
  void LogUnflushed(Level level, std::string_view event, std::span<const Field> fields) const;
  void Flush() const;

  // Opens the log's file anew by its name, for whoever has moved the old one away. False: it cannot be opened; the old one is kept.
  bool Reopen();

  // A compile took so long from its start in a worker.
  void NoteCompile(double milliseconds);
  struct Quantiles {
    double p50 = 0;
    double p99 = 0;
  };
  Quantiles CompileTimes() const;  // of the last 1024

  std::atomic<std::uint64_t> requests = 0;
  std::atomic<std::uint64_t> hits = 0;
  std::atomic<std::uint64_t> compiles = 0;
  std::atomic<std::uint64_t> joined = 0;
  std::atomic<std::uint64_t> refused = 0;
  std::atomic<std::uint64_t> failed = 0;
  std::atomic<std::uint64_t> worker_crashes = 0;

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
  mutable std::mutex mutex_;
  std::array<float, 1024> times_{};
  std::size_t times_seen_ = 0;
};

}  // namespace kiln::server
