// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/outline.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/Analysis/PostDominators.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/Dominators.h>
#include <llvm/Transforms/Utils/CodeExtractor.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <utility>
#include <vector>

namespace kiln::llvm_ir {
namespace {

using llvm::BasicBlock;
using Part = std::vector<BasicBlock*>;

// A function is divided into about so many parts, and then each of these. To take a part out costs time in proportion to what it is taken from.
constexpr size_t kParts = 16;
// The time that ptxas takes for a block grows with the square of its instructions, too: a block of so many is cut into runs of kRun.
constexpr size_t kLongBlock = 4096, kRun = 16;
// Values that a function takes and gives. ptxas passes them through registers and memory.
constexpr size_t kMostPassed = 64;

// Finds parts of a function, of at most `most` blocks, that lie one behind the other and that one block each dominates.
class Division {
 public:
  Division(llvm::Function& function, size_t most) : most_(most), dominators_(function), behind_(function) {
    BasicBlock& entry = function.getEntryBlock();  // its allocations stay in the kernel
    for (BasicBlock* next : llvm::successors(&entry)) Divide(next, nullptr);
  }

  const std::vector<Part>& parts() const { return parts_; }

 private:
  BasicBlock* Behind(BasicBlock* block) const {
    const auto* node = behind_.getNode(block);
    return node == nullptr || node->getIDom() == nullptr ? nullptr : node->getIDom()->getBlock();
  }

  // `begin` and what lies between it and `end`, which all paths from `begin` reach if it is given.
  Part Segment(BasicBlock* begin, const BasicBlock* end) const {
    Part blocks = {begin};
    llvm::SmallPtrSet<BasicBlock*, 16> seen = {begin};
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (BasicBlock* next : llvm::successors(blocks[i]))
        if (next != end && dominators_.dominates(begin, next) && seen.insert(next).second) blocks.push_back(next);
    }
    return blocks;
  }

  void Keep(Part& part) {
    if (part.size() >= most_ / 4) parts_.push_back(std::move(part));
    part = {};
  }

  // Divides the blocks from `begin` to `end`: on the way to the end of the function, every path passes the same blocks, and each
  // of these dominates the next one as long as `begin` does. A loop or a branch that is too long by itself is divided inside.
  void Divide(BasicBlock* begin, const BasicBlock* end) {
    Part part;
    for (BasicBlock* block = begin; block != nullptr && block != end && dominators_.dominates(begin, block);) {
      BasicBlock* next = Behind(block);
      Part segment = Segment(block, next);
      if (!part.empty() && part.size() + segment.size() > most_) Keep(part);
      if (segment.size() > most_) {
        for (BasicBlock* inside : llvm::successors(block))
          if (inside != next && inside != block && dominators_.dominates(block, inside)) Divide(inside, next);
      } else {
        part.insert(part.end(), segment.begin(), segment.end());
      }
      block = next;
    }
    Keep(part);
  }

  size_t most_;
  llvm::DominatorTree dominators_;
  llvm::PostDominatorTree behind_;
  std::vector<Part> parts_;
};

// Cuts long blocks into runs, which can be parts. Allocations stay in one block with what stands before them.
void CutLongBlocks(llvm::Function& function) {
  std::vector<BasicBlock*> blocks;
  for (BasicBlock& block : function)
    if (block.size() >= kLongBlock) blocks.push_back(&block);
  for (BasicBlock* block : blocks) {
    std::vector<llvm::Instruction*> cuts;
    size_t run = 0;
    for (auto it = block->getFirstInsertionPt(); !it->isTerminator(); ++it) {
      if (llvm::isa<llvm::AllocaInst>(*it)) {
        cuts.clear();
        run = 0;
      } else if (++run % kRun == 0) {
        cuts.push_back(&*it);
      }
    }
    for (llvm::Instruction* cut : llvm::reverse(cuts)) block->splitBasicBlock(cut);  // from the end, so that each moves one run
  }
}

// Makes functions of parts of `function`, which are added to `made`.
void Outline(llvm::Function& function, std::vector<llvm::Function*>& made) {
  const std::vector<Part> parts = Division(function, std::max(kLongPart, function.size() / kParts)).parts();
  const llvm::CodeExtractorAnalysisCache cache(function);
  for (const Part& part : parts) {
    llvm::CodeExtractor extractor(part);
    if (!extractor.isEligible()) continue;
    llvm::SetVector<llvm::Value*> taken, given, none;
    extractor.findInputsOutputs(taken, given, none);
    if (taken.size() + given.size() > kMostPassed) continue;
    if (llvm::Function* outlined = extractor.extractCodeRegion(cache)) {
      outlined->removeFnAttr(llvm::Attribute::AlwaysInline);
      outlined->addFnAttr(llvm::Attribute::NoInline);
      made.push_back(outlined);
    }
  }
}

}  // namespace

void OutlineLongKernels(llvm::Module& module) {
  std::vector<llvm::Function*> functions;
  for (llvm::Function& function : module) {
    CutLongBlocks(function);
    functions.push_back(&function);
  }
  for (size_t i = 0; i < functions.size(); ++i)
    if (functions[i]->size() > 2 * kLongPart) Outline(*functions[i], functions);
}

}  // namespace kiln::llvm_ir
