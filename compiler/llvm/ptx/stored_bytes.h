// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` that stores no byte of a float of 16 bits as such. Where st.b8 takes a register that arithmetic or a conversion of f16 or bf16 writes, ptxas
// (13.0, at every level, on every GPU) converts the float to an integer of eight bits. So the low byte is stored from a word.
std::string WithoutStoredBytesOfFloats(std::string_view ptx);

}  // namespace kiln::llvm_ir
