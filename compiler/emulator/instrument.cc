// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/instrument.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "compiler/emulator/abi.h"
#include "compiler/llvm/device/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/Analysis/CFG.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/IR/DebugLoc.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#pragma GCC diagnostic pop

namespace kiln::emulator {
namespace {

constexpr uint64_t kLargestValue = 128;  // bytes of a vector

class Instrumentation {
 public:
  explicit Instrumentation(llvm::Function& kernel) : kernel_(kernel), layout_(kernel.getParent()->getDataLayout()) {
    llvm::IRBuilder<> b(kernel.getContext());
    llvm::Type *i32 = b.getInt32Ty(), *pointer = b.getPtrTy();
    hook_ = kernel.getParent()->getOrInsertFunction("kiln_emu_access", b.getVoidTy(), pointer, i32, i32, i32, pointer, i32);
  }

  void Run() {
    std::vector<llvm::Instruction*> accesses;
    for (llvm::Instruction& instruction : llvm::instructions(kernel_)) {
      const llvm::Value* pointer = llvm::getLoadStorePointerOperand(&instruction);
      if (pointer == nullptr) continue;
      const unsigned space = pointer->getType()->getPointerAddressSpace();
      if (space == llvm_ir::kGlobalSpace || space == llvm_ir::kSharedSpace || space == llvm_ir::kClusterSpace) accesses.push_back(&instruction);
    }
    for (llvm::Instruction* access : accesses) Hook(*access);
    HookMarks();
  }

 private:
  void Hook(llvm::Instruction& access) {
    llvm::IRBuilder<> b(&access);
    llvm::Value* pointer = llvm::getLoadStorePointerOperand(&access);
    const bool shared = pointer->getType()->getPointerAddressSpace() != llvm_ir::kGlobalSpace;
    auto* store = llvm::dyn_cast<llvm::StoreInst>(&access);
    const uint64_t bytes = layout_.getTypeStoreSize(llvm::getLoadStoreType(&access));
    llvm::Value* value = llvm::ConstantPointerNull::get(b.getPtrTy());
    if (store != nullptr && bytes <= kLargestValue) {
      value = Copy();
      b.CreateStore(store->getValueOperand(), value);
    }
    const uint32_t line = access.getDebugLoc() ? access.getDebugLoc().getLine() : 0;
    b.CreateCall(hook_, {b.CreateAddrSpaceCast(pointer, b.getPtrTy()), b.getInt32(uint32_t(bytes)),
                         b.getInt32(uint32_t(llvm::getLoadStoreAlignment(&access).value())),
                         b.getInt32((store != nullptr ? 1u : 0u) | (shared ? 2u : 0u)), value, b.getInt32(line)});
  }

  // --- registers of wgmma ---

  // Values that may be marks (runtime/matrix/wgmma.h) come out of the arrays that its calls replace them in.
  std::vector<llvm::Value*> MarkSources() {
    std::set<const llvm::Value*> arrays;
    std::vector<llvm::Value*> sources;
    for (llvm::Instruction& instruction : llvm::instructions(kernel_)) {
      auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (call == nullptr || call->getCalledFunction() == nullptr) continue;
      const llvm::StringRef name = call->getCalledFunction()->getName();
      if (name == "kiln_emu_wgmma_begin" || name == "kiln_emu_wgmma_wait") arrays.insert(call->getArgOperand(2)->stripInBoundsOffsets());
    }
    for (llvm::Instruction& instruction : llvm::instructions(kernel_)) {
      auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction);
      if (load != nullptr && arrays.contains(load->getPointerOperand()->stripInBoundsOffsets())) sources.push_back(load);
    }
    return sources;
  }

  static bool PassesOn(const llvm::User& user) {
    return llvm::isa<llvm::PHINode, llvm::SelectInst, llvm::FreezeInst, llvm::BitCastInst, llvm::InsertElementInst, llvm::ExtractElementInst,
                     llvm::ShuffleVectorInst, llvm::InsertValueInst, llvm::ExtractValueInst>(user);
  }

  // A thread's own memory is where its calls find operands; a register may be given a mark.
  static bool Keeps(const llvm::User& user) {
    if (auto* call = llvm::dyn_cast<llvm::CallInst>(&user)) {
      return call->getCalledFunction() != nullptr && call->getCalledFunction()->getName() == "kiln_emu_wgmma_assign";
    }
    auto* store = llvm::dyn_cast<llvm::StoreInst>(&user);
    return store != nullptr && store->getPointerAddressSpace() == 0;
  }

  void HookMarks() {
    std::vector<llvm::Value*> work = MarkSources();
    std::set<llvm::Value*> known(work.begin(), work.end());
    std::vector<llvm::Use*> uses;
    while (!work.empty()) {
      llvm::Value* value = work.back();
      work.pop_back();
      for (llvm::Use& use : value->uses()) {
        if (Keeps(*use.getUser())) continue;
        if (!PassesOn(*use.getUser())) {
          uses.push_back(&use);
        } else if (known.insert(use.getUser()).second) {
          work.push_back(use.getUser());
        }
      }
    }
    for (llvm::Use* use : uses) HookUse(*use);
  }

