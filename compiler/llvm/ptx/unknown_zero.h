// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kiln::llvm_ir {

// One function's PTX, at whose beginning a register `zero` is 0, of which ptxas does not know that. Once, however often it is called.
std::string WithUnknownZero(std::string function);

}  // namespace kiln::llvm_ir
