// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/long_code.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/InlineAsm.h>
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

bool IsThreadsNumber(const llvm::Value* value) {
  const auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(value);
  if (call == nullptr) return false;
  const llvm::Intrinsic::ID id = call->getIntrinsicID();
  return id == llvm::Intrinsic::amdgcn_workitem_id_x || id == llvm::Intrinsic::amdgcn_workitem_id_y || id == llvm::Intrinsic::amdgcn_workitem_id_z;
}

// Whether a value is made from the thread's number, and so is no condition of the scalar unit.
bool IsOfThread(const llvm::Value& value) {
  llvm::SmallPtrSet<const llvm::Value*, 32> seen;
  std::vector<const llvm::Value*> left = {&value};
  while (!left.empty()) {
    const llvm::Value* next = left.back();
    left.pop_back();
    if (IsThreadsNumber(next)) return true;
    const auto* instruction = llvm::dyn_cast<llvm::Instruction>(next);
    if (instruction != nullptr && seen.insert(next).second) left.insert(left.end(), instruction->op_begin(), instruction->op_end());
  }
  return false;
}

// The condition, as a comparison of what is in a vector register.
llvm::Value* OfVectorUnit(llvm::Value* condition, llvm::Instruction& before) {
  llvm::IRBuilder<> b(&before);
  auto* type = llvm::FunctionType::get(b.getInt32Ty(), {b.getInt32Ty()}, false);
  llvm::Value* word = b.CreateCall(type, llvm::InlineAsm::get(type, "", "=v,0", /*hasSideEffects=*/false), {b.CreateZExt(condition, b.getInt32Ty())});
  return b.CreateICmpNE(word, b.getInt32(0));
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
  for (BasicBlock& block : function) {
    llvm::MapVector<llvm::Value*, std::vector<llvm::SelectInst*>> chosen;
    for (llvm::Instruction& instruction : block) {
      auto* select = llvm::dyn_cast<llvm::SelectInst>(&instruction);
      if (select != nullptr && select->getType()->isPointerTy()) chosen[select->getCondition()].push_back(select);
    }
    for (auto& [condition, selects] : chosen) {
      if (selects.size() <= kMostChosen || IsOfThread(*condition)) continue;
      llvm::Value* other = OfVectorUnit(condition, *selects.front());
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
