// SPDX-License-Identifier: Apache-2.0
//
// Many compiles at one time from few threads: gRPC's own call back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace kiln::bench {

struct Answer {
  grpc::Status status;
  v1::CompileReply reply;
  double milliseconds = 0;  // from the call to the answer
  bool has_retry_info = false;

  bool ok() const { return status.ok(); }
  bool refused() const { return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED; }
  double compile_ms() const;  // the sum of its stages but the queue
};

using OnAnswer = std::function<void(Answer)>;

// Called on a thread of gRPC's.
void CompileAsync(v1::Kiln::Stub& stub, const v1::CompileRequest& request, OnAnswer on_answer);

// Again where the queue was full, when the daemon says so.
void CompilePatiently(v1::Kiln::Stub& stub, const v1::CompileRequest& request, OnAnswer on_answer);

// Counts down from the calls that were made to the answers that came.
class Pending {
 public:
  void Add(std::size_t count = 1);
  void Done();
  void WaitUntilAtMost(std::size_t count);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
};

double Quantile(std::vector<double> values, double q);

}  // namespace kiln::bench
