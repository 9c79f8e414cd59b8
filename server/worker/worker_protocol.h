// SPDX-License-Identifier: Apache-2.0
//
// What kilnd and the zygote say to each other, over a SOCK_SEQPACKET pair: one struct a packet. Both are built together and
// the zygote's greeting names its build, so the structs need no version.
//
// Jobs and results go over each worker's own stream socket (channel.h; WorkerJob and WorkerEvent in compile.proto, DeviceJob and
// DeviceEvent in run.proto).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kiln::server {

// The descriptor at which a worker executable finds its socket.
inline constexpr int kWorkerFd = 3;

// How a worker ends itself when it cannot allocate.
inline constexpr int kExitOutOfMemory = 77;

// How the protections in kReady begin where a worker cannot be confined.
inline constexpr std::string_view kUnconfined = "none: ";

// What a worker is for, which decides what it gives up (sandbox.h).
enum class WorkerRole : std::uint32_t {
  kCompile,
  kEmulator,
  kGpu,       // opens the drivers, which the zygote never does, and is closed behind them
  kLooseGpu,  // for a driver that does not work so: what it started with remains
  kSensors,   // as kGpu, but it opens no device: it asks the drivers what their GPUs do
};
inline constexpr bool IsGpu(WorkerRole role) { return role != WorkerRole::kCompile && role != WorkerRole::kEmulator; }
inline constexpr bool IsClosedGpu(WorkerRole role) { return role == WorkerRole::kGpu || role == WorkerRole::kSensors; }

struct ZygoteCommand {
  enum class Kind : std::uint32_t {
    kFork,  // a worker for `role`; answered by kForked with its descriptors
    kKill,  // SIGKILL to `pid` if it still runs
  };
  Kind kind;
  std::int32_t pid;
  WorkerRole role;
  std::array<char, 16> device;  // kFork of a GPU's: "cuda:0", NUL-terminated; empty: it opens none of its own
};

struct ZygoteEvent {
  enum class Kind : std::uint32_t {
    kReady,   // first, when the compiler is initialised; `text` is its build id, the workers' protections and the
              // passes, a line each
    kForked,  // `pid`, and two descriptors: the worker's socket and what it writes to stderr
    kFailed,  // fork refused; `status` is the errno
    kExited,  // `pid` ended with wait status `status`
  };
  Kind kind;
  std::int32_t pid;
  std::int32_t status;
  std::uint32_t max_rss_kib;
  std::array<char, 2048> text;  // NUL-terminated
};

}  // namespace kiln::server
