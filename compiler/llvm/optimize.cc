// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/emit.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/ADCE.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/GVN.h>
#include <llvm/Transforms/Scalar/InstSimplifyPass.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Utils/Local.h>
#include <llvm/Transforms/Utils/Mem2Reg.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <map>

#include "compiler/llvm/faults/accumulators.h"
#include "compiler/llvm/faults/array_bounds.h"
#include "compiler/llvm/faults/constant_bits.h"
#include "compiler/llvm/faults/constant_operands.h"
#include "compiler/llvm/faults/short_values.h"
#include "compiler/llvm/faults/spins.h"
#include "compiler/llvm/faults/split_halves.h"
#include "compiler/llvm/faults/wrapped_counters.h"
#include "compiler/llvm/long_code.h"

namespace kiln::llvm_ir {
namespace {

llvm::ModulePassManager InModule(llvm::FunctionPassManager functions) {
  llvm::ModulePassManager passes;
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(functions)));
  passes.addPass(llvm::AlwaysInlinerPass());
  passes.addPass(llvm::GlobalDCEPass());
  return passes;
}

// How much the passes may cost. `kPlain`: without EarlyCSE, which walks all uses of a branch's condition; thousands of statements may share
// one condition; and with branches left as they are, because SimplifyCFG would lead what comes from a branch past the next that tests the same
// value, one branch in each walk over all blocks. `kInMemory`: also keeps arrays in memory, because a value of each element in each block would
// be too many.
enum class Effort { kFull, kPlain, kInMemory };

struct GiveExitsPass : llvm::PassInfoMixin<GiveExitsPass> {
  llvm::PreservedAnalyses run(llvm::Function& function, llvm::FunctionAnalysisManager&) {
    GiveExits(function);
    return llvm::PreservedAnalyses::none();
  }
};

// Whether InstCombine may run where all is optimized and code moves, or only InstSimplify, which makes no instructions.
enum class Combine { kYes, kNo };

// Kiln has already unrolled the loops to be unrolled; LLVM folds, hoists and removes.
llvm::ModulePassManager Pipeline(Effort effort, CodeMotion motion, Combine combine) {
  llvm::FunctionPassManager functions;
  if (effort != Effort::kFull) {
    if (effort == Effort::kInMemory) {
      functions.addPass(llvm::PromotePass());
    } else {
      functions.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
    }
    functions.addPass(llvm::InstSimplifyPass());
    functions.addPass(llvm::SimplifyCFGPass(llvm::SimplifyCFGOptions().setSimplifyCondBranch(false)));
    functions.addPass(GiveExitsPass());
    functions.addPass(llvm::ADCEPass());
    return InModule(std::move(functions));
  }
  functions.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  functions.addPass(llvm::EarlyCSEPass(true));
  if (motion == CodeMotion::kNo) {  // InstCombine sinks, LICM and GVN's PRE hoist
    functions.addPass(llvm::InstSimplifyPass());
    functions.addPass(llvm::SimplifyCFGPass());
    functions.addPass(llvm::GVNPass(llvm::GVNOptions().setPRE(false).setLoadPRE(false)));
    functions.addPass(llvm::InstSimplifyPass());
    functions.addPass(llvm::ADCEPass());
    functions.addPass(llvm::SimplifyCFGPass());
    return InModule(std::move(functions));
  }
  const auto simplify = [&] {
    if (combine == Combine::kYes) functions.addPass(llvm::InstCombinePass());
    else functions.addPass(llvm::InstSimplifyPass());
  };
  simplify();
  functions.addPass(llvm::SimplifyCFGPass());
  functions.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()), true));
  functions.addPass(llvm::GVNPass());
  simplify();
  functions.addPass(llvm::ADCEPass());
  functions.addPass(llvm::SimplifyCFGPass());
  return InModule(std::move(functions));
}

struct CodeSize {
  size_t blocks = 0, instructions = 0;
  void Add(const CodeSize& other) { blocks += other.blocks, instructions += other.instructions; }
};

