// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/mutate.h"

#include <memory>
#include <vector>

#include "compiler/llvm/llvm_headers.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/Bitcode/BitcodeWriter.h>
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

namespace kiln::emulator {
namespace {

// What orders threads and copies, and how a call of it can be made weaker.
enum class Weaker { kNo, kOneMore, kReadOnly, kNoBytes };
struct Order {
  const char* function;
  const char* what;
  Weaker weaker = Weaker::kNo;
  unsigned operand = 0;  // that changes
};
constexpr Order kOrders[] = {
    {"kiln_emu_barrier", "barrier"},
    {"kiln_emu_lanes_barrier", "barrier of lanes"},
    {"kiln_emu_async_wait", "wait", Weaker::kOneMore, 0},
    {"kiln_emu_fence_async_proxy", "fence"},
    {"kiln_emu_wgmma_wait", "wait for products", Weaker::kOneMore, 0},
    {"kiln_emu_phase_init_fence", "fence of mbarriers"},
    {"kiln_emu_phase_arrive", "arrival"},
    {"kiln_emu_phase_arrive_at", "arrival at another block"},
    {"kiln_emu_phase_expect", "expected bytes", Weaker::kNoBytes, 1},
    {"kiln_emu_phase_expect_more", "expected bytes", Weaker::kNoBytes, 1},
    {"kiln_emu_phase_wait", "wait for a phase"},
    {"kiln_emu_tensor_commit", "commit of stores"},
    {"kiln_emu_tensor_wait", "wait for stores", Weaker::kOneMore, 0},
    {"kiln_emu_tensor_wait", "wait for stores to be seen", Weaker::kReadOnly, 1},
    {"kiln_emu_named_barrier", "named barrier"},
    {"kiln_emu_named_arrive", "arrival at a named barrier"},
    {"kiln_emu_cluster_barrier", "barrier of the cluster"},
    {"kiln_emu_grid_barrier", "barrier of the grid"},
    {"kiln_emu_raise_flag", "raising of a flag"},
    {"kiln_emu_take_flag", "wait for a flag"},
};

struct Change {
  llvm::CallInst* call;
  const Order* order;
  bool weaken;
};

bool CanBeWeaker(const llvm::CallInst& call, const Order& order) {
  if (order.weaker == Weaker::kNo) return false;
  auto* operand = llvm::dyn_cast<llvm::ConstantInt>(call.getArgOperand(order.operand));
  return order.weaker == Weaker::kNoBytes || (operand != nullptr && (order.weaker != Weaker::kReadOnly || operand->isZero()));
}

// Each call left out, then each made weaker.
std::vector<Change> Changes(llvm::Module& module) {
  std::vector<Change> left_out, weaker;
  for (llvm::Function& function : module) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (call == nullptr || call->getCalledFunction() == nullptr) continue;
      bool known = false;
      for (const Order& order : kOrders) {
        if (call->getCalledFunction()->getName() != order.function) continue;
        if (!known) left_out.push_back({call, &order, false});
        if (CanBeWeaker(*call, order)) weaker.push_back({call, &order, true});
        known = true;
      }
    }
  }
  left_out.insert(left_out.end(), weaker.begin(), weaker.end());
  return left_out;
}

void Weaken(const Change& change) {
  llvm::Use& operand = change.call->getOperandUse(change.order->operand);
  llvm::Type* type = operand->getType();
  switch (change.order->weaker) {
    case Weaker::kOneMore: operand.set(llvm::ConstantInt::get(type, llvm::cast<llvm::ConstantInt>(operand)->getZExtValue() + 1)); return;
    case Weaker::kReadOnly: operand.set(llvm::ConstantInt::get(type, 1)); return;
    case Weaker::kNoBytes: operand.set(llvm::ConstantInt::get(type, 0)); return;
    case Weaker::kNo: return;
  }
}

std::vector<llvm::Instruction*> Writes(llvm::Module& module) {
  std::vector<llvm::Instruction*> writes;
  for (llvm::Function& function : module) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      const auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction);
      if (store != nullptr && store->getPointerAddressSpace() != 0) writes.push_back(&instruction);
      const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      const llvm::Function* called = call == nullptr ? nullptr : call->getCalledFunction();
      if (called != nullptr && called->getName() == "kiln_emu_copy_async") writes.push_back(&instruction);
    }
  }
  return writes;
}

std::string Written(const llvm::Module& module) {
  std::string code;
  llvm::raw_string_ostream stream(code);
  llvm::WriteBitcodeToFile(module, stream);
  return code;
}

std::unique_ptr<llvm::Module> Parse(const std::string& bitcode, llvm::LLVMContext& context) {
  return llvm::cantFail(llvm::parseBitcodeFile(llvm::MemoryBufferRef(bitcode, "kernel"), context));
}

}  // namespace

uint32_t CountCalls(const std::string& bitcode, const std::string& name) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = Parse(bitcode, context);
  const llvm::Function* function = module->getFunction(name);
  return function == nullptr ? 0 : uint32_t(function->getNumUses());
}

uint32_t CountMutants(const std::string& bitcode) {
  llvm::LLVMContext context;
  return uint32_t(Changes(*Parse(bitcode, context)).size());
}

Mutant MakeMutant(const std::string& bitcode, uint32_t index) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = Parse(bitcode, context);
  const Change change = Changes(*module).at(index);
  Mutant mutant;
  mutant.what = std::string(change.weaken ? "weaker " : "no ") + change.order->what;
  mutant.statement = change.call->getDebugLoc() ? change.call->getDebugLoc().getLine() : 0;
  if (change.weaken) {
    Weaken(change);
  } else {
    change.call->eraseFromParent();
  }
  mutant.code = Written(*module);
  return mutant;
}

uint32_t CountWrites(const std::string& bitcode) {
  llvm::LLVMContext context;
  return uint32_t(Writes(*Parse(bitcode, context)).size());
}

Mutant LoseWrite(const std::string& bitcode, uint32_t index) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = Parse(bitcode, context);
  llvm::Instruction* write = Writes(*module).at(index);
  Mutant mutant;
  mutant.what = llvm::isa<llvm::StoreInst>(write) ? "no store" : "no asynchronous copy";
  mutant.statement = write->getDebugLoc() ? write->getDebugLoc().getLine() : 0;
  write->eraseFromParent();
  mutant.code = Written(*module);
  return mutant;
}

}  // namespace kiln::emulator
