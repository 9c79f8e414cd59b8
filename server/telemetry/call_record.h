// SPDX-License-Identifier: Apache-2.0
//
// What is known of one call when it has ended: what its log line, its metrics and its spans are made of. Names and numbers about
// a program, never a piece of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "kiln/v1/compile.pb.h"
#include "server/telemetry/trace.h"

namespace kiln::server {

struct StageTime {
  std::string name;
  std::chrono::steady_clock::time_point began;
  std::chrono::microseconds took{0};
};

struct CallRecord {
  std::string_view method;   // "Compile"; empty: not one of ours
  std::uint64_t number = 0;  // the request's id, RequestIdText
  std::chrono::system_clock::time_point arrived{};
  std::chrono::steady_clock::time_point began{};
  std::chrono::microseconds took{0};  // to its status
  TraceContext trace;                 // unknown where the client sent none
  std::string tenant = "default";
  std::string caller;       // as in caller.h
  std::string target;       // from the target table; empty: none
  std::string key_prefix;   // hexadecimal
  int code = 0;             // of gRPC
  std::string_view reason;  // of a refusal, ReasonOf; empty: none
  v1::Origin origin = v1::ORIGIN_UNSPECIFIED;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::vector<StageTime> stages;
};

// What the steps of a request note on whatever thread they run. Several may do so at once, and after the call has ended.
class CallNotes {
 public:
  explicit CallNotes(const cache::Clock& clock) : clock_(clock), last_(clock.SteadyNow()) {}

  // The stage from the last mark (the first: from the making) until now.
  void Mark(std::string_view stage) {
    cache::MutexLock lock(mutex_);
    const auto now = clock_.SteadyNow();
    AddLocked(stage, last_, now - last_);
    last_ = now;
  }

  // A stage that was timed elsewhere; the next mark counts from its end.
  void Add(std::string_view stage, std::chrono::steady_clock::time_point began, std::chrono::steady_clock::duration took) {
    cache::MutexLock lock(mutex_);
    AddLocked(stage, began, took);
    last_ = began + took;
  }

  void Identify(std::string_view target, std::string_view key_hex) {
    cache::MutexLock lock(mutex_);
    target_ = target;
    key_prefix_ = key_hex.substr(0, 16);
  }

  void MoveInto(CallRecord& record) {
    cache::MutexLock lock(mutex_);
    if (!target_.empty()) record.target = target_;
    if (!key_prefix_.empty()) record.key_prefix = key_prefix_;
    record.stages = std::exchange(stages_, {});
  }

 private:
  void AddLocked(std::string_view stage, std::chrono::steady_clock::time_point began, std::chrono::steady_clock::duration took)
      KILN_REQUIRES(mutex_) {
    constexpr std::size_t kMost = 64;  // a worker's list is not to be trusted
    if (stages_.size() >= kMost) return;
    const bool word = !stage.empty() && stage.size() <= 32 && stage.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == stage.npos;
    stages_.push_back({std::string(word ? stage : "other"), began, std::chrono::duration_cast<std::chrono::microseconds>(took)});
  }

  const cache::Clock& clock_;
  cache::Mutex mutex_;
  std::chrono::steady_clock::time_point last_ KILN_GUARDED_BY(mutex_);
  std::string target_ KILN_GUARDED_BY(mutex_);
  std::string key_prefix_ KILN_GUARDED_BY(mutex_);
  std::vector<StageTime> stages_ KILN_GUARDED_BY(mutex_);
};

// A number for each request of this process, and its text: 16 hexadecimal digits, different in another process.
std::uint64_t NextRequestNumber();
std::string RequestIdText(std::uint64_t number);

}  // namespace kiln::server
