// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

class CountingInserter final : public llvm::IRBuilderDefaultInserter {
 public:
  void InsertHelper(llvm::Instruction* instruction, const llvm::Twine& name, llvm::BasicBlock::iterator place) const override {
    code_ += instruction->isTerminator() ? compiler::kCodeOfBlock : 1;
    IRBuilderDefaultInserter::InsertHelper(instruction, name, place);
  }
  int64_t code() const { return code_; }  // as CodeOf counts

 private:
  mutable int64_t code_ = 0;  // LLVM's signature is const
};

// A builder whose getInserter() knows how much code it has made.
using CountingBuilder = llvm::IRBuilder<llvm::ConstantFolder, CountingInserter>;

}  // namespace kiln::llvm_ir