  void HookUse(llvm::Use& use) {
    auto* user = llvm::cast<llvm::Instruction>(use.getUser());
    llvm::IRBuilder<> b(user);
    llvm::Type *i32 = b.getInt32Ty(), *type = use->getType();
    if (type->isAggregateType() || layout_.getTypeSizeInBits(type) % 32 != 0) return;
    const auto words = unsigned(layout_.getTypeSizeInBits(type) / 32);
    const llvm::FunctionCallee touch = kernel_.getParent()->getOrInsertFunction("kiln_emu_wgmma_touch", b.getVoidTy(), i32, i32);
    llvm::Value* all = b.CreateBitCast(use.get(), llvm::FixedVectorType::get(i32, words));
    const uint32_t line = user->getDebugLoc() ? user->getDebugLoc().getLine() : 0;
    for (uint64_t word = 0; word < words; ++word) b.CreateCall(touch, {b.CreateExtractElement(all, word), b.getInt32(line)});
  }

  llvm::Value* Copy() {
    if (copy_ == nullptr) {
      llvm::IRBuilder<> b(&kernel_.getEntryBlock(), kernel_.getEntryBlock().begin());
      copy_ = b.CreateAlloca(llvm::ArrayType::get(b.getInt8Ty(), kLargestValue), nullptr, "stored");
      copy_->setAlignment(llvm::Align(kLargestValue));
    }
    return copy_;
  }

  llvm::Function& kernel_;
  const llvm::DataLayout& layout_;
  llvm::FunctionCallee hook_;
  llvm::AllocaInst* copy_ = nullptr;
};

// The operand of a call of function `name`; null: the instruction is something else.
const llvm::Value* Operand(const llvm::Instruction& instruction, llvm::StringRef name, unsigned operand) {
  auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
  const bool is = call != nullptr && call->getCalledFunction() != nullptr && call->getCalledFunction()->getName() == name;
  return is ? call->getArgOperand(operand) : nullptr;
}

// What the pointer may point to.
void Insert(const llvm::Value& pointer, Written& to) {
  llvm::SmallVector<const llvm::Value*, 4> objects;
  llvm::getUnderlyingObjects(&pointer, objects, nullptr, 0);
  for (const llvm::Value* object : objects) {
    auto* argument = llvm::dyn_cast<llvm::Argument>(object);
    if (argument == nullptr) to.any = true;
    else (pointer.getType()->getPointerAddressSpace() == llvm_ir::kGlobalSpace ? to.params : to.maps).insert(argument->getArgNo());
  }
}

class Ownership {
 public:
  explicit Ownership(llvm::Function& kernel) : kernel_(kernel) {}

  Written Run() {
    std::vector<llvm::Instruction*> accesses;
    for (llvm::Instruction& instruction : llvm::instructions(kernel_)) {
      if (const llvm::Value* to = WrittenBy(instruction)) Insert(*to, written_);
      if (const llvm::Value* map = StoredThrough(instruction)) Insert(*map, written_);
      const llvm::Value* pointer = llvm::getLoadStorePointerOperand(&instruction);
      if (pointer != nullptr && pointer->getType()->getPointerAddressSpace() == llvm_ir::kGlobalSpace) accesses.push_back(&instruction);
    }
    for (llvm::Instruction* access : accesses) {
      Written touched;
      Insert(*llvm::getLoadStorePointerOperand(access), touched);
      const bool may = written_.any || touched.any || std::ranges::any_of(touched.params, [&](unsigned i) { return written_.params.contains(i); });
      if (may) Hook(*access);
    }
    return written_;
  }

 private:
  // Null: no global memory.
  static const llvm::Value* WrittenBy(const llvm::Instruction& instruction) {
    if (auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction)) {
      return store->getPointerAddressSpace() == llvm_ir::kGlobalSpace ? store->getPointerOperand() : nullptr;
    }
    return Operand(instruction, "kiln_emu_atomic_global", 2);
  }

  // The tensor map; null: none.
  static const llvm::Value* StoredThrough(const llvm::Instruction& instruction) { return Operand(instruction, "kiln_emu_tensor_store", 1); }

  void Hook(llvm::Instruction& access) {
    llvm::IRBuilder<> b(&access);
    llvm::Value* pointer = llvm::getLoadStorePointerOperand(&access);
    llvm::Type* i32 = b.getInt32Ty();
    const llvm::FunctionCallee own = kernel_.getParent()->getOrInsertFunction("kiln_emu_own", b.getVoidTy(), pointer->getType(), i32, i32);
    const uint64_t bytes = kernel_.getParent()->getDataLayout().getTypeStoreSize(llvm::getLoadStoreType(&access));
    b.CreateCall(own, {pointer, b.getInt32(uint32_t(bytes)), b.getInt32(llvm::isa<llvm::StoreInst>(access) ? 1 : 0)});
  }

  llvm::Function& kernel_;
  Written written_;
};

