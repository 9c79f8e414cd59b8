// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/complements.h"

namespace kiln::llvm_ir {

std::string WithoutComplements(std::string_view ptx) {
  constexpr std::string_view kNot = "not.b";
  std::string result;
  size_t done = 0;
  for (size_t at = ptx.find(kNot); at != std::string_view::npos; at = ptx.find(kNot, at + 1)) {
    const size_t comma = ptx.find(',', at);
    if (comma == std::string_view::npos) break;
    const size_t type = at + kNot.size();
    result.append(ptx.substr(done, at - done)).append("sub.s").append(ptx.substr(type, comma - type)).append(", -1");
    done = comma;
  }
  return result.append(ptx.substr(done));
}

}  // namespace kiln::llvm_ir
