// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// LLVM's PTX without what ptxas is known to assemble wrongly: all the rewrites of this folder. The headers say what is wrong.
std::string ForPtxas(std::string_view ptx);

}  // namespace kiln::llvm_ir
