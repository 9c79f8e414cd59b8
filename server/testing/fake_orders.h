// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kiln::server::testing {

// What the fake worker does with a request.
enum class Order : uint32_t {
  kAnswer = 0,   // amount × 100 + 1 bytes of code
  kSleep,        // amount × 10 ms first
  kAbort,
  kFault,
  kHang,
  kEatMemory,
  kRefuse,       // a diagnostic of each kind
  kUnsupported,
  kDefect,
  kOpenSocket,   // answers if the sandbox refuses it a socket
  kGarbage,      // writes what is no message
  kExit,
};

// The value of CompileOptions.max_registers that gives the order; amount < 1000.
constexpr uint32_t Encode(Order order, uint32_t amount = 0) { return static_cast<uint32_t>(order) * 1000 + amount; }

}  // namespace kiln::server::testing
