// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` with minima and maxima of 16-bit integers computed as words. ptxas (13.0) packs the operands of two of them to compute them together. Of two
// maxima that it bounds by 0 then (VIMNMX.S16x2.RELU), it forgets the bound; and it packs halves wrongly (packed_halves.h).
std::string WithoutShortExtremes(std::string_view ptx);

}  // namespace kiln::llvm_ir
