// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/spins.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

#include <vector>

#include "compiler/llvm/device/device.h"

namespace kiln::llvm_ir {
namespace {

// Whether ptxas makes a loop of attempts of it.
bool Spins(const llvm::AtomicRMWInst& atomic) {
  if (atomic.getPointerAddressSpace() != kSharedSpace || atomic.getOperation() == llvm::AtomicRMWInst::Xchg) return false;
  return !atomic.getType()->isIntegerTy(32);
}

}  // namespace

void PartSpinsFromLoops(llvm::Function& function) {
  std::vector<llvm::AtomicRMWInst*> spinning;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* atomic = llvm::dyn_cast<llvm::AtomicRMWInst>(&instruction);
    if (atomic != nullptr && Spins(*atomic)) spinning.push_back(atomic);
  }
  if (spinning.empty()) return;
  const llvm::DominatorTree dominators(function);
  const llvm::LoopInfo loops(dominators);
  for (llvm::AtomicRMWInst* atomic : spinning) {
    if (loops.getLoopFor(atomic->getParent()) == nullptr) continue;
    llvm::IRBuilder<> b(atomic);
    llvm::Value* together = b.CreateIntrinsic(llvm::Intrinsic::nvvm_activemask, llvm::ArrayRef<llvm::Value*>());
    b.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync, {together});
  }
}

}  // namespace kiln::llvm_ir
