// SPDX-License-Identifier: Apache-2.0
//
// What each part of the lowering is built on: the context by short names, and the small pieces of code that all parts emit.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/llvm/lower/context.h"

namespace kiln::llvm_ir {

class Part {
 protected:
  explicit Part(KernelContext& context) : context_(context) {}

  KernelContext& context() const { return context_; }
  llvm::IRBuilderBase& b() const { return context_.builder(); }
  llvm::LLVMContext& llvm() const { return context_.out().getContext(); }
  Device& device() const { return context_.device(); }
  const ir::Module& module() const { return context_.module(); }
  const ir::Kernel& kernel() const { return context_.kernel(); }
  const ir::ExprPool& pool() const { return module().exprs; }
  const target::Target& target() const { return context_.target(); }
  const compiler::Facts& facts() const { return context_.facts(); }
  const Threads& threads() const { return context_.threads(); }
  Value* thread() const { return threads().thread; }

  // The request asks for what the compiler cannot do; or the passes left what none may leave.
  void Unsupported(std::string message, std::string hint = {}) const;
  void Internal(std::string message) const { context_.diagnostics().Internal(std::move(message), context_.loc()); }

  // Whether the emulator reports reads of what nothing has written there, so that none may take place that the program does not ask for.
  bool WatchesReads(ir::BufferId buffer) const { return target().emulated && module()[buffer].space == ir::Space::kLocal; }

  Value* I32(int64_t value) const { return b().getInt32(uint32_t(value)); }
  Value* I64(int64_t value) const { return b().getInt64(uint64_t(value)); }
  Value* AddTo(Value* sum, Value* more) const;       // nullptr is zero
  Value* Scaled(Value* v, int64_t factor) const;     // nullptr is zero
  Value* Both(Value* condition, Value* more) const;  // i1; nullptr: always

  // Code behind the next statement that never runs still needs a block.
  llvm::BasicBlock* NewBlock(const char* name) const;
  // Runs `emit` only where `condition` (nullptr: always) holds.
  template <typename Emit>
  void When(Value* condition, Emit&& emit) const {
    if (condition == nullptr) return emit();
    llvm::BasicBlock* then = NewBlock("then");
    llvm::BasicBlock* end = NewBlock("end");
    b().CreateCondBr(condition, then, end);
    b().SetInsertPoint(then);
    emit();
    b().CreateBr(end);
    b().SetInsertPoint(end);
  }

  // A value as memory holds it: a bool is a byte there.
  Value* FromMemory(Value* v, ir::DType dtype) const;
  Value* ToMemory(Value* v, ir::DType dtype) const;
  Value* Constant(ir::DType dtype, double value) const;

  // Of a layout: what the thread adds to each dimension (i32), and whether it holds the first copy of its elements (i1; nullptr: there are no
  // copies).
  Values ThreadParts(const ir::Layout& layout) const;
  Value* IsFirstCopy(const ir::Layout& layout) const;

 private:
  KernelContext& context_;
};

}  // namespace kiln::llvm_ir
