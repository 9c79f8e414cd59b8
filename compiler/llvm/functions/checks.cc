// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/functions/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#pragma GCC diagnostic pop

#include "compiler/llvm/device/device.h"
#include "compiler/llvm/emit.h"

namespace kiln::llvm_ir {
namespace {

using Checked = std::expected<void, Fault>;

std::string Quoted(const llvm::Value& value) { return "'" + value.getName().str() + "'"; }

std::unexpected<Fault> Refused(std::string message, std::string hint) { return std::unexpected(Fault{std::move(message), std::move(hint)}); }

Checked CheckVariable(const llvm::GlobalVariable& variable) {
  if (variable.isThreadLocal()) return Refused(fmt::format("the variable {} is thread-local", Quoted(variable)), "make it a local of the function");
  if (variable.getAddressSpace() == kSharedSpace) {
    return Refused(fmt::format("the variable {} lies in shared memory of the function's own, which the kernel's does not count", Quoted(variable)),
                   "give the function a shared tile as an argument");
  }
  if (!variable.hasInitializer()) {
    return Refused(fmt::format("the variable {} is not defined: there is nothing to link with", Quoted(variable)), "define it in the text");
  }
  if (!variable.isConstant()) {
    return Refused(fmt::format("the variable {} keeps its value from one launch to the next", Quoted(variable)),
                   "make it constant, or give the function a tensor as an argument");
  }
  return {};
}

bool IsOf(const llvm::Function& intrinsic, llvm::StringRef vendor) { return intrinsic.getName().starts_with(vendor); }

// The emulator's checks and its blocks of several threads of the host see loads and stores.
bool IsPortable(const llvm::Function& intrinsic) {
  if (IsOf(intrinsic, "llvm.nvvm.") || IsOf(intrinsic, "llvm.amdgcn.") || IsOf(intrinsic, "llvm.r600.")) {
    return IsEmulated(intrinsic.getIntrinsicID()) || MathOf(intrinsic, /*emulated=*/true);
  }
  return true;
}

Checked CheckDeclaration(const llvm::Function& function, const target::Target& target) {
  if (!function.isIntrinsic()) {
    return Refused(fmt::format("the text calls {}, which it does not define: there is nothing to link with", Quoted(function)),
                   "define it in the text, or use intrinsics");
  }
  if (function.getIntrinsicID() == llvm::Intrinsic::not_intrinsic) {
    return Refused(fmt::format("LLVM 22 has no intrinsic {}", Quoted(function)), "the text may be of another version");
  }
  if (NeedsLibrary(function) && !MathOf(function, target.emulated)) {
    return Refused(fmt::format("{} has no instruction", Quoted(function)),
                   "compute it from exp, exp2, log, log2, pow, sin and cos of single numbers");
  }
  const bool nvidia = target.family == target::Family::kNvptx;
  const bool foreign = IsOf(function, nvidia ? "llvm.amdgcn." : "llvm.nvvm.");
  if (target.emulated ? !IsPortable(function) : foreign) {
    return Refused(fmt::format("{} is no instruction of {}", Quoted(function), target.name),
                   target.emulated ? "on the emulator functions load, store, compute, wait at barriers and ask for the numbers of threads and blocks"
                                   : "give the function a text for each vendor");
  }
  return {};
}

Checked CheckCall(const llvm::CallBase& call, const target::Target& target) {
  if (!llvm::isa<llvm::CallInst>(call)) return Refused("the text throws exceptions or jumps from assembly", "compile it without exceptions");
  if (call.isInlineAsm()) {
    if (!target.emulated) return {};
    return Refused("the text holds inline assembly, which the emulator does not run", "use intrinsics and plain IR");
  }
  if (call.getCalledFunction() != nullptr) return {};
  return Refused("the text calls a function by its address", "call it by its name: all of it becomes part of the kernel");
}

Checked CheckInstruction(const llvm::Instruction& instruction, const target::Target& target) {
  if (const auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction)) return CheckCall(*call, target);
  if (target.emulated && instruction.isAtomic()) {
    return Refused("the text changes memory by atomics, which the emulator has of statements alone", "use an atomic statement of the kernel");
  }
  for (const llvm::Use& operand : instruction.operands()) {
    if (llvm::isa<llvm::Function>(operand.get()->stripPointerCasts()))
      return Refused(fmt::format("the text takes the address of {}", Quoted(*operand.get()->stripPointerCasts())), "call it by its name");
  }
  return {};
}

class Reached {
 public:
  explicit Reached(const target::Target& target) : target_(target) {}

