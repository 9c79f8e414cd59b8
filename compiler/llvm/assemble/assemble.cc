// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/assemble/assemble.h"

#include "compiler/llvm/assemble/tried_blocks.h"
#include "compiler/llvm/emit.h"
#include "compiler/stage_timer.h"

namespace kiln::llvm_ir {
namespace {

// How ptxas says that registers are too few. It has a message of its own for a kernel that starts with too few registers for wgmma.
bool IsShortOfRegisters(const std::string& text) {
  return text.find("nsufficient registers") != std::string::npos || text.find("egister count") != std::string::npos ||
         text.find("egister allocation failed") != std::string::npos || text.find("ew registers") != std::string::npos;
}

bool IsShortOfMemory(const std::string& text) {
  return text.find("emory allocation") != std::string::npos || text.find("ut of memory") != std::string::npos;
}

void ReportFailure(const PtxasFailure& failure, const v1::Artifact& artifact, const compiler::Context& context, ir::Diagnostics& diagnostics,
                   v1::WorkerResult& result) {
  if (IsShortOfMemory(failure.text)) {
    result.set_unavailable("ptxas: it needs more memory for this kernel than a worker has (--worker-memory); use a smaller kernel");
  } else if (failure.from_outside) {
    result.set_unavailable("ptxas: " + failure.text);
  } else if (IsShortOfRegisters(failure.text)) {
    ReportShortage(context, failure.text, diagnostics);
  } else if (artifact.code().starts_with(kHasFunctions)) {
    diagnostics.Error("ptxas: " + failure.text, kOfFunctions);
  } else {
    diagnostics.Internal("ptxas: " + failure.text);
  }
}

// With more blocks on a multiprocessor where they are to be tried (tried_blocks.h) and nothing spills.
std::expected<PtxasOutput, PtxasFailure> Made(const std::string& ptxas, const target::Target& target, const std::string& ptx) {
  for (BlocksOfEntries tried = TriedBlocks(ptx); !tried.empty();) {
    auto made = RunPtxas(ptxas, target, WithBlocks(ptx, tried));
    if (!made || !made->warnings.empty()) break;
    size_t spilling = 0;
    for (const v1::KernelResources& kernel : made->kernels)
      if (kernel.spill_bytes() > 0) spilling += tried.erase(kernel.entry());
    if (spilling == 0) return made;
  }
  return RunPtxas(ptxas, target, ptx);
}

}  // namespace

void ReportShortage(const compiler::Context& context, const std::string& why, ir::Diagnostics& diagnostics) {
  const uint32_t limit = context.options.max_registers();
  const std::string target(context.target->name);
  if (limit != 0) {
    diagnostics.Error("max_registers is " + std::to_string(limit) + ", too few for this kernel on " + target + ": " + why,
                      "raise max_registers, or set it to 0 to let the compiler choose");
  } else {
    diagnostics.Error("this kernel needs more registers or memory per thread than " + target + " has: " + why,
                      "use smaller tiles and local arrays, or more threads");
  }
}

bool Assemble(const v1::Artifact& artifact, const compiler::Context& context, const compiler::Hooks& hooks, ir::Diagnostics& diagnostics,
              v1::WorkerResult& result) {
  const compiler::StageTimer timer("ptxas", hooks, result);
  const bool optimized = !artifact.unoptimized();
  auto made = optimized ? Made(hooks.ptxas, *context.target, artifact.code()) : RunPtxas(hooks.ptxas, *context.target, artifact.code(), false);
  // Not optimized, code takes more registers, which may be too many.
  if (!made && !optimized && !made.error().from_outside) made = RunPtxas(hooks.ptxas, *context.target, artifact.code());
  if (!made) {
    ReportFailure(made.error(), artifact, context, diagnostics, result);
    return false;
  }
  v1::Assembled& assembled = *result.mutable_assembled();
  assembled.set_cubin(std::move(made->cubin));
  for (v1::KernelResources& kernel : made->kernels) *assembled.add_kernels() = std::move(kernel);
  for (const std::string& warning : made->warnings) {
    v1::Diagnostic& out = *assembled.add_warnings();
    out.set_severity(v1::Diagnostic::WARNING);
    out.set_message("ptxas: " + warning);
  }
  return true;
}

}  // namespace kiln::llvm_ir
