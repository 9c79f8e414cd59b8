// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// What LLVM says of a kernel that it cannot make, which by default ends the process.
struct Complaints {
  std::string resources;  // a kernel asks for more registers or memory than there are: the program's or an option's fault
  std::string others;
};

// Keeps what is said in `complaints` from now on; they outlive the context.
void Collect(llvm::LLVMContext& context, Complaints& complaints);

}  // namespace kiln::llvm_ir
