// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/wrapped_counters.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Analysis/AssumptionCache.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/Analysis/ScalarEvolutionExpressions.h>
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

#include <set>
#include <vector>

namespace kiln::llvm_ir {
namespace {

bool IsUnsigned(const llvm::Value* value) {
  const auto* comparison = llvm::dyn_cast<llvm::ICmpInst>(value);
  return comparison != nullptr && comparison->isUnsigned();
}

// The unsigned comparisons from which the condition follows.
std::vector<const llvm::ICmpInst*> ComparisonsOf(const llvm::Value* condition) {
  std::vector<const llvm::ICmpInst*> found;
  std::vector<const llvm::Value*> todo{condition};
  std::set<const llvm::Value*> seen{condition};
  while (!todo.empty()) {
    const llvm::Value* value = todo.back();
    todo.pop_back();
    if (IsUnsigned(value)) found.push_back(llvm::cast<llvm::ICmpInst>(value));
    if (!llvm::isa<llvm::BinaryOperator, llvm::SelectInst, llvm::FreezeInst>(value)) continue;
    for (const llvm::Use& operand : llvm::cast<llvm::User>(value)->operands())
      if (operand->getType()->isIntegerTy(1) && seen.insert(operand).second) todo.push_back(operand);
  }
  return found;
}

class Counters {
 public:
  explicit Counters(llvm::Function& function)
      : dominators_(function),
        loops_(dominators_),
        library_(function.getParent()->getTargetTriple()),
        calls_(library_),
        assumptions_(function),
        evolution_(function, calls_, assumptions_, dominators_, loops_) {}

  void Keep() {
    for (llvm::Loop* loop : loops_.getLoopsInPreorder())
      if (MayBeMiscounted(*loop)) loop->setLoopAlreadyUnrolled();
  }

 private:
  bool MayBeMiscounted(const llvm::Loop& loop) {
    llvm::SmallVector<llvm::BasicBlock*> exiting;
    loop.getExitingBlocks(exiting);
    return llvm::any_of(exiting, [&](const llvm::BasicBlock* block) {
      const auto* branch = llvm::dyn_cast<llvm::BranchInst>(block->getTerminator());
      if (branch == nullptr || !branch->isConditional()) return false;
      return llvm::any_of(ComparisonsOf(branch->getCondition()), [&](const llvm::ICmpInst* comparison) {
        return llvm::any_of(comparison->operands(), [&](llvm::Value* operand) { return MayBeginBelowZero(*operand, loop); });
      });
    });
  }

  bool MayBeginBelowZero(llvm::Value& value, const llvm::Loop& loop) {
    const llvm::SCEV* counter = evolution_.getSCEV(&value);
    while (const auto* cast = llvm::dyn_cast<llvm::SCEVCastExpr>(counter)) counter = cast->getOperand();
    const auto* sum = llvm::dyn_cast<llvm::SCEVAddRecExpr>(counter);
    if (sum == nullptr || sum->getLoop() != &loop) return false;
    const bool known = !llvm::SCEVExprContains(sum->getStart(), [](const llvm::SCEV* part) { return llvm::isa<llvm::SCEVUnknown>(part); });
    return known && evolution_.getSignedRangeMin(sum->getStart()).isNegative();
  }

  llvm::DominatorTree dominators_;
  llvm::LoopInfo loops_;
  llvm::TargetLibraryInfoImpl library_;
  llvm::TargetLibraryInfo calls_;
  llvm::AssumptionCache assumptions_;
  llvm::ScalarEvolution evolution_;
};

}  // namespace

void KeepWrappedCounters(llvm::Function& function) {
  const bool compares = llvm::any_of(llvm::instructions(function), [](const llvm::Instruction& instruction) { return IsUnsigned(&instruction); });
  if (!function.isDeclaration() && compares) Counters(function).Keep();
}

}  // namespace kiln::llvm_ir