  Checked Visit(const llvm::Function& function) {
    const auto [state, is_new] = states_.try_emplace(&function, State::kOpen);
    if (!is_new && state->second == State::kOpen) {
      return Refused(fmt::format("{} calls itself", Quoted(function)), "write a loop: the function becomes part of the kernel");
    }
    if (!is_new) return {};
    if (function.isVarArg()) return Refused(fmt::format("{} has any number of parameters", Quoted(function)), "give it fixed ones");
    for (const llvm::Instruction& instruction : llvm::instructions(function)) {
      if (Checked checked = CheckInstruction(instruction, target_); !checked) return checked;
      const auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
      const llvm::Function* callee = call == nullptr ? nullptr : call->getCalledFunction();
      if (callee == nullptr) continue;
      if (Checked checked = callee->isDeclaration() ? CheckDeclaration(*callee, target_) : Visit(*callee); !checked) return checked;
    }
    states_[&function] = State::kDone;
    return {};
  }

 private:
  enum class State { kOpen, kDone };
  const target::Target& target_;
  std::map<const llvm::Function*, State> states_;
};

}  // namespace

std::optional<ir::ExprOp> MathOf(const llvm::Function& intrinsic, bool emulated) {
  using ir::ExprOp;
  if (!intrinsic.getReturnType()->isFloatingPointTy()) return std::nullopt;
  switch (intrinsic.getIntrinsicID()) {
    case llvm::Intrinsic::exp: return ExprOp::kExp;
    case llvm::Intrinsic::log: return ExprOp::kLog;
    case llvm::Intrinsic::log2: return ExprOp::kLog2;
    case llvm::Intrinsic::pow: return ExprOp::kPow;
    case llvm::Intrinsic::sin: return ExprOp::kSin;
    case llvm::Intrinsic::cos: return ExprOp::kCos;
    case llvm::Intrinsic::exp2: return ExprOp::kExp2;
    default: break;
  }
  if (!emulated) return std::nullopt;
  switch (intrinsic.getIntrinsicID()) {
    case llvm::Intrinsic::nvvm_ex2_approx: return ExprOp::kExp2;
    case llvm::Intrinsic::nvvm_ex2_approx_ftz: return ExprOp::kExp2Ftz;
    case llvm::Intrinsic::nvvm_lg2_approx_f: return ExprOp::kLog2;
    case llvm::Intrinsic::nvvm_sin_approx_f: return ExprOp::kSin;
    case llvm::Intrinsic::nvvm_cos_approx_f: return ExprOp::kCos;
    case llvm::Intrinsic::nvvm_sqrt_f:
    case llvm::Intrinsic::nvvm_sqrt_rn_f:
    case llvm::Intrinsic::nvvm_sqrt_approx_f: return ExprOp::kSqrt;
    case llvm::Intrinsic::nvvm_rsqrt_approx_f:
    case llvm::Intrinsic::nvvm_rsqrt_approx_ftz_f: return ExprOp::kRsqrt;
    default: return std::nullopt;
  }
}

bool IsEmulated(llvm::Intrinsic::ID intrinsic) {
  using namespace llvm::Intrinsic;
  constexpr llvm::Intrinsic::ID kKnown[] = {nvvm_read_ptx_sreg_tid_x,
                                            nvvm_read_ptx_sreg_tid_y,
                                            nvvm_read_ptx_sreg_tid_z,
                                            nvvm_read_ptx_sreg_ntid_x,
                                            nvvm_read_ptx_sreg_ntid_y,
                                            nvvm_read_ptx_sreg_ntid_z,
                                            nvvm_read_ptx_sreg_ctaid_x,
                                            nvvm_read_ptx_sreg_ctaid_y,
                                            nvvm_read_ptx_sreg_ctaid_z,
                                            nvvm_read_ptx_sreg_nctaid_x,
                                            nvvm_read_ptx_sreg_nctaid_y,
                                            nvvm_read_ptx_sreg_nctaid_z,
                                            nvvm_read_ptx_sreg_laneid,
                                            nvvm_read_ptx_sreg_warpsize,
                                            nvvm_barrier_cta_sync_aligned_all,
                                            nvvm_barrier_cta_sync_all,
                                            amdgcn_workitem_id_x,
                                            amdgcn_workitem_id_y,
                                            amdgcn_workitem_id_z,
                                            amdgcn_workgroup_id_x,
                                            amdgcn_workgroup_id_y,
                                            amdgcn_workgroup_id_z,
                                            amdgcn_s_barrier,
                                            nvvm_saturate_f,
                                            nvvm_rcp_approx_ftz_f};
  return std::ranges::find(kKnown, intrinsic) != std::end(kKnown);
}

std::expected<void, Fault> CheckReached(const llvm::Function& function, const target::Target& target) {
  const llvm::Module& module = *function.getParent();
  if (!module.getModuleInlineAsm().empty()) return Refused("the text holds assembly outside of functions", "put it into the function");
  if (!module.aliases().empty() || !module.ifuncs().empty()) return Refused("the text defines aliases", "define the function itself");
  for (const llvm::GlobalVariable& variable : module.globals())
    if (Checked checked = CheckVariable(variable); !checked) return checked;
  return Reached(target).Visit(function);
}

}  // namespace kiln::llvm_ir
