// SPDX-License-Identifier: Apache-2.0
//
// An artifact for an emulated target, made runnable on this host. Whoever launches it binds symbols, grids and arguments, as for a
// GPU (clients/runtime/bind.h).
//
// Concurrency: a Program may run in one thread at a time. Run starts its own threads, one for each block that runs at once, and
// they have ended when it returns.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/emulator/report.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::emulator {

struct Options {
  uint64_t seed = 0;     // of the order in which threads and blocks run; even: asynchronous copies land as late as they may, odd: at once
  uint32_t threads = 1;  // of the host, at most; they change neither results nor reports
  // Then the launch ends: each group of blocks under way as soon as one of its threads starts a loop over, the others before they
  // begin. What was found until then is in the report, and where the threads are.
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
};

// A tensor or workspace. In checked programs, what lies outside of all of them is out of bounds.
struct Memory {
  void* data = nullptr;
  uint64_t bytes = 0;
  uint32_t element_bytes = 1;
  std::string name;
  std::vector<int64_t> shape, strides;  // in elements, for reports; empty: counted as one row
};

struct LaunchArgs {
  std::string entry;
  std::array<uint32_t, 3> grid{1, 1, 1};
  uint32_t threads = 0;
  uint32_t shared_bytes = 0;
  std::vector<uint64_t> args;                // each parameter's bits, low ones first; of a tensor map: its address, a multiple of 64
  std::array<uint32_t, 3> cluster{1, 1, 1};  // blocks
};

class Program {
 public:
  // `check`: every access of shared and global memory is checked. Errors say what is wrong with the artifact.
  static std::expected<std::unique_ptr<Program>, std::string> Load(const v1::Artifact& artifact, bool check);
  virtual ~Program() = default;

  // One launch. An error is the caller's (no such entry, more shared memory than the target has); what the kernel does wrong is
  // in the report.
  virtual std::expected<Report, std::string> Run(const LaunchArgs& launch, std::span<const Memory> memory, const Options& options) = 0;
};

}  // namespace kiln::emulator
