// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/calls.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/functions/checks.h"
#include "compiler/llvm/functions/definitions.h"
#include "compiler/llvm/functions/link.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Analysis/TargetTransformInfo.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Transforms/Utils/LowerMemIntrinsics.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {

void Calls::Lower(const ir::Call& call) {
  const Values given = Given(call);
  module()[call.function].language == ir::Language::kLlvm ? CallText(call, given) : CallPtx(call, given);
}

Values Calls::Given(const ir::Call& call) {
  Values given;
  for (const ir::Argument& argument : call.arguments)
    given.push_back(argument.buffer ? Address(*argument.buffer, argument.value) : evaluator_.Eval(argument.value));
  return given;
}

Value* Calls::Address(ir::BufferId id, ir::ExprId offset) {
  const ir::Buffer& buffer = module()[id];
  Value* first = buffer.space == ir::Space::kGlobal ? memory_.places().Of(id) : memory_.shared().Pointer(id, {});
  Value* elements = evaluator_.Eval(offset);
  const bool is_signed = ir::IsSigned(pool().Type(offset));
  elements = is_signed ? b().CreateSExt(elements, b().getInt64Ty()) : b().CreateZExt(elements, b().getInt64Ty());
  return b().CreateGEP(MemoryType(llvm(), buffer.dtype), first, elements);
}

void Calls::CallText(const ir::Call& call, const Values& given) {
  llvm::Function* function = Linked(call, given);
  if (function == nullptr) return;
  Values arguments = given;
  for (llvm::Argument& parameter : function->args()) {
    Value*& argument = arguments[parameter.getArgNo()];
    if (argument->getType() == parameter.getType()) continue;
    const bool pointer = parameter.getType()->isPointerTy();
    argument = pointer ? b().CreateAddrSpaceCast(argument, parameter.getType()) : b().CreateZExt(argument, parameter.getType());
  }
  b().CreateCall(function, arguments);
}

llvm::Function* Calls::Linked(const ir::Call& call, const Values& given) {
  const ir::Function& function = module()[call.function];
  const uint32_t statement = target().emulated ? context().loc().line : 0;
  std::vector<llvm::Type*> types;
  for (const Value* value : given) types.push_back(value->getType());
  llvm::Function*& linked = linked_[{call.function, statement, types}];
  if (linked != nullptr) return linked;
  const std::string name = fmt::format("{}.linked{}", context().function()->getName().str(), linked_.size());
  const auto made = LinkText(function, types, target(), name, context().out());
  if (!made) {
    Refuse(function, made.error());
    return nullptr;
  }
  linked = *made;
  Complete(name + ".");
  return linked;
}

void Calls::CallPtx(const ir::Call& call, const Values& given) {
  const ir::Function& function = module()[call.function];
  if (target().family != target::Family::kNvptx || target().emulated) {
    return Unsupported(fmt::format("{} does not run PTX, as the function '{}' is written in", target().name, function.symbol),
                       "give it a function in LLVM's IR");
  }
  const auto parameters = ParametersOf(function);
  if (!parameters) return Refuse(function, parameters.error());
  if (parameters->size() != given.size()) {
    return Refuse(function, {fmt::format("'{}' takes {} parameters, and the call gives {}", function.symbol, parameters->size(), given.size()),
                             "give each parameter one argument"});
  }
  Values arguments;
  for (size_t i = 0; i < given.size(); ++i) {
    arguments.push_back(ForPtx(call, i, given[i], (*parameters)[i].bits, (*parameters)[i].is_float));
    if (arguments.back() == nullptr) return;
  }
  if (llvm::Function* declared = Declared(function, arguments)) b().CreateCall(declared, arguments);
}

Value* Calls::ForPtx(const ir::Call& call, size_t number, Value* given, int bits, bool is_float) {
  llvm::Type* type = given->getType();
  if (type->isPointerTy() && !is_float && bits == 64) {
    return b().CreatePtrToInt(b().CreateAddrSpaceCast(given, llvm::PointerType::get(llvm(), 0)), b().getInt64Ty());
  }
  const bool in_shared = type->isPointerTy() && type->getPointerAddressSpace() == kSharedSpace;
  if (in_shared && !is_float && bits == 32) return b().CreatePtrToInt(given, b().getInt32Ty());
  if (!type->isPointerTy() && type->isFloatingPointTy() == is_float && type->getPrimitiveSizeInBits() == unsigned(bits)) return given;
  const ir::Function& function = module()[call.function];
  Refuse(function, {fmt::format("parameter {} of '{}' is {} {} bits, and the call gives {}", number + 1, function.symbol,
                                is_float ? "a float of" : "an integer of", bits,
                                type->isPointerTy() ? "an address" : ir::Name(pool().Type(call.arguments[number].value))),
                    "values have the type of the parameter, of 32 or 64 bits; a generic address has 64, one within shared memory 32"});
  return nullptr;
}

llvm::Function* Calls::Declared(const ir::Function& function, std::span<Value* const> arguments) {
  std::vector<llvm::Type*> types;
  for (const Value* argument : arguments) types.push_back(argument->getType());
  auto* type = llvm::FunctionType::get(b().getVoidTy(), types, false);
  llvm::Function* declared = context().out().getFunction(function.symbol);
  if (declared == nullptr) {
    declared = llvm::Function::Create(type, llvm::Function::ExternalLinkage, function.symbol, context().out());
    declared->addFnAttr(kInPtx, function.text);
    declared->addFnAttr(llvm::Attribute::NoUnwind);
    declared->setConvergent();
  }
  if (declared->getFunctionType() == type && declared->getFnAttribute(kInPtx).getValueAsString() == function.text) return declared;
  Refuse(function, {fmt::format("the kernel's PTX has another function '{}'", function.symbol), "give them different names"});
  return nullptr;
}

