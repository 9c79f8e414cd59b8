// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string>

namespace kiln::llvm_ir {

// For tests of what it makes; "" where there is none.
inline std::string FindPtxas() {
  for (const char* path : {"/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas", "/opt/cuda/bin/ptxas"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

}  // namespace kiln::llvm_ir
