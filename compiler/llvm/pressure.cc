// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/pressure.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/DataLayout.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/Module.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <vector>

namespace kiln::llvm_ir {
namespace {

class Liveness {
 public:
  Liveness(const llvm::Function& function, size_t enough)
      : function_(function),
        layout_(function.getParent()->getDataLayout()),
        enough_(enough),
        last_in_(function.getMaxBlockNumber()),
        out_(function.getMaxBlockNumber()) {}

  Pressure Find() {
    for (const llvm::BasicBlock& block : function_) {
      for (const llvm::Instruction& instruction : block)
        if (const size_t registers = RegistersOf(instruction); registers != 0 && most_ <= enough_) SpreadUses(instruction, instruction, registers);
      if (most_ > enough_) return {most_, beyond_};
    }
    for (const llvm::BasicBlock& block : function_) most_ = std::max(most_, MostIn(block));
    return {most_, beyond_};
  }

 private:
  // Values that instructions encode themselves take 0 registers: conditions, and offsets of accesses.
  size_t RegistersOf(const llvm::Instruction& value) {
    llvm::Type* type = value.getType();
    if (!type->isSized() || type->isIntOrIntVectorTy(1)) return 0;
    if (const auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(&value); address != nullptr && IsOffset(*address)) return 0;
    return (layout_.getTypeSizeInBits(type).getFixedValue() + 31) / 32;
  }

  // An address at a constant offset from another, as loads and stores encode it. One that is chosen among others, or stored, takes a register.
  bool IsOffset(const llvm::GetElementPtrInst& address) {
    if (!address.hasAllConstantIndices()) return false;
    const auto [known, is_new] = offsets_.try_emplace(&address, true);
    if (is_new) known->second = llvm::none_of(address.uses(), NeedsValue);
    return known->second;
  }

  static bool NeedsValue(const llvm::Use& use) {
    const llvm::User& user = *use.getUser();
    const bool is_stored = llvm::isa<llvm::StoreInst>(user) && use.getOperandNo() != llvm::StoreInst::getPointerOperandIndex();
    return is_stored || llvm::isa<llvm::SelectInst, llvm::PHINode>(user);
  }

  // The parts for which the allocator looks for places one by one, of a value that lives in one block: the halves of what integer arithmetic makes.
  size_t PartsOf(const llvm::Instruction& value) {
    return llvm::isa<llvm::LoadInst, llvm::PHINode>(value) || !value.getType()->isIntOrPtrTy() ? 1 : RegistersOf(value);
  }

  // The value that an operand keeps alive: itself, or the base if it is an offset from it.
  const llvm::Instruction* Kept(const llvm::Value* operand) {
    for (const auto* address = llvm::dyn_cast<llvm::GetElementPtrInst>(operand); address != nullptr && IsOffset(*address);
         address = llvm::dyn_cast<llvm::GetElementPtrInst>(operand)) {
      operand = address->getPointerOperand();
    }
    const auto* value = llvm::dyn_cast<llvm::Instruction>(operand);
    return value != nullptr && RegistersOf(*value) != 0 ? value : nullptr;
  }

  // Uses of `name`, which is `value` or an offset from it.
  void SpreadUses(const llvm::Instruction& value, const llvm::Instruction& name, size_t registers) {
    for (const llvm::Use& use : name.uses()) {
      const auto* user = llvm::cast<llvm::Instruction>(use.getUser());
      if (RegistersOf(*user) == 0 && llvm::isa<llvm::GetElementPtrInst>(user)) {
        SpreadUses(value, *user, registers);
      } else if (const auto* phi = llvm::dyn_cast<llvm::PHINode>(user)) {
        LiveOut(value, *phi->getIncomingBlock(use), registers);  // used on the way out of that block
      } else if (user->getParent() != value.getParent()) {
        LiveIn(value, *user->getParent(), registers);
      }
    }
  }

  void LiveIn(const llvm::Instruction& value, const llvm::BasicBlock& block, size_t registers) {
    std::vector<const llvm::BasicBlock*> left{&block};
    while (!left.empty() && most_ <= enough_) {
      const llvm::BasicBlock* next = left.back();
      left.pop_back();
      const llvm::Instruction*& seen = last_in_[next->getNumber()];
      if (seen == &value) continue;
      seen = &value;
      for (const llvm::BasicBlock* before : llvm::predecessors(next)) {
        MarkOut(value, *before, registers);
        if (before != value.getParent()) left.push_back(before);
      }
    }
  }

  void LiveOut(const llvm::Instruction& value, const llvm::BasicBlock& block, size_t registers) {
    MarkOut(value, block, registers);
    if (&block != value.getParent()) LiveIn(value, block, registers);
  }

  void MarkOut(const llvm::Instruction& value, const llvm::BasicBlock& block, size_t registers) {
    Out& out = out_[block.getNumber()];
    if (!out.values.empty() && out.values.back() == &value) return;  // values come one after the other
    out.values.push_back(&value);
    out.registers += registers;
    most_ = std::max(most_, out.registers);
  }

  // From the end of a block to its start.
  size_t MostIn(const llvm::BasicBlock& block) {
    Out& out = out_[block.getNumber()];
    llvm::DenseMap<const llvm::Instruction*, size_t> live;  // and the parts of each
    for (const llvm::Instruction* value : out.values) live[value] = 1;
    size_t registers = out.registers, most = registers, parts = live.size();
    for (const llvm::Instruction& instruction : llvm::reverse(block)) {
      if (const auto value = live.find(&instruction); value != live.end()) {
        registers -= RegistersOf(instruction), parts -= value->second;
        live.erase(value);
      }
      if (llvm::isa<llvm::PHINode>(instruction)) continue;
      for (const llvm::Value* operand : instruction.operands()) {
        const llvm::Instruction* value = Kept(operand);
        if (value == nullptr) continue;
        const size_t own = value->getParent() == &block ? PartsOf(*value) : 1;
        if (live.try_emplace(value, own).second) registers += RegistersOf(*value), parts += own;
      }
      most = std::max(most, registers);
      if (parts > kNamedRegisters) beyond_ += parts - kNamedRegisters;
    }
    return most;
  }

  struct Out {
    std::vector<const llvm::Instruction*> values;
    size_t registers = 0;
  };
  const llvm::Function& function_;
  const llvm::DataLayout& layout_;
  const size_t enough_;
  size_t most_ = 0, beyond_ = 0;
  llvm::DenseMap<const llvm::GetElementPtrInst*, bool> offsets_;
  // Both are indexed by the block's number.
  std::vector<const llvm::Instruction*> last_in_;  // the last value found to be alive where it begins
  std::vector<Out> out_;                           // what is alive where it ends
};

}  // namespace

Pressure PressureOf(const llvm::Module& module, size_t enough) {
  Pressure all;
  for (const llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    const Pressure one = Liveness(function, enough).Find();
    all.registers = std::max(all.registers, one.registers);
    all.beyond += one.beyond;
  }
  return all;
}

}  // namespace kiln::llvm_ir
