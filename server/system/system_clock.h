// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "cache/clock.h"

namespace kiln::server {

// The clocks of the system. The programs make one, and give it to what needs the time: no other file of the server asks a steady clock
// (tests/layering), so that a test can let time pass without waiting.
class SystemClock final : public cache::Clock {
 public:
  cache::WallTime WallNow() const override { return std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now()); }
  cache::SteadyTime SteadyNow() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace kiln::server
