// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` that takes the high half of a word by a shift where the word may be a shorter value, extended. There ptxas (13.0, with -O1 to -O3, on every
// GPU) takes what an unpacking mov calls the high half of the word for the short value itself.
std::string WithoutHighHalvesOfShortValues(std::string_view ptx);

}  // namespace kiln::llvm_ir
