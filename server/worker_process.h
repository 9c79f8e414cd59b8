// SPDX-License-Identifier: Apache-2.0
//
// The worker executable's two lives.
//
// As a zygote (`--zygote`) it initialises the compiler while it is single-threaded, then waits on kWorkerFd for commands and
// forks a worker for each kFork. It never starts a thread, so a fork is safe and costs a millisecond; LLVM's initialised
// memory is shared. When kilnd goes away its end of the socket closes, the zygote ends, and PDEATHSIG ends the workers.
//
// As a worker (a fork of the zygote, or an executable started with `--worker`, as `kiln compile --local` does) it enters the
// sandbox and serves one WorkerJob after the other until its socket closes. It keeps nothing between jobs.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/v1/compile.pb.h"

namespace kiln::server {

// What the executable can do; a test's worker has another `compile`.
struct WorkerProgram {
  std::string_view build_id;
  std::vector<std::string_view> passes;  // for `kiln explain --after`
  std::function<void()> initialize;
  struct JobHooks {
    std::function<void(std::string_view stage)> on_stage;
    std::function<bool()> cancelled;
    std::string ptxas;
  };
  std::function<v1::WorkerResult(const v1::CompileRequest&, const JobHooks&)> compile;
};

// main() of a worker executable.
int WorkerMain(int argc, char** argv, const WorkerProgram& program);

}  // namespace kiln::server