// Size of each function with its callees inlined: a callee counts once for each call.
std::map<const llvm::Function*, CodeSize> SizesInlined(const llvm::Module& module) {
  std::map<const llvm::Function*, CodeSize> sizes;
  const auto size_of = [&](const auto& self, const llvm::Function& function) -> CodeSize {
    const auto [known, added] = sizes.try_emplace(&function);  // a recursive function, which Optimize refuses, counts as nothing in itself
    if (!added) return known->second;
    CodeSize size{function.size(), function.getInstructionCount()};
    for (const llvm::Instruction& instruction : llvm::instructions(function)) {
      const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      const llvm::Function* callee = call == nullptr ? nullptr : call->getCalledFunction();
      if (callee != nullptr && !callee->isDeclaration()) size.Add(self(self, *callee));
    }
    return sizes[&function] = size;
  };
  for (const llvm::Function& function : module) (void)size_of(size_of, function);
  return sizes;
}

// For a larger kernel, passes that compare pairs of blocks or search memory backwards take too long. AMD's backend has more such passes:
// strength reduction of addresses, sinking, its own schedulers.
CodeSize MostInFull(const llvm::Module& module) {
  return module.getTargetTriple().isAMDGPU() ? CodeSize{.blocks = 1000, .instructions = 20'000} : CodeSize{.blocks = 3000, .instructions = 60'000};
}

// Elements of arrays times blocks: SROA looks through all blocks for each element that it turns into a register.
constexpr size_t kMostPromoted = 10'000'000;

size_t Elements(const llvm::AllocaInst& array) {
  const llvm::DataLayout& layout = array.getModule()->getDataLayout();
  const llvm::Type* element = array.getAllocatedType();
  while (element->isArrayTy() || element->isVectorTy()) element = element->getContainedType(0);
  const auto bytes = array.getAllocationSize(layout);
  return !bytes ? 0 : size_t(bytes->getFixedValue() * 8 / layout.getTypeSizeInBits(const_cast<llvm::Type*>(element)).getFixedValue());
}

// Minima and maxima of double: no NVIDIA GPU has an instruction for one, and ptxas' optimizer takes as long for what it makes of it as for so
// many other instructions.
constexpr size_t kCodeOfDoubleExtreme = 20;

bool IsDoubleExtreme(const llvm::Instruction& instruction) {
  const auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
  if (call == nullptr || !call->getType()->getScalarType()->isDoubleTy()) return false;
  switch (call->getIntrinsicID()) {
    case llvm::Intrinsic::minnum:
    case llvm::Intrinsic::maxnum:
    case llvm::Intrinsic::minimum:
    case llvm::Intrinsic::maximum:
    case llvm::Intrinsic::minimumnum:
    case llvm::Intrinsic::maximumnum: return true;
    default: return false;
  }
}

Effort EffortFor(const llvm::Module& module) {
  const CodeSize most = MostInFull(module);
  Effort effort = Effort::kFull;
  for (const auto& [function, size] : SizesInlined(module)) {
    size_t elements = 0, instructions = size.instructions;
    for (const llvm::Instruction& instruction : llvm::instructions(*function)) {
      if (const auto* array = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) elements += Elements(*array);
      if (module.getTargetTriple().isNVPTX() && IsDoubleExtreme(instruction)) instructions += kCodeOfDoubleExtreme;
    }
    if (elements * size.blocks > kMostPromoted) return Effort::kInMemory;
    if (size.blocks > most.blocks || instructions > most.instructions) effort = Effort::kPlain;
  }
  return effort;
}

// Where subnormals are flushed, LLVM 22 prints comparisons of bf16 as setp.ftz.bf16, which PTX does not have. In f32
// they are the same. After InstCombine, which would narrow them again.
void WidenBf16Comparisons(llvm::Function& function) {
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* compare = llvm::dyn_cast<llvm::FCmpInst>(&instruction);
    if (compare == nullptr || !compare->getOperand(0)->getType()->getScalarType()->isBFloatTy()) continue;
    llvm::IRBuilder<> builder(compare);
    for (unsigned i : {0u, 1u}) {
      llvm::Value* operand = compare->getOperand(i);
      compare->setOperand(i, builder.CreateFPExt(operand, operand->getType()->getWithNewType(builder.getFloatTy())));
    }
  }
}

