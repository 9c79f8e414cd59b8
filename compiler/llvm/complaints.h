// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// LLVM's messages about a kernel that it cannot make; by default LLVM then ends the process.
struct Complaints {
  std::string resources;  // a kernel asks for more registers or memory than there are: the program's or an option's fault
  std::string others;
};

// Collects all further messages in `complaints`, which must outlive the context.
void Collect(llvm::LLVMContext& context, Complaints& complaints);

}  // namespace kiln::llvm_ir
