// SPDX-License-Identifier: Apache-2.0
#include "compiler/compile.h"
#include "compiler/key.h"
#include "server/worker_process.h"

int main(int argc, char** argv) {
  using kiln::server::WorkerProgram;
  return kiln::server::WorkerMain(
      argc, argv,
      {.build_id = kiln::compiler::BuildId(),
       .initialize = kiln::compiler::Initialize,
       .compile = [](const kiln::v1::CompileRequest& request, const WorkerProgram::JobHooks& hooks) {
         return kiln::compiler::Compile(
             request, {.on_stage = hooks.on_stage, .cancelled = hooks.cancelled, .ptxas = hooks.ptxas});
       }});
}
