// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/unknown_zero.h"

#include <string_view>

namespace kiln::llvm_ir {

std::string WithUnknownZero(std::string function) {
  constexpr std::string_view kBody = "{\n";
  // The upper bit of a multiprocessor's number, which no GPU has.
  constexpr std::string_view kZero = "\t.reg .b32 \tzero;\n\tmov.u32 \tzero, %smid;\n\tshr.u32 \tzero, zero, 31;\n";
  const size_t body = function.find(kBody);
  if (body == std::string::npos || function.compare(body + kBody.size(), kZero.size(), kZero) == 0) return function;
  return function.insert(body + kBody.size(), kZero);
}

}  // namespace kiln::llvm_ir
