// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/accumulators.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

#include <string>
#include <vector>

namespace kiln::llvm_ir {
namespace {

// A wait until no product is in flight, from which sums come that it takes. While one is, its sums must stay where they are.
bool IsWait(const llvm::CallInst& call) {
  const auto* assembly = llvm::dyn_cast<llvm::InlineAsm>(call.getCalledOperand());
  return assembly != nullptr && assembly->getAsmString() == "wgmma.wait_group.sync.aligned 0;" && !call.arg_empty();
}

// What the registers of a type are called in constraints, and how one is moved; nothing for a type that no sum has.
struct Kind {
  const char *letter = "", *move = "";
};
Kind KindOf(const llvm::Type& type) {
  if (type.isFloatTy()) return {"f", "mov.f32"};
  if (type.isIntegerTy(32)) return {"r", "mov.b32"};
  return {};
}

void GiveNewRegisters(llvm::CallInst& wait) {
  std::string text(llvm::cast<llvm::InlineAsm>(wait.getCalledOperand())->getAsmString()), outputs, inputs;
  const size_t count = wait.arg_size();
  for (size_t i = 0; i < count; ++i) {
    const Kind kind = KindOf(*wait.getArgOperand(unsigned(i))->getType());
    if (*kind.letter == '\0') return;
    text += std::string(" ") + kind.move + " $" + std::to_string(i) + ", $" + std::to_string(count + i) + ";";
    outputs += std::string(i == 0 ? "=&" : ",=&") + kind.letter;  // each is written while inputs are still to be read
    inputs += std::string(",") + kind.letter;
  }
  wait.setCalledOperand(llvm::InlineAsm::get(wait.getFunctionType(), text, outputs + inputs + ",~{memory}", /*hasSideEffects=*/true));
}

}  // namespace

void PartAccumulators(llvm::Function& function) {
  std::vector<llvm::CallInst*> waits;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
    if (call != nullptr && IsWait(*call)) waits.push_back(call);
  }
  if (waits.size() <= kMostWaits) return;
  for (llvm::CallInst* wait : waits) GiveNewRegisters(*wait);
}

}  // namespace kiln::llvm_ir
