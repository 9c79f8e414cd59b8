// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/array_bounds.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/Constants.h>
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <map>
#include <string>

namespace kiln::llvm_ir {
namespace {

bool IsOutside(const llvm::DataLayout& layout, const llvm::Value& pointer, llvm::Type* type) {
  llvm::APInt offset(layout.getIndexTypeSizeInBits(pointer.getType()), 0);
  const auto* array = llvm::dyn_cast<llvm::AllocaInst>(pointer.stripAndAccumulateConstantOffsets(layout, offset, /*AllowNonInbounds=*/true));
  if (array == nullptr) return false;
  const auto size = array->getAllocationSize(layout);
  if (!size) return false;
  const int64_t first = offset.getSExtValue(), end = first + int64_t(layout.getTypeStoreSize(type).getFixedValue());
  return first < 0 || end > int64_t(size->getFixedValue());
}

// Comparisons that choose elements of vectors, in a function.
constexpr uint64_t kMostComparisons = 8192;

// Accesses of an array at places that are known only when the kernel runs.
uint64_t CountChosen(const llvm::Value& pointer, bool chosen) {
  uint64_t count = 0;
  for (const llvm::User* user : pointer.users()) {
    const auto* place = llvm::dyn_cast<llvm::GetElementPtrInst>(user);
    if (place != nullptr) count += CountChosen(*place, chosen || !place->hasAllConstantIndices());
    else if (llvm::getLoadStorePointerOperand(user) == &pointer) count += chosen;
  }
  return count;
}

}  // namespace

void KeepArraysInMemory(llvm::Function& function) {
  const llvm::DataLayout& layout = function.getParent()->getDataLayout();
  std::map<uint64_t, uint64_t> comparisons;  // by the registers that an array would take
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    const auto* array = llvm::dyn_cast<llvm::AllocaInst>(&instruction);
    if (array == nullptr || !array->getAllocatedType()->isArrayTy()) continue;
    const uint64_t bytes = layout.getTypeAllocSize(array->getAllocatedType()).getFixedValue();
    const uint64_t element = layout.getTypeAllocSize(array->getAllocatedType()->getArrayElementType()).getFixedValue();
    if (element > 0) comparisons[(bytes + 3) / 4] += CountChosen(*array, /*chosen=*/false) * (bytes / element);
  }
  uint64_t all = 0, most = 1;
  for (const auto& [registers, count] : comparisons) {
    if ((all += count) > kMostComparisons) {
      function.addFnAttr("amdgpu-promote-alloca-to-vector-max-regs", std::to_string(most));
      return;
    }
    most = std::max<uint64_t>(registers, 1);
  }
}

void DropAccessesOutsideArrays(llvm::Function& function) {
  const llvm::DataLayout& layout = function.getParent()->getDataLayout();
  for (llvm::Instruction& instruction : llvm::make_early_inc_range(llvm::instructions(function))) {
    const llvm::Value* pointer = llvm::getLoadStorePointerOperand(&instruction);
    if (pointer == nullptr || !IsOutside(layout, *pointer, llvm::getLoadStoreType(&instruction))) continue;
    if (llvm::isa<llvm::LoadInst>(instruction)) instruction.replaceAllUsesWith(llvm::Constant::getNullValue(instruction.getType()));
    instruction.eraseFromParent();
  }
}

void StoreZerosForUndefined(llvm::Function& function) {
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction);
    auto* value = store == nullptr ? nullptr : llvm::dyn_cast<llvm::Constant>(store->getValueOperand());
    if (value == nullptr || value->getType()->isAggregateType()) continue;
    store->setOperand(0, llvm::Constant::replaceUndefsWith(value, llvm::Constant::getNullValue(value->getType()->getScalarType())));
  }
}

}  // namespace kiln::llvm_ir
