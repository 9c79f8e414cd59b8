// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with a function's text: the program's fault.
#pragma once

#include <cstdint>
#include <string>

namespace kiln::llvm_ir {

struct Fault {
  std::string message, hint;
  uint32_t line = 0;  // of the text; 0: none in particular
};

}  // namespace kiln::llvm_ir
