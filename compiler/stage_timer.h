// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "compiler/compile.h"

namespace kiln::compiler {

// Announces a stage and adds the time until the end of its scope to the result. Times are reported, never acted upon.
class StageTimer {
 public:
  StageTimer(std::string_view stage, const Hooks& hooks, v1::WorkerResult& result)
      : stage_(stage), result_(result), start_(std::chrono::steady_clock::now()) {
    hooks.on_stage(stage);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;
  ~StageTimer() {
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start_;
    v1::Timing& timing = *result_.add_timings();
    timing.set_stage(std::string(stage_));
    timing.set_milliseconds(elapsed.count());
  }

 private:
  std::string_view stage_;
  v1::WorkerResult& result_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace kiln::compiler
