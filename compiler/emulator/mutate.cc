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
      if (name == "kiln_emu_barrier" || name == "kiln_emu_async_wait") calls.push_back(call);
    }
  }
  return calls;
}

std::unique_ptr<llvm::Module> Parse(const std::string& bitcode, llvm::LLVMContext& context) {
  return llvm::cantFail(llvm::parseBitcodeFile(llvm::MemoryBufferRef(bitcode, "kernel"), context));
}

}  // namespace

uint32_t CountSynchronization(const std::string& bitcode) {
  llvm::LLVMContext context;
  return uint32_t(Calls(*Parse(bitcode, context)).size());
}

Mutant DropSynchronization(const std::string& bitcode, uint32_t index) {
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = Parse(bitcode, context);
  llvm::CallInst* call = Calls(*module).at(index);
  Mutant mutant;
  const bool barrier = call->getCalledFunction()->getName() == "kiln_emu_barrier";
  mutant.what = std::string(barrier ? "barrier" : "wait") + " of statement " +
                std::to_string(call->getDebugLoc() ? call->getDebugLoc().getLine() : 0);
  call->eraseFromParent();
  llvm::raw_string_ostream stream(mutant.code);
  llvm::WriteBitcodeToFile(*module, stream);
  return mutant;
}

}  // namespace kiln::emulator
