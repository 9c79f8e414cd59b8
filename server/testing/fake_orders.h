// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kiln::server::testing {

// What the fake worker does with a request.
enum class Order : uint32_t {
  kAnswer = 0,  // amount × 100 + 1 bytes of code
  kSleep,       // amount × 10 ms first, or until SIGUSR1; from kLong on, until SIGUSR1
  kAbort,
  kFault,
  kHang,
  kEatMemory,
  kRefuse,  // 1 + amount diagnostics
  kUnsupported,
  kDefect,
  kEscape,   // tries the Escape of that number, and answers "refused" or "escaped"
  kGarbage,  // writes what is no message
  kExit,
  kHuge,         // amount MiB of code
  kUnavailable,  // something outside of the compiler failed it
  kFailToRank,   // aborts if it is only to be ranked
};

constexpr uint32_t kBadPtx = 777;  // of Order::kAnswer: PTX that ptxas refuses when it comes alone
constexpr uint32_t kLong = 990;    // of Order::kSleep (Daemon::Woken)

// What the sandbox must not let a worker do (but for the last, which it may if it has a ptxas).
enum class Escape : uint32_t {
  kInternet,
  kUnixSocket,
  kWriteFile,
  kReadFile,  // outside the libraries
  kRename,
  kMakeFolder,
  kChangeMode,
  kFork,
  kExec,
  kTracing,
  kReadMemory,  // of its parent
  kSignal,      // its parent
  kBecomeRoot,
  kNewNamespace,
  kMount,
  kKernelCode,  // bpf
  kIoUring,
  kUserFaults,
  kKeys,
  kRaiseLimits,
  kAskForSignals,  // fcntl: that the kernel signals another process
  kSharedMemory,   // which no limit counts
  kStackMemory,    // likewise
  kMemoryFiles,    // more of them mapped than a worker's memory
  kLongFile,       // a memory file longer than any result
  kLeaveGroup,     // which is what is killed
  kEnd,
  kStartPtxas = 100,
};

// The value of CompileOptions.max_registers that gives the order; amount < 1000.
constexpr uint32_t Encode(Order order, uint32_t amount = 0) { return static_cast<uint32_t>(order) * 1000 + amount; }

}  // namespace kiln::server::testing
