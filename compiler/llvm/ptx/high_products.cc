// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/high_products.h"

namespace kiln::llvm_ir {

namespace {

constexpr std::string_view kHigh = "mul.hi.";
constexpr std::string_view kBlanks = " \t";

// The statement after kHigh, "u32 \t%r1, %r2, 3;", or nothing where it is of 64 bits.
std::string Widened(std::string_view statement) {
  const std::string_view type = statement.substr(0, 3);
  if (type != "s32" && type != "u32") return {};
  const size_t first = statement.find_first_not_of(kBlanks, type.size());
  const size_t comma = statement.find(',', first);
  if (comma == std::string_view::npos) return {};
  std::string text = "{ .reg .b32 low; .reg .b64 wide; mul.wide.";
  text.append(type).append(" wide").append(statement.substr(comma));
  text.append(" mov.b64 {low, ").append(statement.substr(first, comma - first)).append("}, wide; }");
  return text;
}

}  // namespace

std::string WithoutHighProducts(std::string_view ptx) {
  std::string result;
  size_t done = 0;
  for (size_t at = ptx.find(kHigh); at != std::string_view::npos; at = ptx.find(kHigh, at + 1)) {
    const size_t end = ptx.find(';', at);
    if (end == std::string_view::npos) break;
    const size_t start = at + kHigh.size();
    const std::string widened = Widened(ptx.substr(start, end + 1 - start));
    if (widened.empty()) continue;
    result.append(ptx.substr(done, at - done)).append(widened);
    done = end + 1;
  }
  return result.append(ptx.substr(done));
}

}  // namespace kiln::llvm_ir
