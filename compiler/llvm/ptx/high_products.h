// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` with each mul.hi.s32 and mul.hi.u32 written as mul.wide and the upper word of its result. ptxas (12.x and 13.0, and the driver's, on
// every GPU from sm_75 to sm_120) adds a mul.hi to the low word of a 64-bit difference by IMAD.HI with a carry. It negates the subtrahend
// first, so that the carry of a subtrahend whose low word is 0 is lost: the difference is 2^32 too small. LLVM makes mul.hi of every
// division by a constant.
std::string WithoutHighProducts(std::string_view ptx);

}  // namespace kiln::llvm_ir
