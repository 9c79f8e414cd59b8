// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/codegen.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compiler/artifact.h"
#include "compiler/llvm/assemble/assemble.h"
#include "compiler/llvm/assemble/tried_blocks.h"
#include "compiler/llvm/complaints.h"
#include "compiler/llvm/emit.h"
#include "compiler/llvm/functions/definitions.h"
#include "compiler/llvm/long_code.h"
#include "compiler/llvm/lower/lower.h"
#include "compiler/llvm/outline.h"
#include "compiler/llvm/pressure.h"
#include "compiler/stage_timer.h"

namespace kiln::llvm_ir {
namespace {

using compiler::StageTimer;

// Bounds on the registers that a thread's live values need. A kernel with more than kRefused times max_fragment_registers is refused. Below
// that, LLVM makes the kernel without moving code if live values need too many registers. On NVIDIA's GPUs, where ptxas moves code itself,
// these are more than max_fragment_registers. On AMD's, where such code is slow, they are more than kCrowdedOnAmd times that, or more than
// kSpilledOnAmd times the registers of a thread, since the allocator's time grows with the square of what it spills.
// Code that is less crowded at a time, but over many instructions, costs AMD's allocator as much: that is max_crowding's to bound.
constexpr size_t kRefused = 4, kCrowdedOnAmd = 2, kSpilledOnAmd = 3;

// Instructions of a kernel that AMD's backend may make twice, with and without accumulators.
constexpr size_t kMostMadeTwice = 12'000;

std::vector<const ir::Function*> InPtx(const ir::Module& module) {
  std::vector<const ir::Function*> functions;
  for (const ir::Function& function : module.functions)
    if (function.language == ir::Language::kPtx) functions.push_back(&function);
  return functions;
}

std::string Text(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

class Generator {
 public:
  Generator(const compiler::Context& context, const v1::Explain& explain, const compiler::Hooks& hooks, ir::Diagnostics& diagnostics,
            v1::WorkerResult& result, v1::Artifact& artifact, compiler::Generated& generated)
      : context_(context), explain_(explain), hooks_(hooks), diagnostics_(diagnostics), result_(result), artifact_(artifact), generated_(generated) {}

  bool Run(const ir::Module& module) {
    has_functions_ = !module.functions.empty();
    if (!ToLlvm(module)) return false;
    if (context_.target->emulated) return ToEmulator();
    return context_.target->family == target::Family::kNvptx ? ToPtx(module) : ToHsaco(module);
  }

 private:
  bool Fail(std::string_view stage, const std::string& why) {
    if (has_functions_) diagnostics_.Error(std::string(stage) + ": " + why, kOfFunctions);
    else diagnostics_.Internal(std::string(stage) + ": " + why);
    return false;
  }

  // Whether LLVM compiled the kernel without complaints.
  bool Succeeded(std::string_view stage) {
    if (!complaints_.resources.empty()) return Refuse(complaints_.resources);
    return complaints_.others.empty() || Fail(stage, complaints_.others);
  }

  bool Refuse(const std::string& why) {
    ReportShortage(context_, why, diagnostics_);
    return false;
  }

  void Dump(std::string pass, std::string text) {
    v1::PassDump& dump = *result_.add_dumps();
    dump.set_pass(std::move(pass));
    dump.set_text(std::move(text));
  }

  bool ToLlvm(const ir::Module& module) {
    Collect(llvm_, complaints_);
    machine_ = MakeTargetMachine(*context_.target);
    llvm_.setDiscardValueNames(!explain_.llvm());
    if (!Lowered(module)) return false;
    if (explain_.llvm()) Dump("llvm", Text(*code_));
    if (IsLong(*code_) && !context_.target->emulated) {
      diagnostics_.Warning(
          "the code of one thread is so long that it is optimized only in part: the kernel will be slow; use smaller tiles or more threads");
    }
    const bool long_kernel = IsLong(*code_);
    if (!Optimized(CodeMotion::kYes) || (!context_.target->emulated && !FitsRegisters(module, long_kernel))) return false;
    unmoved_.reset();
    if (explain_.llvm()) Dump("llvm-optimized", Text(*code_));
    return true;
  }

  bool Lowered(const ir::Module& module) {
    const StageTimer timer("lower", hooks_, result_);
    code_ = std::make_unique<llvm::Module>("kiln", llvm_);
    Prepare(*code_, *machine_, *context_.target);
    return Lower(module, context_, *code_, diagnostics_);
  }

  bool Optimized(CodeMotion motion) {
    const StageTimer timer("llvm", hooks_, result_);
    if (auto optimized = Optimize(*code_, *machine_, motion); !optimized) return Fail("llvm", optimized.error());
    return Succeeded("llvm");
  }

  // Values beyond the registers are spilled, and the time to decide what to spill grows with the square of their number. LLVM ignores how
  // many values it keeps alive when it moves code. If there are too many, the kernel is made again without moving code; if there are still
  // far too many, it is refused.
  bool FitsRegisters(const ir::Module& module, bool long_kernel) {
    const bool amd = context_.target->family == target::Family::kAmdgpu;
    const size_t limit = size_t(context_.max_fragment_registers()), fit = size_t(context_.target->registers_per_thread);
    const size_t refused = std::max(fit, limit * kRefused);
    const size_t crowded = amd ? std::min(fit * kSpilledOnAmd, std::max(fit, limit * kCrowdedOnAmd)) : std::max(fit, limit);
    pressure_ = PressureOf(*code_, refused);
    if (amd && !long_kernel && pressure_.registers > fit && !TakeUnmovedIfItFits(module, fit)) return false;
    const bool fits = pressure_.registers <= crowded;
    const size_t beyond = amd ? pressure_.beyond : 0;
    if (fits && int64_t(beyond) <= context_.max_crowding()) return true;
    if (!long_kernel && !Unoptimized(module)) return false;  // code of long kernels was not moved anyway
    pressure_ = PressureOf(*code_, refused);
    const size_t live = pressure_.registers;
    if (live > refused) {
      diagnostics_.Error("the values of one thread take more than " + std::to_string(refused) + " registers at a time; a thread of " +
                             std::string(context_.target->name) + " has " + std::to_string(fit) + ", and " + std::to_string(kRefused) +
                             " times max_fragment_registers is " + std::to_string(limit * kRefused),
                         "use smaller tiles or more threads; a larger max_fragment_registers lets most of them spill");
      return false;
    }
    if (live > crowded) {
      diagnostics_.Warning("the values of one thread take " + std::to_string(live) +
                           " registers at a time; what does not fit is spilled: use smaller tiles or more threads");
    } else if (amd && !long_kernel) {
      const std::string crowding = "LLVM's allocator would take too long: values alive beyond " + std::to_string(kNamedRegisters) +
                                   ", added up over all instructions, are " + std::to_string(beyond) + ", and max_crowding is " +
                                   std::to_string(context_.max_crowding());
      diagnostics_.Warning("LLVM optimizes this kernel only in part, because " +
                           (fits ? crowding : "fully optimized code would spill most of its values") + ": use smaller tiles or more threads");
    }
    return true;
  }

  // Where only the code that LLVM moved takes more registers than there are, it moves none, and the backend optimizes all the same.
  bool TakeUnmovedIfItFits(const ir::Module& module, size_t registers) {
    std::unique_ptr<llvm::Module> moved = std::move(code_);
    if (!Lowered(module) || !Optimized(CodeMotion::kNo)) return false;
    if (const Pressure unmoved = PressureOf(*code_, registers); unmoved.registers <= registers) {
      pressure_ = unmoved;
    } else {
      unmoved_ = std::exchange(code_, std::move(moved));
    }
    return true;
  }

  // ptxas optimizes for itself what LLVM did not move; AMD's backend would take too long for it.
  bool Unoptimized(const ir::Module& module) {
    if (context_.target->family == target::Family::kAmdgpu) machine_->setOptLevel(llvm::CodeGenOptLevel::None);
    if (unmoved_) {
      code_ = std::move(unmoved_);
      return true;
    }
    return Lowered(module) && Optimized(CodeMotion::kNo);
  }

  bool ToEmulator() {
    const StageTimer timer("emit", hooks_, result_);
    artifact_.set_kind(v1::EMULATOR);
    artifact_.set_code(EmitBitcode(*code_));
    return true;
  }

  bool ToPtx(const ir::Module& module) {
    std::expected<std::string, std::string> ptx;
    {
      const StageTimer timer("emit", hooks_, result_);
      if (machine_->getOptLevel() == llvm::CodeGenOptLevel::None) OutlineLongKernels(*code_);
      ptx = EmitAssembly(*code_, *machine_);
    }
    if (!Succeeded("emit")) return false;
    if (!ptx) return Fail("emit", ptx.error());
    *ptx = WithDefinitions(*std::move(ptx), InPtx(module));
    *ptx = WithNotes(*ptx, BlocksToTry(module));
    if (has_functions_) ptx->insert(0, kHasFunctions);
    if (explain_.assembly()) Dump("assembly", *ptx);
    artifact_.set_kind(v1::PTX);
    artifact_.set_code(*std::move(ptx));
    // The optimizer of ptxas would take as long for long code as LLVM's.
    artifact_.set_unoptimized(machine_->getOptLevel() == llvm::CodeGenOptLevel::None);
    return true;
  }

  BlocksOfEntries BlocksToTry(const ir::Module& module) const {
    BlocksOfEntries tried;
    for (size_t i = 0; i < module.kernels.size(); ++i)
      if (module.kernels[i].tried_blocks != 0) tried.emplace(compiler::EntryName(context_, i), module.kernels[i].tried_blocks);
    return tried;
  }

  // Half of CDNA's registers are accumulators (AGPRs), which only matrix instructions, loads and stores reach. LLVM keeps sums there and moves
  // them, an instruction for each register, wherever anything else needs them; a register that is spilled takes a store and a load, to
  // memory. So where all values fit into the other half, no accumulators are used; where LLVM then spills all the same, they are. Long code is not
  // made twice.
  bool FitsWithoutAccumulators() const {
    const target::Target& target = *context_.target;
    if (CodeOf(*code_) > kMostMadeTwice) return false;
    return target.Has(target::Feature::kUnifiedVgpr) && machine_->getOptLevel() != llvm::CodeGenOptLevel::None &&
           pressure_.registers <= size_t(target.registers_per_thread) / 2;
  }

  bool IsWithoutSpills(const std::expected<std::string, std::string>& hsaco) const {
    if (!hsaco || !complaints_.resources.empty() || !complaints_.others.empty()) return false;
    const auto kernels = ReadHsacoResources(*hsaco);
    return kernels && std::ranges::none_of(*kernels, [](const v1::KernelResources& kernel) { return kernel.spill_bytes() > 0; });
  }

  // `copy`: what CopyForText gives of the module that the code object is made of.
  std::expected<std::string, std::string> Hsaco(std::unique_ptr<llvm::Module>& copy) {
    if (machine_->getOptLevel() == llvm::CodeGenOptLevel::None)
      for (llvm::Function& function : *code_) CutLongBlocks(function);
    if (FitsWithoutAccumulators()) {
      std::unique_ptr<llvm::Module> other = llvm::CloneModule(*code_);
      for (llvm::Function& function : *code_)
        if (!function.isDeclaration()) function.addFnAttr("amdgpu-agpr-alloc", "0");
      copy = CopyForText();
      auto hsaco = Emitted();
      if (IsWithoutSpills(hsaco)) return hsaco;
      complaints_ = {};
      code_ = std::move(other);
    }
    copy = CopyForText();
    return Emitted();
  }

  bool ToHsaco(const ir::Module& module) {
    std::unique_ptr<llvm::Module> copy;
    std::expected<std::string, std::string> hsaco = Hsaco(copy);
    // For some undefined values the optimizing backend makes instructions that do not exist (SDWA with two scalars).
    if (!complaints_.others.empty() && complaints_.resources.empty() && machine_->getOptLevel() != llvm::CodeGenOptLevel::None) {
      diagnostics_.Warning("LLVM fails to optimize this kernel, which is made without its optimizing backend and will be slow: " +
                               std::exchange(complaints_.others, {}),
                           "this often means that the code reads values that were never written");
      if (!Unoptimized(module)) return false;
      hsaco = Hsaco(copy);
    }
    if (!Succeeded("emit")) return false;
    if (!hsaco) return Fail("emit", hsaco.error());
    auto kernels = ReadHsacoResources(*hsaco);
    if (!kernels) return Fail("emit", kernels.error());
    for (v1::KernelResources& kernel : *kernels) *generated_.resources.Add() = std::move(kernel);
    artifact_.set_kind(v1::HSACO);
    artifact_.set_code(*std::move(hsaco));
    if (copy == nullptr) return true;
    auto text = EmitAssembly(*copy, *machine_);
    if (!Succeeded("emit")) return false;
    if (!text) return Fail("emit", text.error());
    Dump("assembly", *std::move(text));
    return true;
  }

  // Emission rewrites the module, so the assembly's text comes from a copy. Null where nobody asks for it.
  std::unique_ptr<llvm::Module> CopyForText() const { return explain_.assembly() ? llvm::CloneModule(*code_) : nullptr; }

  std::expected<std::string, std::string> Emitted() {
    const StageTimer timer("emit", hooks_, result_);
    return EmitHsaco(*code_, *machine_);
  }

  const compiler::Context& context_;
  const v1::Explain& explain_;
  const compiler::Hooks& hooks_;
  ir::Diagnostics& diagnostics_;
  v1::WorkerResult& result_;
  v1::Artifact& artifact_;
  compiler::Generated& generated_;
  Complaints complaints_;
  llvm::LLVMContext llvm_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  std::unique_ptr<llvm::Module> code_;
  bool has_functions_ = false;             // in other languages
  Pressure pressure_;                      // of the optimized code
  std::unique_ptr<llvm::Module> unmoved_;  // that TakeUnmovedIfItFits made and did not take
};

}  // namespace

bool Generate(const ir::Module& module, const compiler::Context& context, const v1::Explain& explain, const compiler::Hooks& hooks,
              ir::Diagnostics& diagnostics, v1::WorkerResult& result, v1::Artifact& artifact, compiler::Generated& generated) {
  return Generator(context, explain, hooks, diagnostics, result, artifact, generated).Run(module);
}

}  // namespace kiln::llvm_ir