void Calls::Complete(const std::string& prefix) {
  const llvm::IRBuilderBase::InsertPointGuard guard(b());
  std::vector<llvm::CallInst*> calls;
  for (llvm::Function& function : context().out()) {
    if (!function.getName().starts_with(prefix)) continue;
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (call != nullptr && call->getIntrinsicID() != llvm::Intrinsic::not_intrinsic) calls.push_back(call);
    }
  }
  for (llvm::CallInst* call : calls) {
    if (target().emulated && WriteOut(*call)) continue;
    const std::optional<ir::ExprOp> math = MathOf(*call->getCalledFunction(), target().emulated);
    if (!math && !(target().emulated && IsEmulated(call->getIntrinsicID()))) continue;
    b().SetInsertPoint(call);
    Value* value = math ? Math(*math, *call) : Emulated(*call);
    if (value != nullptr) call->replaceAllUsesWith(value);
    call->eraseFromParent();
  }
}

// The emulator sees what single loads and stores touch.
bool Calls::WriteOut(llvm::CallInst& call) {
  const llvm::TargetTransformInfo costs(context().out().getDataLayout());
  if (auto* copy = llvm::dyn_cast<llvm::MemCpyInst>(&call)) {
    llvm::expandMemCpyAsLoop(copy, costs);
  } else if (auto* set = llvm::dyn_cast<llvm::MemSetInst>(&call)) {
    llvm::expandMemSetAsLoop(set);
  } else if (auto* move = llvm::dyn_cast<llvm::MemMoveInst>(&call); move == nullptr || !llvm::expandMemMoveAsLoop(move, costs)) {
    return false;
  }
  call.eraseFromParent();
  return true;
}

Value* Calls::Math(ir::ExprOp op, llvm::CallInst& call) {
  const llvm::Type* type = call.getType();
  const ir::DType dtype = type->isHalfTy()     ? ir::DType::kF16
                          : type->isBFloatTy() ? ir::DType::kBF16
                          : type->isDoubleTy() ? ir::DType::kF64
                                               : ir::DType::kF32;
  const Values arguments(call.arg_begin(), call.arg_end());
  return device().Math(op, dtype, arguments, context().request().options.fast_math());
}

Value* Calls::Emulated(llvm::CallInst& call) {
  using namespace llvm::Intrinsic;
  const auto along = [&](size_t axis, auto of) -> Value* { return axis < kernel().grid.size() ? of(int(axis)) : nullptr; };
  const auto block = [&](size_t axis) { return along(axis, [&](int a) { return device().BlockIndex(a); }); };
  const auto blocks = [&](size_t axis) { return along(axis, [&](int a) { return device().GridSize(a); }); };
  const auto or_else = [&](Value* value, int64_t otherwise) { return value == nullptr ? I32(otherwise) : value; };
  switch (call.getIntrinsicID()) {
    case nvvm_read_ptx_sreg_tid_x:
    case amdgcn_workitem_id_x: return device().ThreadIndex();
    case nvvm_read_ptx_sreg_ntid_x: return I32(kernel().threads);
    case nvvm_read_ptx_sreg_ntid_y:
    case nvvm_read_ptx_sreg_ntid_z: return I32(1);
    case nvvm_read_ptx_sreg_laneid: return b().CreateURem(device().ThreadIndex(), I32(target().warp_size));
    case nvvm_read_ptx_sreg_warpsize: return I32(target().warp_size);
    case nvvm_read_ptx_sreg_ctaid_x:
    case amdgcn_workgroup_id_x: return or_else(block(0), 0);
    case nvvm_read_ptx_sreg_ctaid_y:
    case amdgcn_workgroup_id_y: return or_else(block(1), 0);
    case nvvm_read_ptx_sreg_ctaid_z:
    case amdgcn_workgroup_id_z: return or_else(block(2), 0);
    case nvvm_read_ptx_sreg_nctaid_x: return or_else(blocks(0), 1);
    case nvvm_read_ptx_sreg_nctaid_y: return or_else(blocks(1), 1);
    case nvvm_read_ptx_sreg_nctaid_z: return or_else(blocks(2), 1);
    case nvvm_barrier_cta_sync_all:
    case nvvm_barrier_cta_sync_aligned_all:
    case amdgcn_s_barrier: device().Barrier(); return nullptr;
    case nvvm_rcp_approx_ftz_f: return b().CreateFDiv(llvm::ConstantFP::get(call.getType(), 1), call.getArgOperand(0));
    case nvvm_saturate_f:  // of NaN: 0
      return b().CreateMinNum(b().CreateMaxNum(call.getArgOperand(0), llvm::ConstantFP::get(call.getType(), 0)),
                              llvm::ConstantFP::get(call.getType(), 1));
    default: return I32(0);  // threads count along one dimension
  }
}

void Calls::Refuse(const ir::Function& function, const Fault& fault) {
  const std::string place = fault.line == 0
                                ? fmt::format("the text of '{}'", function.symbol)
                                : fmt::format("line {} of the text of '{}', {}", fault.line, function.symbol, LineOf(function.text, fault.line));
  context().diagnostics().Error(fmt::format("{}: {}", place, fault.message), fault.hint, context().loc());
}

}  // namespace kiln::llvm_ir
