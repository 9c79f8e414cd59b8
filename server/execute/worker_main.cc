// SPDX-License-Identifier: Apache-2.0
#include "compiler/compile.h"
#include "compiler/key.h"
#include "compiler/passes.h"
#include "server/execute/device_worker.h"
#include "server/system/system_clock.h"
#include "server/worker/worker_process.h"

int main(int argc, char** argv) {
  using kiln::server::WorkerProgram;
  std::vector<std::string_view> passes;
  for (const kiln::compiler::Pass& pass : kiln::compiler::Passes()) passes.push_back(pass.name);
  const kiln::server::SystemClock clock;
  return kiln::server::WorkerMain(
      argc, argv,
      {.build_id = kiln::compiler::BuildId(),
       .passes = passes,
       .initialize = kiln::compiler::Initialize,
       .compile =
           [](const kiln::v1::WorkerJob& job, const WorkerProgram::JobHooks& hooks) {
             const kiln::compiler::Hooks these{.on_stage = hooks.on_stage, .cancelled = hooks.cancelled, .ptxas = hooks.ptxas};
             return job.has_portable() ? kiln::compiler::Assemble(job.request(), job.portable(), these)
                                       : kiln::compiler::Compile(job.request(), these);
           },
       .make_device =
           [&clock](kiln::server::WorkerRole role) {
             if (role == kiln::server::WorkerRole::kSensors) return kiln::server::MakeSensorDevice();
             return kiln::server::IsGpu(role) ? kiln::server::MakeGpuDevice(clock) : kiln::server::MakeEmulatedDevice(clock);
           }});
}
