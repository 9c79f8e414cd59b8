// SPDX-License-Identifier: Apache-2.0
//
// Structured logs. One line an event, with the id of its request; never the text of a program, a path of a
// client's source, or a name from inside a kernel.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kiln::server {

enum class Level { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  Level level = Level::kInfo;
  bool json = false;  // else key=value
  std::string file;   // empty: stderr
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

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
};

}  // namespace kiln::server
