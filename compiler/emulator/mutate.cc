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

std::vector<llvm::CallInst*> Calls(llvm::Module& module) {
  std::vector<llvm::CallInst*> calls;
  for (llvm::Function& function : module) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (call == nullptr || call->getCalledFunction() == nullptr) continue;
      const llvm::StringRef name = call->getCalledFunction()->getName();
      if (name == "kiln_emu_barrier" || name == "kiln_emu_async_wait" || name == "kiln_emu_fence_async_proxy") calls.push_back(call);
    }
  }
  return calls;
}

std::unique_ptr<llvm::Module> Parse(const std::string& bitcode, llvm::LLVMContext& context) {
  return llvm::cantFail(llvm::parseBitcodeFile(llvm::MemoryBufferRef(bitcode, "kernel"), context));
}

bool IsWait(const llvm::CallInst& call) { return call.getCalledFunction()->getName() == "kiln_emu_async_wait"; }

}  // namespace

uint32_t CountCalls(const std::string& bitcode, const std::string& name) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = Parse(bitcode, context);
  const llvm::Function* function = module->getFunction(name);
  return function == nullptr ? 0 : uint32_t(function->getNumUses());
}

uint32_t CountMutants(const std::string& bitcode) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = Parse(bitcode, context);
  uint32_t count = 0;
  for (const llvm::CallInst* call : Calls(*module)) count += IsWait(*call) ? 2 : 1;
  return count;
}

Mutant MakeMutant(const std::string& bitcode, uint32_t index) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = Parse(bitcode, context);
  std::vector<llvm::CallInst*> calls = Calls(*module);
  const bool weaken = index >= calls.size();
  if (weaken) {
    std::erase_if(calls, [](const llvm::CallInst* call) { return !IsWait(*call); });
    index -= uint32_t(Calls(*module).size());
  }
  llvm::CallInst* call = calls.at(index);
  Mutant mutant;
  const llvm::StringRef callee = call->getCalledFunction()->getName();
  mutant.what = std::string(weaken ? "weaker " : "no ") +
                (IsWait(*call) ? "wait" : callee == "kiln_emu_barrier" ? "barrier" : "fence");
  mutant.statement = call->getDebugLoc() ? call->getDebugLoc().getLine() : 0;
  if (weaken) {
    auto* pending = llvm::cast<llvm::ConstantInt>(call->getArgOperand(0));
    call->setArgOperand(0, llvm::ConstantInt::get(pending->getType(), pending->getZExtValue() + 1));
  } else {
    call->eraseFromParent();
  }
  llvm::raw_string_ostream stream(mutant.code);
  llvm::WriteBitcodeToFile(*module, stream);
  return mutant;
}

}  // namespace kiln::emulator