// The word whose half a bf16 is: of a vector in whole registers, or taken apart by shifts.
struct HalfWord {
  llvm::Value* word = nullptr;
  bool high = false;
};

HalfWord HalfOf(llvm::Value* bf16, llvm::DenseMap<llvm::Value*, llvm::Value*>& words) {
  using namespace llvm::PatternMatch;
  HalfWord half;
  llvm::Value* integer = nullptr;
  if (match(bf16, m_BitCast(m_Trunc(m_Value(integer)))) && integer->getType()->isIntegerTy(32)) {
    half.high = match(integer, m_LShr(m_Value(half.word), m_SpecificInt(16)));
    if (!half.high) half.word = integer;
    return half;
  }
  auto* element = llvm::dyn_cast<llvm::ExtractElementInst>(bf16);
  auto* index = element == nullptr ? nullptr : llvm::dyn_cast<llvm::ConstantInt>(element->getIndexOperand());
  if (index == nullptr) return half;
  half.high = index->getZExtValue() % 2 != 0;
  llvm::Value* vector = element->getVectorOperand();
  const unsigned count = unsigned(element->getVectorOperandType()->getElementCount().getFixedValue());
  // A vector that was put together from elements has a register for each already. One that is loaded under a condition is a phi.
  if (!llvm::isa<llvm::LoadInst, llvm::BitCastInst, llvm::PHINode, llvm::SelectInst>(vector) || count % 2 != 0) return half;
  llvm::Value*& whole = words[vector];
  if (whole == nullptr) {
    llvm::IRBuilder<> after(&*llvm::cast<llvm::Instruction>(vector)->getInsertionPointAfterDef().value());
    whole = after.CreateBitCast(vector, llvm::FixedVectorType::get(after.getInt32Ty(), count / 2));
  }
  llvm::IRBuilder<> builder(element);
  half.word = builder.CreateExtractElement(whole, index->getZExtValue() / 2);
  return half;
}

bool FlushesSubnormals(const llvm::Function& function) {
  return function.getDenormalMode(llvm::APFloat::IEEEsingle()).Output == llvm::DenormalMode::PreserveSign;
}

// A bf16's f32 as its bits. Subnormals stay; where they are flushed, whatever reads the f32 does that.
llvm::Value* Widened(llvm::IRBuilder<>& b, llvm::Value* bf16) {
  return b.CreateShl(b.CreateZExt(b.CreateBitCast(bf16, b.getInt16Ty()), b.getInt32Ty()), 16);
}

// Two bf16 in a word become f32 by a shift and by a mask, one operation each; LLVM 22 takes the word apart first. Where subnormals are flushed, it
// converts one that is no half of a word by cvt.ftz, which ptxas leaves to the unit for exponentials, at an eighth of the speed.
void WidenBf16(llvm::Function& function) {
  const bool flushes = FlushesSubnormals(function);
  llvm::DenseMap<llvm::Value*, llvm::Value*> words;
  std::vector<llvm::FPExtInst*> extended;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* extend = llvm::dyn_cast<llvm::FPExtInst>(&instruction);
    if (extend != nullptr && extend->getType()->isFloatTy() && extend->getOperand(0)->getType()->isBFloatTy()) extended.push_back(extend);
  }
  for (llvm::FPExtInst* extend : extended) {
    auto* narrow = llvm::dyn_cast<llvm::Instruction>(extend->getOperand(0));
    const HalfWord half = narrow == nullptr ? HalfWord{} : HalfOf(narrow, words);
    if (half.word == nullptr && !flushes) continue;
    llvm::IRBuilder<> builder(extend);
    llvm::Value* bits = half.word == nullptr ? Widened(builder, extend->getOperand(0))
                        : half.high          ? builder.CreateAnd(half.word, builder.getInt32(0xffff0000u))
                                             : builder.CreateShl(half.word, 16);
    extend->replaceAllUsesWith(builder.CreateBitCast(bits, builder.getFloatTy()));
    extend->eraseFromParent();
    if (half.word != nullptr) llvm::RecursivelyDeleteTriviallyDeadInstructions(narrow);
  }
}

