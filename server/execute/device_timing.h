// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "kiln/v1/run.pb.h"

namespace kiln::server {

inline void AddTiming(v1::RunResult& result, const char* stage, std::chrono::steady_clock::duration time) {
  v1::Timing& timing = *result.add_timings();
  timing.set_stage(stage);
  timing.set_milliseconds(std::chrono::duration<double, std::milli>(time).count());
}

}  // namespace kiln::server
