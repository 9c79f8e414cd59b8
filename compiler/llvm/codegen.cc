// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/codegen.h"

#include <memory>
#include <string>
#include <utility>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/lower.h"
#include "compiler/stage_timer.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

using compiler::StageTimer;

std::string Text(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

class Generator {
 public:
  Generator(const compiler::Context& context, const v1::Explain& explain, const compiler::Hooks& hooks,
            ir::Diagnostics& diagnostics, v1::WorkerResult& result, v1::Artifact& artifact, compiler::Generated& generated)
      : context_(context), explain_(explain), hooks_(hooks), diagnostics_(diagnostics), result_(result), artifact_(artifact),
        generated_(generated) {}

  bool Run(const ir::Module& module) {
    if (!ToLlvm(module)) return false;
    if (context_.target->emulated) return ToEmulator();
    return context_.target->family == target::Family::kNvptx ? ToPtx() : ToHsaco();
  }

 private:
  bool Fail(std::string_view stage, const std::string& why) {
    diagnostics_.Internal(std::string(stage) + ": " + why);
    return false;
  }

  bool Unavailable(std::string_view stage, const std::string& why) {
    result_.set_unavailable(std::string(stage) + ": " + why);
    return false;
  }

  void Dump(std::string pass, std::string text) {
    v1::PassDump& dump = *result_.add_dumps();
    dump.set_pass(std::move(pass));
    dump.set_text(std::move(text));
  }

  // LLVM's own handler would end the process.
  void Hear(const llvm::DiagnosticInfo& info) {
    if (info.getSeverity() != llvm::DS_Error || !refusal_.empty()) return;
    llvm::raw_string_ostream stream(refusal_);
    llvm::DiagnosticPrinterRawOStream printer(stream);
    info.print(printer);
    over_limit_ = info.getKind() == llvm::DK_ResourceLimit || info.getKind() == llvm::DK_StackSize;
  }

  // Whether LLVM refused the kernel. What is more than the hardware has is the program's.
  bool Refused() {
    if (refusal_.empty()) return false;
    if (over_limit_) {
      diagnostics_.Error("the kernel needs more than the target has: " + refusal_, "make the local arrays and tiles smaller, or spread the tiles over more threads");
    } else {
      diagnostics_.Internal("LLVM: " + refusal_);
    }
    return true;
  }

  bool ToLlvm(const ir::Module& module) {
    machine_ = MakeTargetMachine(*context_.target);
    llvm_.setDiagnosticHandlerCallBack([](const llvm::DiagnosticInfo* info, void* generator) { static_cast<Generator*>(generator)->Hear(*info); }, this);
    llvm_.setDiscardValueNames(!explain_.llvm());
    {
      const StageTimer timer("lower", hooks_, result_);
      code_ = std::make_unique<llvm::Module>("kiln", llvm_);
      Prepare(*code_, *machine_, *context_.target);
      if (!Lower(module, context_, *code_, generated_.kept, diagnostics_)) return false;
    }
    if (explain_.llvm()) Dump("llvm", Text(*code_));
    const StageTimer timer("llvm", hooks_, result_);
    if (auto optimized = Optimize(*code_, *machine_); !optimized) return Fail("llvm", optimized.error());
    if (Refused()) return false;
    if (explain_.llvm()) Dump("llvm-optimized", Text(*code_));
    return true;
  }

  bool ToEmulator() {
    const StageTimer timer("emit", hooks_, result_);
    artifact_.set_kind(v1::EMULATOR);
    artifact_.set_code(EmitBitcode(*code_));
    return true;
  }

  bool ToPtx() {
    std::expected<std::string, std::string> ptx;
    {
      const StageTimer timer("emit", hooks_, result_);
      ptx = EmitAssembly(*code_, *machine_);
    }
    if (Refused()) return false;
    if (!ptx) return Fail("emit", ptx.error());
    if (explain_.assembly()) Dump("assembly", *ptx);
    artifact_.set_kind(v1::PTX);
    artifact_.set_code(*ptx);
    if (hooks_.ptxas.empty()) return true;
    const StageTimer timer("ptxas", hooks_, result_);
    auto assembled = RunPtxas(hooks_.ptxas, *context_.target, *ptx);
    if (!assembled && assembled.error().from_outside) return Unavailable("ptxas", assembled.error().text);
    if (!assembled) return Fail("ptxas", assembled.error().text);
    artifact_.set_cubin(std::move(assembled->cubin));
    for (const std::string& warning : assembled->warnings) diagnostics_.Warning("ptxas: " + warning);
    for (v1::KernelResources& kernel : assembled->kernels) *generated_.resources.Add() = std::move(kernel);
    return true;
  }

  bool ToHsaco() {
    if (explain_.assembly()) {
      // Emission rewrites the module: the text comes from a copy.
      const std::unique_ptr<llvm::Module> copy = llvm::CloneModule(*code_);
      auto text = EmitAssembly(*copy, *machine_);
      if (!text) return Fail("emit", text.error());
      Dump("assembly", *std::move(text));
    }
    std::expected<std::string, std::string> hsaco;
    {
      const StageTimer timer("emit", hooks_, result_);
      hsaco = EmitHsaco(*code_, *machine_);
    }
    if (Refused()) return false;
    if (!hsaco) return Fail("emit", hsaco.error());
    auto kernels = ReadHsacoResources(*hsaco);
    if (!kernels) return Fail("emit", kernels.error());
    for (v1::KernelResources& kernel : *kernels) *generated_.resources.Add() = std::move(kernel);
    artifact_.set_kind(v1::HSACO);
    artifact_.set_code(*std::move(hsaco));
    return true;
  }

  const compiler::Context& context_;
  const v1::Explain& explain_;
  const compiler::Hooks& hooks_;
  ir::Diagnostics& diagnostics_;
  v1::WorkerResult& result_;
  v1::Artifact& artifact_;
  compiler::Generated& generated_;
  std::string refusal_;  // the first error that LLVM told
  bool over_limit_ = false;
  llvm::LLVMContext llvm_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  std::unique_ptr<llvm::Module> code_;
};

}  // namespace

bool Generate(const ir::Module& module, const compiler::Context& context, const v1::Explain& explain, const compiler::Hooks& hooks,
              ir::Diagnostics& diagnostics, v1::WorkerResult& result, v1::Artifact& artifact, compiler::Generated& generated) {
  return Generator(context, explain, hooks, diagnostics, result, artifact, generated).Run(module);
}

}  // namespace kiln::llvm_ir
