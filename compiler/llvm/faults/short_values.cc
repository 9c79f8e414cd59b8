// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/short_values.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/MapVector.h>
#pragma GCC diagnostic pop

#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace kiln::llvm_ir {
namespace {

// PTX has a register of 16 bits for it.
bool IsShort(const llvm::Type& type) { return type.isHalfTy() || type.isBFloatTy() || type.isIntegerTy(8) || type.isIntegerTy(16); }

llvm::Value* Short(llvm::IRBuilder<>& b, llvm::Value* value) {
  return b.CreateZExt(b.CreateBitCast(value, b.getIntNTy(value->getType()->getScalarSizeInBits())), b.getInt16Ty());
}

// The value whose bits are the low ones of these.
llvm::Value* Narrow(llvm::IRBuilder<>& b, llvm::Value* bits, llvm::Type* type) {
  return b.CreateBitCast(b.CreateTrunc(bits, b.getIntNTy(type->getScalarSizeInBits())), type);
}

// Where a value stands in a register of 32 bits: alone, or as one half of it.
struct Place {
  llvm::Value* word;
  std::optional<uint64_t> half;
};

llvm::Value* Alone(llvm::IRBuilder<>& b, llvm::Value* value) { return b.CreateZExt(Short(b, value), b.getInt32Ty()); }

llvm::FixedVectorType* Halves(llvm::IRBuilder<>& b) { return llvm::FixedVectorType::get(b.getInt16Ty(), 2); }

llvm::Value* Together(llvm::IRBuilder<>& b, llvm::Value* low, llvm::Value* high) {
  llvm::Value* one = b.CreateInsertElement(llvm::PoisonValue::get(Halves(b)), Short(b, low), uint64_t(0));
  return b.CreateInsertElement(one, Short(b, high), 1);
}

llvm::Value* Taken(llvm::IRBuilder<>& b, const Place& place, llvm::Type* type) {
  return Narrow(b, place.half ? b.CreateExtractElement(place.word, *place.half) : place.word, type);
}

// Integers stay alone: f8 are among them. ptxas has a conversion to f8 write its result beside another value (F2FP.PACK_AB_MERGE_C), and takes the
// one for the other where both go on; of a constant with two f8 it converts something else than the upper half.
bool MayBePaired(const llvm::Value* value) { return !value->getType()->isIntegerTy(); }

// Whether it is the second one of a pair wherever it is one of a pair.
bool IsSecond(const llvm::Value* value) {
  const auto* phi = llvm::dyn_cast<llvm::PHINode>(value);
  if (phi != nullptr)
    return llvm::any_of(phi->incoming_values(), [](const llvm::Use& use) { return !llvm::isa<llvm::PHINode>(use) && IsSecond(use); });
  const auto* element = llvm::dyn_cast<llvm::ExtractElementInst>(value);
  const auto* index = element == nullptr ? nullptr : llvm::dyn_cast<llvm::ConstantInt>(element->getIndexOperand());
  return index != nullptr && index->getZExtValue() % 2 != 0;
}

class Widener {
 public:
  explicit Widener(llvm::Function& function) : function_(function) {}

  void Run() {
    for (llvm::BasicBlock& block : function_) {
      std::vector<llvm::PHINode*> phis, alone;
      for (llvm::PHINode& phi : block.phis())
        if (IsShort(*phi.getType())) (MayBePaired(&phi) ? phis : alone).push_back(&phi);
      for (llvm::PHINode* phi : alone) WidenAlone(phi);
      for (size_t i = 0; i + 1 < phis.size(); i += 2) {
        if (IsSecond(phis[i])) std::swap(phis[i], phis[i + 1]);
        WidenTogether(phis[i], phis[i + 1]);
      }
      if (phis.size() % 2 != 0) WidenAlone(phis.back());
    }
    for (llvm::BasicBlock& block : function_) {
      std::vector<llvm::Instruction*> leaving, alone;
      for (llvm::Instruction& instruction : block) {
        const bool leaves = IsShort(*instruction.getType()) && !places_.contains(&instruction) && !instruction.isTerminator() &&
                            llvm::any_of(instruction.users(), [&](const llvm::User* user) { return BlockOf(user) != &block; });
        if (leaves) (MayBePaired(&instruction) ? leaving : alone).push_back(&instruction);
      }
      for (llvm::Instruction* one : alone) Keep(one, nullptr);
      for (size_t i = 0; i < leaving.size(); i += 2) Keep(leaving[i], i + 1 < leaving.size() ? leaving[i + 1] : nullptr);
    }
    for (const auto& [value, place] : places_) TakeElsewhere(llvm::cast<llvm::Instruction>(value), place);
  }

 private:
  static const llvm::BasicBlock* BlockOf(const llvm::User* user) { return llvm::cast<llvm::Instruction>(user)->getParent(); }

  // A phi before `phi` of what `made_in` makes at the end of each block before.
  template <typename MadeIn>
  static llvm::PHINode* PhiOf(llvm::Type* type, llvm::PHINode* phi, MadeIn made_in) {
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

  void Replace(llvm::PHINode* phi, const Place& place) {
    llvm::IRBuilder<> b(phi->getParent(), phi->getParent()->getFirstInsertionPt());
    llvm::Value* value = Taken(b, place, phi->getType());
    phi->replaceAllUsesWith(value);
    phi->eraseFromParent();
    places_[value] = place;
  }

  void WidenAlone(llvm::PHINode* phi) {
    Replace(phi, {PhiOf(llvm::Type::getInt32Ty(phi->getContext()), phi,
                        [&](llvm::IRBuilder<>& b, llvm::BasicBlock* from) { return Alone(b, phi->getIncomingValueForBlock(from)); }),
                  std::nullopt});
  }

  void WidenTogether(llvm::PHINode* low, llvm::PHINode* high) {
    llvm::IRBuilder<> builder(low);
    llvm::PHINode* wide = PhiOf(Halves(builder), low, [&](llvm::IRBuilder<>& b, llvm::BasicBlock* from) {
      return Together(b, low->getIncomingValueForBlock(from), high->getIncomingValueForBlock(from));
    });
    Replace(low, {wide, 0});
    Replace(high, {wide, 1});
  }

  // Two values of a block, the first one first, or one, that other blocks use.
  void Keep(llvm::Instruction* first, llvm::Instruction* second) {
    llvm::Instruction* last = second == nullptr ? first : second;
    llvm::IRBuilder<> b(last->getParent(), *last->getInsertionPointAfterDef());
    if (second == nullptr) {
      places_[first] = {Alone(b, first), std::nullopt};
      return;
    }
    if (IsSecond(first)) std::swap(first, second);
    llvm::Value* word = Together(b, first, second);
    places_[first] = {word, 0};
    places_[second] = {word, 1};
  }

  void TakeElsewhere(llvm::Instruction* value, const Place& place) {
    std::map<llvm::BasicBlock*, llvm::Value*> taken;
    for (llvm::Use& use : llvm::make_early_inc_range(value->uses())) {
      llvm::BasicBlock* block = llvm::cast<llvm::Instruction>(use.getUser())->getParent();
      if (block == value->getParent()) continue;
      llvm::Value*& there = taken[block];
      if (there == nullptr) {
        llvm::IRBuilder<> b(block, block->getFirstInsertionPt());
        there = Taken(b, place, value->getType());
      }
      use.set(there);
    }
  }

  llvm::Function& function_;
  llvm::MapVector<llvm::Value*, Place> places_;  // of a short value
};

}  // namespace

void WidenShortValues(llvm::Function& function) { Widener(function).Run(); }

}  // namespace kiln::llvm_ir
