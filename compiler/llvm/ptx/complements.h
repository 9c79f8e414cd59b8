// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` with each complement of an integer (not, xor with −1) written as −1 minus it. Where a branch tells ptxas (13.0, with -O1 to -O3, on every GPU
// from sm_75 to sm_120) what a register holds, it puts that constant in the place of the register in an and, or or xor that takes the register's
// complement, and forgets to complement it: behind `if x == 4`, it makes 0 of (not x) and 1. A difference stays one.
std::string WithoutComplements(std::string_view ptx);

}  // namespace kiln::llvm_ir
