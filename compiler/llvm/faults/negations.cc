// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/negations.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/SetVector.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/PatternMatch.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

constexpr unsigned kLargest = 32;  // bits of what the instruction compares

bool IsSignedExtreme(const llvm::Value& value) {
  const auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&value);
  if (call == nullptr || call->getType()->getScalarSizeInBits() > kLargest) return false;
  return call->getIntrinsicID() == llvm::Intrinsic::smin || call->getIntrinsicID() == llvm::Intrinsic::smax;
}

// Whether its result is one of its operands, maybe in another type or as an element.
bool HandsOn(const llvm::Value& value) {
  return llvm::isa<llvm::PHINode, llvm::SelectInst, llvm::FreezeInst, llvm::CastInst, llvm::InsertElementInst, llvm::ExtractElementInst,
                   llvm::ShuffleVectorInst>(value);
}

llvm::Value* Negated(llvm::Value& value) {
  using namespace llvm::PatternMatch;
  llvm::Value* negated = nullptr;
  if (match(&value, m_Neg(m_Value(negated))) || match(&value, m_Mul(m_Value(negated), m_AllOnes()))) return negated;
  return nullptr;
}

// All from which a minimum or a maximum may have an operand.
llvm::SetVector<llvm::Instruction*> Negations(llvm::Function& function) {
  llvm::SetVector<llvm::Value*> reaching;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (IsSignedExtreme(instruction)) reaching.insert_range(llvm::cast<llvm::CallBase>(instruction).args());
  }
  llvm::SetVector<llvm::Instruction*> found;
  for (size_t i = 0; i < reaching.size(); ++i) {
    auto* instruction = llvm::dyn_cast<llvm::Instruction>(reaching[i]);
    if (instruction == nullptr) continue;
    if (HandsOn(*instruction)) reaching.insert_range(instruction->operands());
    if (Negated(*instruction) != nullptr) found.insert(instruction);
  }
  return found;
}

}  // namespace

void HideNegations(llvm::Function& function) {
  const auto found = Negations(function);
  if (found.empty()) return;
  llvm::IRBuilder<> first(&*function.getEntryBlock().getFirstNonPHIOrDbgOrAlloca());
  llvm::Value* zero = first.CreateLShr(first.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_smid, llvm::ArrayRef<llvm::Value*>()), 31);
  for (llvm::Instruction* negation : found) {
    llvm::IRBuilder<> b(negation);
    llvm::Type* type = negation->getType();
    llvm::Value* from = b.CreateZExtOrTrunc(zero, type->getScalarType());
    if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type)) from = b.CreateVectorSplat(vector->getNumElements(), from);
    negation->replaceAllUsesWith(b.CreateSub(from, Negated(*negation)));
    negation->eraseFromParent();
  }
}

}  // namespace kiln::llvm_ir
