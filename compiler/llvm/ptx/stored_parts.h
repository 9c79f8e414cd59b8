// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` that stores no low part of a float as such. Where a store takes fewer bits than its register has, and arithmetic or a conversion of floats
// writes the register, ptxas (13.0, at every level, on every GPU) converts the float to an integer of so many bits. So a narrower register is stored.
std::string WithoutStoredPartsOfFloats(std::string_view ptx);

}  // namespace kiln::llvm_ir
