// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// LLVM's PTX without what ptxas is known to assemble wrongly: all the rewrites of this folder. The headers say what is wrong.
std::string ForPtxas(std::string_view ptx);

// `ptx` with red for atom where nothing reads what was in memory before, of 32 bits or fewer, in functions without fences. LLVM prints atom alone,
// and ptxas has every thread wait for results of floats which nobody wants.
std::string WithoutUnusedResults(std::string_view ptx);

}  // namespace kiln::llvm_ir