// The function that the value is a call of; "": it is none.
llvm::StringRef CalledName(const llvm::Value& value) {
  const auto* call = llvm::dyn_cast<llvm::CallInst>(&value);
  return call == nullptr || call->getCalledFunction() == nullptr ? "" : call->getCalledFunction()->getName();
}

bool IsMatrixOp(const llvm::Instruction& instruction) {
  const llvm::StringRef name = CalledName(instruction);
  return name.starts_with("llvm.amdgcn.mfma.") || name.starts_with("llvm.amdgcn.smfmac.") || name.starts_with("llvm.amdgcn.swmmac.") ||
         name.starts_with("llvm.amdgcn.wmma.");
}

// AMDGPU's schedulers take time quadratic in the region they schedule, too long for large unrolled bodies. Long blocks are cut into
// regions; nothing is scheduled across a cut, and no loads are joined across one. So it stands behind a matrix operation, or before a load that
// follows none closely, if there is such a place in the last quarter of a region.
void CutSchedulingRegions(llvm::Function& function) {
  constexpr int kRegion = 512;
  constexpr int kApart = 16;  // instructions between loads that are not joined
  for (llvm::BasicBlock& block : function) {
    if (block.size() < 2 * kRegion) continue;
    int count = 0, since_load = 0;
    for (auto it = block.getFirstNonPHIIt(); !it->isTerminator(); ++it) {
      const bool loads = llvm::isa<llvm::LoadInst>(*it);
      const bool good = count > 0 && ((IsMatrixOp(*std::prev(it)) && !IsMatrixOp(*it)) || (loads && since_load >= kApart));
      since_load = loads ? 0 : since_load + 1;
      if (++count < (good ? kRegion * 3 / 4 : kRegion)) continue;
      count = 0;
      llvm::IRBuilder<> builder(&block, it);
      builder.CreateIntrinsic(llvm::Intrinsic::amdgcn_sched_barrier, {}, {builder.getInt32(0)});
    }
  }
}

bool IsWmma(const llvm::Value* value) { return CalledName(*value).starts_with("llvm.amdgcn.wmma."); }

// All lanes must take part in a WMMA. LLVM 22's MachineSink moves gfx11's WMMA into a branch if only the branch uses the result. An empty
// use next to the instruction keeps it in its block; if the result feeds another WMMA of the block, that is such a use.
void KeepWmmaInItsBlock(llvm::Function& function) {
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (!IsWmma(&instruction)) continue;
    const bool feeds_next = llvm::any_of(instruction.users(), [&](const llvm::User* user) {
      return IsWmma(user) && llvm::cast<llvm::Instruction>(user)->getParent() == instruction.getParent();
    });
    if (feeds_next) continue;
    llvm::IRBuilder<> builder(instruction.getNextNode());
    auto* type = llvm::FunctionType::get(builder.getVoidTy(), {instruction.getType()}, false);
    builder.CreateCall(type, llvm::InlineAsm::get(type, "", "v", true), {&instruction});
  }
}

// Passes that walk all uses of a branch's condition do so for each branch: where many share one, each gets its own.
void PartConditions(llvm::Function& function) {
  for (llvm::BasicBlock& block : function) {
    auto* branch = llvm::dyn_cast<llvm::BranchInst>(block.getTerminator());
    auto* condition = branch == nullptr || branch->isUnconditional() ? nullptr : llvm::dyn_cast<llvm::CmpInst>(branch->getCondition());
    if (condition == nullptr || condition->hasOneUse()) continue;
    llvm::Instruction* own = condition->clone();
    own->insertBefore(branch->getIterator());
    branch->setCondition(own);
  }
}

bool IsKernel(const llvm::Function& function) {
  return function.getCallingConv() == llvm::CallingConv::PTX_Kernel || function.getCallingConv() == llvm::CallingConv::AMDGPU_KERNEL;
}

void Run(llvm::Module& module, llvm::TargetMachine& machine, Effort effort, CodeMotion motion, Combine combine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  Pipeline(effort, motion, combine).run(module, modules);
}

