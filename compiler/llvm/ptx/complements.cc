// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/complements.h"

#include <algorithm>
#include <optional>

namespace kiln::llvm_ir {
namespace {

// `not.b32 d, x;` and `xor.b32 d, x, -1;`, from the name of the instruction on, as a difference; no complement: nothing.
std::optional<std::string> Difference(std::string_view statement) {
  constexpr std::string_view kNot = "not.b", kXor = "xor.b", kOnes = ", -1;";
  const size_t comma = statement.find(',');
  const bool exclusive = statement.starts_with(kXor) && statement.ends_with(kOnes) && std::ranges::count(statement, ',') == 2;
  if (comma == std::string_view::npos || (!statement.starts_with(kNot) && !exclusive)) return std::nullopt;
  const std::string_view operand = statement.substr(comma, statement.size() - comma - (exclusive ? kOnes.size() : 1));
  std::string text = "sub.s";
  text.append(statement.substr(kNot.size(), comma - kNot.size())).append(", -1").append(operand).append(";");
  return text;
}

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '{' || c == ';'; }

}  // namespace

std::string WithoutComplements(std::string_view ptx) {
  std::string result;
  size_t done = 0;
  for (size_t at = ptx.find(".b"); at != std::string_view::npos; at = ptx.find(".b", at + 1)) {
    constexpr size_t kName = 3;  // not, xor
    const size_t end = ptx.find(';', at);
    if (at < done + kName || end == std::string_view::npos) continue;
    if (at > kName && !IsBlank(ptx[at - kName - 1])) continue;  // atom.xor, redux.sync.xor
    const std::optional<std::string> difference = Difference(ptx.substr(at - kName, end + 1 - (at - kName)));
    if (!difference) continue;
    result.append(ptx.substr(done, at - kName - done)).append(*difference);
    done = end + 1;
  }
  return result.append(ptx.substr(done));
}

}  // namespace kiln::llvm_ir
