// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/long_code.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/IntrinsicsAMDGPU.h>
#pragma GCC diagnostic pop

#include <vector>

namespace kiln::llvm_ir {
namespace {

using llvm::BasicBlock;

// The blocks from which the kernel can come to its end.
class Ending {
 public:
  explicit Ending(llvm::Function& function) {
    for (BasicBlock& block : function)
      if (llvm::succ_empty(&block)) Add(block);
  }

  bool Has(const BasicBlock& block) const { return blocks_.contains(&block); }

  // The block, and all that come to it.
  void Add(BasicBlock& block) {
    std::vector<BasicBlock*> left = {&block};
    while (!left.empty()) {
      BasicBlock* next = left.back();
      left.pop_back();
      if (!blocks_.insert(next).second) continue;
      left.insert(left.end(), llvm::pred_begin(next), llvm::pred_end(next));
    }
  }

 private:
  llvm::SmallPtrSet<const BasicBlock*, 32> blocks_;
};

bool IsThreadsNumber(const llvm::Instruction& instruction) {
  const auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
  if (call == nullptr) return false;
  const llvm::Intrinsic::ID id = call->getIntrinsicID();
  return id == llvm::Intrinsic::amdgcn_workitem_id_x || id == llvm::Intrinsic::amdgcn_workitem_id_y || id == llvm::Intrinsic::amdgcn_workitem_id_z;
}

// The values that are made from the thread's number. The scalar unit makes no other.
llvm::SmallPtrSet<const llvm::Value*, 32> OfThreads(llvm::Function& function) {
  llvm::SmallPtrSet<const llvm::Value*, 32> values;
  std::vector<const llvm::Value*> left;
  for (const llvm::Instruction& instruction : llvm::instructions(function))
    if (IsThreadsNumber(instruction)) left.push_back(&instruction);
  while (!left.empty()) {
    const llvm::Value* next = left.back();
    left.pop_back();
    if (values.insert(next).second) left.insert(left.end(), next->user_begin(), next->user_end());
  }
  return values;
}

// The value of 32 or 64 bits, in a vector register.
llvm::Value* InVectorRegister(llvm::IRBuilder<>& b, llvm::Value* value) {
  auto* type = llvm::FunctionType::get(value->getType(), {value->getType()}, false);
  return b.CreateCall(type, llvm::InlineAsm::get(type, "", "=v,0", /*hasSideEffects=*/false), {value});
}

// The condition, as a comparison of what is in a vector register.
llvm::Value* OfVectorUnit(llvm::Instruction& condition) {
  llvm::IRBuilder<> b(condition.getParent(), *condition.getInsertionPointAfterDef());
  if (const auto* compare = llvm::dyn_cast<llvm::CmpInst>(&condition)) {
    const unsigned bits = compare->getOperand(0)->getType()->getScalarSizeInBits();  // 0 for a pointer
    if (bits == 32 || bits == 64) return b.CreateCmp(compare->getPredicate(), InVectorRegister(b, compare->getOperand(0)), compare->getOperand(1));
  }
  return b.CreateICmpNE(InVectorRegister(b, b.CreateZExt(&condition, b.getInt32Ty())), b.getInt32(0));
}

}  // namespace

void GiveExits(llvm::Function& function) {
  if (!function.getReturnType()->isVoidTy()) return;
  Ending ending(function);
  BasicBlock* exit = nullptr;
  for (BasicBlock& block : llvm::reverse(function)) {  // those of a loop mostly stand behind what leads to it
    auto* branch = llvm::dyn_cast<llvm::BranchInst>(block.getTerminator());
    if (ending.Has(block) || branch == nullptr || branch->isConditional()) continue;
    if (exit == nullptr) {
      exit = BasicBlock::Create(function.getContext(), "never", &function);
      llvm::ReturnInst::Create(function.getContext(), exit);
    }
    llvm::BranchInst::Create(branch->getSuccessor(0), exit, llvm::ConstantInt::getTrue(function.getContext()), branch->getIterator());
    branch->eraseFromParent();
    ending.Add(block);
  }
}

void ChooseByVectorUnit(llvm::Function& function) {
  const auto of_threads = OfThreads(function);
  for (BasicBlock& block : function) {
    llvm::MapVector<llvm::Instruction*, std::vector<llvm::SelectInst*>> chosen;
    size_t count = 0;
    for (llvm::Instruction& instruction : block) {
      auto* select = llvm::dyn_cast<llvm::SelectInst>(&instruction);
      auto* condition = select == nullptr ? nullptr : llvm::dyn_cast<llvm::Instruction>(select->getCondition());
      if (condition == nullptr || !condition->getType()->isIntegerTy(1) || of_threads.contains(condition)) continue;
      chosen[condition].push_back(select);
      ++count;
    }
    if (count <= kMostChosen) continue;
    for (auto& [condition, selects] : chosen) {
      llvm::Value* other = OfVectorUnit(*condition);
      for (llvm::SelectInst* select : selects) select->setCondition(other);
    }
  }
}

void CutLongBlocks(llvm::Function& function) {
  std::vector<BasicBlock*> blocks;
  for (BasicBlock& block : function)
    if (block.size() > kMostOfBlock) blocks.push_back(&block);
  for (BasicBlock* block : blocks) {
    std::vector<llvm::Instruction*> cuts;
    size_t count = 0;
    for (auto it = block->getFirstInsertionPt(); !it->isTerminator(); ++it) {
      if (llvm::isa<llvm::AllocaInst>(*it)) cuts.clear();  // allocations stay in the first block
      if (++count % kMostOfBlock == 0) cuts.push_back(&*it);
    }
    for (llvm::Instruction* cut : llvm::reverse(cuts)) block->splitBasicBlock(cut);  // from the end, so that each moves few
  }
}

}  // namespace kiln::llvm_ir
