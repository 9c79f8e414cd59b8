// SPDX-License-Identifier: Apache-2.0
//
// The compiler as the workers see it: a request in, an artifact or diagnostics out. Deterministic: the same request gives the
// same artifact bytes in every process on every host with the same BuildId() and the same LLVM.
//
// There are two layers. The artifact is portable: it does not depend on ptxas. What a ptxas makes of its PTX comes apart from it, so that
// with another ptxas only that is made anew.
#pragma once

#include <functional>
#include <string_view>

#include "kiln/v1/compile.pb.h"

namespace kiln::compiler {

struct Hooks {
  // Called at the start of each stage with its name ("decode", a pass, "llvm", "emit", "link", "ptxas").
  std::function<void(std::string_view)> on_stage = [](std::string_view) {};
  // Asked between stages; true ends the compile with a diagnostic of kind INTERNAL that says "cancelled".
  std::function<bool()> cancelled = [] { return false; };
  // Path of a ptxas to make cubins and read registers and spills with; empty: none.
  std::string ptxas;
};

// Initialises LLVM's targets. Once in a process, before any thread exists.
void Initialize();

// Never throws; a program's faults come back as diagnostics. May abort the process on a defect of LLVM's or ours.
// Where `hooks` name a ptxas and the artifact is PTX, the result has `assembled` beside the artifact, and neither if ptxas refuses it.
v1::WorkerResult Compile(const v1::CompileRequest& request, const Hooks& hooks);

// `assembled` alone, from the artifact that Compile made of the request, here or elsewhere. `hooks` must name a ptxas.
v1::WorkerResult Assemble(const v1::CompileRequest& request, const v1::Artifact& artifact, const Hooks& hooks);

}  // namespace kiln::compiler
