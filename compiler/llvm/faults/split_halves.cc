// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/split_halves.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/InstIterator.h>
#include <llvm/Transforms/Utils/Local.h>
#pragma GCC diagnostic pop

#include <algorithm>

namespace kiln::llvm_ir {
namespace {

bool IsHalf(const llvm::Type& type) { return type.isHalfTy() || type.isBFloatTy(); }

template <typename Access>
void Align(Access& access) {
  if (access.getAlign() >= 2) return;
  const llvm::Align known = llvm::getKnownAlignment(access.getPointerOperand(), access.getModule()->getDataLayout(), &access);
  access.setAlignment(std::max(access.getAlign(), known));
}

}  // namespace

void KeepHalvesWhole(llvm::Function& function) {
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction); store != nullptr && IsHalf(*store->getValueOperand()->getType())) Align(*store);
    if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction); load != nullptr && IsHalf(*load->getType())) Align(*load);
  }
}

}  // namespace kiln::llvm_ir
