// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/long_code.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/IR/CFG.h>
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

}  // namespace

void GiveExits(llvm::Function& function) {
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
