// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/constant_operands.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/SmallPtrSet.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#pragma GCC diagnostic pop

#include <map>
#include <utility>

namespace kiln::llvm_ir {
namespace {

// Whether ptxas may find that the value is a constant: it is one, or it is one on some way.
bool MayBeConstant(const llvm::Value& value) {
  llvm::SmallVector<const llvm::Value*> all = {&value};
  llvm::SmallPtrSet<const llvm::Value*, 8> seen;
  while (!all.empty()) {
    const llvm::Value* one = all.pop_back_val();
    if (!seen.insert(one).second || llvm::isa<llvm::UndefValue>(one)) continue;
    if (llvm::isa<llvm::Constant>(one)) return true;
    if (!llvm::isa<llvm::PHINode, llvm::SelectInst, llvm::FreezeInst, llvm::CastInst, llvm::InsertElementInst, llvm::ExtractElementInst,
                   llvm::ShuffleVectorInst>(one))
      continue;
    const auto* instruction = llvm::cast<llvm::Instruction>(one);
    const bool has_index = llvm::isa<llvm::InsertElementInst, llvm::ExtractElementInst>(one);
    all.append(instruction->op_begin(), instruction->op_end() - has_index);
  }
  return false;
}

// The operands of this call, a product of matrices, that ptxas mistakes.
llvm::iterator_range<llvm::Use*> ConstantsMistaken(llvm::IntrinsicInst& call) {
  const llvm::StringRef name = call.getCalledFunction()->getName();
  if (name.starts_with("llvm.nvvm.mma.m16n8k32.row.col.f32.e")) return {call.arg_begin(), call.arg_end()};
  constexpr unsigned kSecond = 2;  // the first has two words
  if (name.starts_with("llvm.nvvm.mma.m16n8k8.row.col.") && !name.contains("tf32"))
    return {call.arg_begin() + kSecond, call.arg_begin() + kSecond + 1};
  return {call.arg_begin(), call.arg_begin()};
}

}  // namespace

void HideConstantOperands(llvm::Function& function) {
  std::map<std::pair<const llvm::BasicBlock*, const llvm::Value*>, llvm::Value*> hidden;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
    if (call == nullptr) continue;
    for (llvm::Use& operand : ConstantsMistaken(*call)) {
      llvm::Type* type = operand->getType();
      if (type->getPrimitiveSizeInBits() != 32 || type->isFloatTy() || !MayBeConstant(*operand)) continue;
      llvm::Value*& word = hidden[{call->getParent(), operand.get()}];
      if (word == nullptr) {
        llvm::IRBuilder<> b(call);
        llvm::Value* zero = b.CreateLShr(b.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_smid, llvm::ArrayRef<llvm::Value*>()), 31);
        word = b.CreateBitCast(b.CreateXor(zero, b.CreateBitCast(operand.get(), b.getInt32Ty())), type);
      }
      operand.set(word);
    }
  }
}

}  // namespace kiln::llvm_ir
