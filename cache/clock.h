// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace kiln::cache {

using WallTime = std::chrono::sys_time<std::chrono::microseconds>;
using SteadyTime = std::chrono::steady_clock::time_point;

// Time as the cache sees it. The process that wires the cache supplies the real one; it must outlive every tier and
// be callable from any thread. Wall time only orders and labels entries, steady time measures waiting.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual WallTime WallNow() const = 0;
  virtual SteadyTime SteadyNow() const = 0;
};

}  // namespace kiln::cache
