// SPDX-License-Identifier: Apache-2.0
//
// What a daemon hands on to the next of the programs that killed its workers. A line each, the last one of a key counts:
//
//   UNIX_SECONDS CRASHES KEY_HEX REPRODUCER CAUSE…          REPRODUCER: a file's name, or "-" where none was written
//                                                           CRASHES: 0 once a compile of it came to an end
//
// Appended when a worker dies; a line that an abrupt end cut short is left out when it is read.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.h"

namespace kiln::server {

struct CrashLine {
  std::chrono::sys_seconds last;
  unsigned crashes = 0;
  cache::Digest key;
  std::string reproducer;  // without its folder; empty: none
  std::string cause;
};

std::string Format(const CrashLine& line);  // without its end
std::vector<CrashLine> ParseCrashLog(std::string_view text);

// One thread at a time. What cannot be written is lost with the daemon.
class CrashLog {
 public:
  explicit CrashLog(std::filesystem::path path) : path_(std::move(path)) {}

  std::vector<CrashLine> Read();
  void Append(const CrashLine& line);
  void Replace(std::span<const CrashLine> lines);
  std::size_t lines() const { return lines_; }  // in the file

 private:
  const std::filesystem::path path_;
  std::size_t lines_ = 0;
};

}  // namespace kiln::server