// The tile statement of the block's last instruction that has one; 0: none has.
uint32_t LastLocation(const llvm::BasicBlock& block) {
  for (const llvm::Instruction& instruction : llvm::reverse(block)) {
    if (instruction.getDebugLoc() && instruction.getDebugLoc().getLine() != 0) return instruction.getDebugLoc().getLine();
  }
  return 0;
}

}  // namespace

bool MixesAtomics(const llvm::Function& kernel) {
  std::map<unsigned, std::set<const llvm::Value*>> kinds;  // constants: one value for each number
  std::set<const llvm::Value*> of_any;
  for (const llvm::Instruction& instruction : llvm::instructions(kernel)) {
    if (const llvm::Value* kind = Operand(instruction, "kiln_emu_atomic_global", 0)) {
      Written changed;
      Insert(*Operand(instruction, "kiln_emu_atomic_global", 2), changed);
      if (changed.any) of_any.insert(kind);
      for (const unsigned param : changed.params) kinds[param].insert(kind);
    } else if (const llvm::Value* op = Operand(instruction, "kiln_emu_tensor_store", 0)) {
      auto* number = llvm::dyn_cast<llvm::ConstantInt>(op);
      if (number == nullptr || number->getZExtValue() != uint64_t(TensorOp::kStore)) of_any.insert(op);
    }
  }
  kinds[~0u];
  return std::ranges::any_of(kinds, [&](const auto& of) {
    std::set<const llvm::Value*> all = of.second;
    all.insert(of_any.begin(), of_any.end());
    return all.size() > 1;
  });
}

Written HookOwners(llvm::Function& kernel) { return Ownership(kernel).Run(); }

void Instrument(llvm::Function& kernel) { Instrumentation(kernel).Run(); }

void OrderZeros(llvm::Function& kernel) {
  for (llvm::Instruction& instruction : llvm::instructions(kernel)) {
    auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
    if (call == nullptr) continue;
    const bool larger = call->getIntrinsicID() == llvm::Intrinsic::maxnum;
    if (!larger && call->getIntrinsicID() != llvm::Intrinsic::minnum) continue;
    const auto ordered = larger ? llvm::Intrinsic::maximumnum : llvm::Intrinsic::minimumnum;
    call->setCalledFunction(llvm::Intrinsic::getOrInsertDeclaration(kernel.getParent(), ordered, {call->getType()}));
  }
}

void HideSigns(llvm::Function& kernel) {
  std::vector<llvm::BitCastInst*> patterns;
  for (llvm::Instruction& instruction : llvm::instructions(kernel)) {
    auto* cast = llvm::dyn_cast<llvm::BitCastInst>(&instruction);
    if (cast != nullptr && cast->getSrcTy()->isBFloatTy()) patterns.push_back(cast);
  }
  for (llvm::BitCastInst* pattern : patterns) {
    llvm::IRBuilder<> b(pattern->getNextNode());
    llvm::Type* type = pattern->getType();
    auto* same = llvm::InlineAsm::get(llvm::FunctionType::get(type, {type}, false), "", "=r,0", false);
    llvm::CallInst* hidden = b.CreateCall(same, {pattern});
    pattern->replaceUsesWithIf(hidden, [&](const llvm::Use& use) { return use.getUser() != hidden; });
  }
}

void PollInLoops(llvm::Function& kernel, const std::atomic<bool>& time_over) {
  static_assert(sizeof(time_over) == 1 && std::atomic<bool>::is_always_lock_free);
  llvm::SmallVector<std::pair<const llvm::BasicBlock*, const llvm::BasicBlock*>> edges;
  llvm::FindFunctionBackedges(kernel, edges);
  std::vector<std::pair<llvm::Instruction*, uint32_t>> places;
  llvm::SmallPtrSet<const llvm::BasicBlock*, 8> polled;  // a block may go back to several
  for (const auto& [from, to] : edges) {
    if (!polled.insert(from).second) continue;
    const llvm::Instruction* end = from->getTerminator();
    const bool tests = end->getNumSuccessors() > 1;  // else the loop does where it begins
    const uint32_t location = LastLocation(tests ? *from : *to);
    places.emplace_back(const_cast<llvm::Instruction*>(end), location != 0 ? location : LastLocation(tests ? *to : *from));
  }
  llvm::IRBuilder<> b(kernel.getContext());
  const llvm::FunctionCallee over = kernel.getParent()->getOrInsertFunction("kiln_emu_time_over", b.getVoidTy(), b.getInt32Ty());
  llvm::MDNode* never = llvm::MDBuilder(kernel.getContext()).createUnlikelyBranchWeights();
  for (const auto& [end, location] : places) {
    b.SetInsertPoint(end);
    llvm::Value* flag = b.CreateIntToPtr(b.getInt64(reinterpret_cast<uint64_t>(&time_over)), b.getPtrTy());
    llvm::LoadInst* set = b.CreateLoad(b.getInt8Ty(), flag);
    set->setAtomic(llvm::AtomicOrdering::Monotonic);
    b.SetInsertPoint(llvm::SplitBlockAndInsertIfThen(b.CreateICmpNE(set, b.getInt8(0)), end, true, never));
    b.CreateCall(over, {b.getInt32(location)});
  }
}

}  // namespace kiln::emulator
