// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/short_phis.h"

#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace kiln::llvm_ir {
namespace {

// PTX has a register of 16 bits for it.
bool IsShort(const llvm::Type& type) { return type.isHalfTy() || type.isBFloatTy() || type.isIntegerTy(8) || type.isIntegerTy(16); }

llvm::Value* Short(llvm::IRBuilder<>& b, llvm::Value* value) {
  return b.CreateZExt(b.CreateBitCast(value, b.getIntNTy(value->getType()->getScalarSizeInBits())), b.getInt16Ty());
}

// The value that `word`, or its half, is.
llvm::Value* Narrow(llvm::IRBuilder<>& b, llvm::Value* bits, llvm::Type* type) {
  return b.CreateBitCast(b.CreateTrunc(bits, b.getIntNTy(type->getScalarSizeInBits())), type);
}

void Replace(llvm::PHINode* phi, llvm::Value* value) {
  phi->replaceAllUsesWith(value);
  phi->eraseFromParent();
}

// A phi before `phi` of what `made_in` makes at the end of each block before.
llvm::PHINode* PhiOf(llvm::Type* type, llvm::PHINode* phi, const std::function<llvm::Value*(llvm::IRBuilder<>&, llvm::BasicBlock*)>& made_in) {
  llvm::IRBuilder<> b(phi);
  llvm::PHINode* made = b.CreatePHI(type, phi->getNumIncomingValues());
  std::map<llvm::BasicBlock*, llvm::Value*> made_before;  // a block may lead here twice
  for (llvm::BasicBlock* from : phi->blocks()) {
    llvm::Value*& value = made_before[from];
    b.SetInsertPoint(from->getTerminator());
    if (value == nullptr) value = made_in(b, from);
    made->addIncoming(value, from);
  }
  return made;
}

void Widen(llvm::PHINode* phi) {
  llvm::IRBuilder<> b(phi->getParent(), phi->getParent()->getFirstInsertionPt());
  llvm::PHINode* wide = PhiOf(b.getInt32Ty(), phi, [&](llvm::IRBuilder<>& before, llvm::BasicBlock* from) {
    return before.CreateZExt(Short(before, phi->getIncomingValueForBlock(from)), before.getInt32Ty());
  });
  Replace(phi, Narrow(b, wide, phi->getType()));
}

void WidenTogether(llvm::PHINode* low, llvm::PHINode* high) {
  llvm::IRBuilder<> b(low->getParent(), low->getParent()->getFirstInsertionPt());
  auto* pair = llvm::FixedVectorType::get(b.getInt16Ty(), 2);
  llvm::PHINode* wide = PhiOf(pair, low, [&](llvm::IRBuilder<>& before, llvm::BasicBlock* from) {
    llvm::Value* one = before.CreateInsertElement(llvm::PoisonValue::get(pair), Short(before, low->getIncomingValueForBlock(from)), uint64_t(0));
    return before.CreateInsertElement(one, Short(before, high->getIncomingValueForBlock(from)), 1);
  });
  Replace(low, Narrow(b, b.CreateExtractElement(wide, uint64_t(0)), low->getType()));
  Replace(high, Narrow(b, b.CreateExtractElement(wide, 1), high->getType()));
}

// Whether it is the second one of a pair wherever it is one of a pair.
bool IsSecond(const llvm::PHINode& phi) {
  return llvm::any_of(phi.incoming_values(), [](const llvm::Use& use) {
    const auto* element = llvm::dyn_cast<llvm::ExtractElementInst>(use.get());
    const auto* index = element == nullptr ? nullptr : llvm::dyn_cast<llvm::ConstantInt>(element->getIndexOperand());
    return index != nullptr && index->getZExtValue() % 2 != 0;
  });
}

}  // namespace

void WidenShortPhis(llvm::Function& function) {
  for (llvm::BasicBlock& block : function) {
    std::vector<llvm::PHINode*> phis;
    for (llvm::PHINode& phi : block.phis())
      if (IsShort(*phi.getType())) phis.push_back(&phi);
    for (size_t i = 0; i + 1 < phis.size(); i += 2) {
      if (IsSecond(*phis[i])) std::swap(phis[i], phis[i + 1]);
      WidenTogether(phis[i], phis[i + 1]);
    }
    if (phis.size() % 2 != 0) Widen(phis.back());
  }
}

}  // namespace kiln::llvm_ir
