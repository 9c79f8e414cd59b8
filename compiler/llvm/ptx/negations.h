// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` with negations of 16 and 32 bits written as subtractions from a zero that ptxas does not know. ptxas (13.0, with -O1 to -O3, and the driver)
// takes a negated value for an operand that the instruction negates itself, also where it cannot:
// - in the minimum or maximum of three integers (VIMNMX3), the negation is lost;
// - in a shift to the right with a sum (LEA.HI), what is shifted is negated only behind the shift, so that (−1 >> 1) + 5 becomes 5.
// A negation stays where only sums, low products, selections, comparisons and the like read its result. On older GPUs too, because the driver of a
// newer one assembles PTX for an older one.
std::string WithoutNegations(std::string_view ptx);

}  // namespace kiln::llvm_ir
