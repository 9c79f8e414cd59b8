// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/instrument.h"

#include <vector>

#include "compiler/llvm/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/DebugLoc.h>
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

namespace kiln::emulator {
namespace {

constexpr uint64_t kLargestValue = 128;  // bytes of a vector

class Instrumentation {
 public:
  explicit Instrumentation(llvm::Function& kernel) : kernel_(kernel), layout_(kernel.getParent()->getDataLayout()) {
    llvm::IRBuilder<> b(kernel.getContext());
    llvm::Type *i32 = b.getInt32Ty(), *pointer = b.getPtrTy();
    hook_ = kernel.getParent()->getOrInsertFunction("kiln_emu_access", b.getVoidTy(), pointer, i32, i32, i32, pointer, i32);
  }

  void Run() {
    std::vector<llvm::Instruction*> accesses;
    for (llvm::Instruction& instruction : llvm::instructions(kernel_)) {
      const llvm::Value* pointer = llvm::getLoadStorePointerOperand(&instruction);
      if (pointer == nullptr) continue;
      const unsigned space = pointer->getType()->getPointerAddressSpace();
      if (space == llvm_ir::kGlobalSpace || space == llvm_ir::kSharedSpace) accesses.push_back(&instruction);
    }
    for (llvm::Instruction* access : accesses) Hook(*access);
  }

 private:
  void Hook(llvm::Instruction& access) {
    llvm::IRBuilder<> b(&access);
    llvm::Value* pointer = llvm::getLoadStorePointerOperand(&access);
    const bool shared = pointer->getType()->getPointerAddressSpace() == llvm_ir::kSharedSpace;
    auto* store = llvm::dyn_cast<llvm::StoreInst>(&access);
    const uint64_t bytes = layout_.getTypeStoreSize(llvm::getLoadStoreType(&access));
    llvm::Value* value = llvm::ConstantPointerNull::get(b.getPtrTy());
    if (store != nullptr && bytes <= kLargestValue) {
      value = Copy();
      b.CreateStore(store->getValueOperand(), value);
    }
    const uint32_t line = access.getDebugLoc() ? access.getDebugLoc().getLine() : 0;
    b.CreateCall(hook_, {b.CreateAddrSpaceCast(pointer, b.getPtrTy()), b.getInt32(uint32_t(bytes)),
                         b.getInt32(uint32_t(llvm::getLoadStoreAlignment(&access).value())),
                         b.getInt32((store != nullptr ? 1u : 0u) | (shared ? 2u : 0u)), value, b.getInt32(line)});
  }

  llvm::Value* Copy() {
    if (copy_ == nullptr) {
      llvm::IRBuilder<> b(&kernel_.getEntryBlock(), kernel_.getEntryBlock().begin());
      copy_ = b.CreateAlloca(llvm::ArrayType::get(b.getInt8Ty(), kLargestValue), nullptr, "stored");
      copy_->setAlignment(llvm::Align(kLargestValue));
    }
    return copy_;
  }

  llvm::Function& kernel_;
  const llvm::DataLayout& layout_;
  llvm::FunctionCallee hook_;
  llvm::AllocaInst* copy_ = nullptr;
};

}  // namespace

void Instrument(llvm::Function& kernel) { Instrumentation(kernel).Run(); }

}  // namespace kiln::emulator