// Where a program reads an f16 as a bf16, or the other way round, and asks whether that is zero, LLVM 22's InstCombine takes the bits for an
// integer: the types of the instructions that it makes do not match, and it crashes where it folds them. A comparison of f32 may become one of
// the two types, and the bits may come through memory or integers. So any comparison counts in a module with both.
bool MayMistakeHalves(const llvm::Module& module) {
  bool compares = false, has_half = false, has_bfloat = false;
  const auto see = [&](const llvm::Type& type) {
    has_half |= type.getScalarType()->isHalfTy();
    has_bfloat |= type.getScalarType()->isBFloatTy();
  };
  for (const llvm::Function& function : module) {
    for (const llvm::Instruction& instruction : llvm::instructions(function)) {
      see(*instruction.getType());
      for (const llvm::Use& operand : instruction.operands()) see(*operand->getType());  // also a parameter of the kernel
      compares |= llvm::isa<llvm::FCmpInst>(instruction);
    }
  }
  return compares && has_half && has_bfloat;
}

std::string Problem(const llvm::Function& function) {
  const std::string name = function.getName().str();
  if (!function.isDeclaration()) {
    return IsKernel(function) ? "" : "function " + name + " is left after inlining (is it recursive or not alwaysinline?)";
  }
  if (function.use_empty()) return "";
  if (function.hasFnAttribute(kInPtx)) return "";
  if (!function.isIntrinsic()) return "call of unknown function " + name + ": GPU code has no library to link with";
  if (function.getIntrinsicID() == llvm::Intrinsic::not_intrinsic) return "this LLVM has no intrinsic " + name;
  if (NeedsLibrary(function)) return name + " has no instruction on GPUs; Device::Math builds it from arithmetic";
  return "";
}

}  // namespace

bool NeedsLibrary(const llvm::Function& function) {
  switch (function.getIntrinsicID()) {
    case llvm::Intrinsic::exp:
    case llvm::Intrinsic::exp10:
    case llvm::Intrinsic::log:
    case llvm::Intrinsic::log2:
    case llvm::Intrinsic::log10:
    case llvm::Intrinsic::pow:
    case llvm::Intrinsic::powi:
    case llvm::Intrinsic::sin:
    case llvm::Intrinsic::cos:
    case llvm::Intrinsic::tan:
    case llvm::Intrinsic::sincos: return true;
    default: return false;
  }
}

bool IsLong(const llvm::Module& module) { return EffortFor(module) != Effort::kFull; }

size_t CodeOf(const llvm::Module& module) {
  size_t code = 0;
  for (const auto& [function, size] : SizesInlined(module))
    if (!function->hasFnAttribute(llvm::Attribute::AlwaysInline)) code += size.instructions + size.blocks * (compiler::kCodeOfBlock - 1);
  return code;
}

std::expected<void, std::string> Optimize(llvm::Module& module, llvm::TargetMachine& machine, CodeMotion motion) {
  const Effort effort = EffortFor(module);
  if (effort != Effort::kFull) machine.setOptLevel(llvm::CodeGenOptLevel::None);
  if (effort != Effort::kFull)
    for (llvm::Function& function : module) PartConditions(function);
  Run(module, machine, effort, motion, MayMistakeHalves(module) ? Combine::kNo : Combine::kYes);
  for (llvm::Function& function : module) {
    if (machine.getTargetTriple().isNVPTX()) {
      WidenBf16Comparisons(function);
      HideConstantOperands(function);
      WriteSpins(function);
      KeepHalvesWhole(function);
      KeepWrappedCounters(function);
      PartAccumulators(function);
      WidenBf16(function);
      WidenShortValues(function);
    }
    if (machine.getTargetTriple().isAMDGPU()) {
      DropAccessesOutsideArrays(function);
      StoreZerosForUndefined(function);
      KeepArraysInMemory(function);
      FoldConstantBits(function);
      KeepWmmaInItsBlock(function);
      ChooseByVectorUnit(function);
      CutSchedulingRegions(function);
    }
  }

  std::string problems;
  for (const llvm::Function& function : module) {
    if (machine.getTargetTriple().isX86()) continue;  // the emulator has a library
    const std::string problem = Problem(function);
    if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
  }
  if (!problems.empty()) return std::unexpected(problems);
  return {};
}

}  // namespace kiln::llvm_ir
