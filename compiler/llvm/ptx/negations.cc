// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/negations.h"

#include <fmt/format.h>

#include <optional>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

constexpr std::string_view kBody = "{\n";  // where a function's begins

// The upper bit of a multiprocessor's number, which no GPU has.
constexpr std::string_view kZero =
    "\t.reg .b32 \tzero;\n\t.reg .b16 \tshort_zero;\n\tmov.u32 \tzero, %smid;\n\tshr.u32 \tzero, zero, 31;\n"
    "\tcvt.u16.u32 \tshort_zero, zero;\n";

std::optional<std::string> Difference(const PtxStatement& statement) {
  if (statement.name == "neg.s32") return fmt::format("sub.s32 \t{}, zero, {};", statement.first, statement.last);
  if (statement.name == "neg.s16") return fmt::format("sub.s16 \t{}, short_zero, {};", statement.first, statement.last);
  return std::nullopt;
}

std::string WithDifferences(std::string_view function) {
  std::string result;
  bool changed = false;
  ForEachLine(function, [&](std::string_view line) {
    const std::optional<std::string> difference = Difference(ParsedPtx(line));
    result += difference ? WithStatement(line, *difference) : line;
    changed |= difference.has_value();
  });
  if (!changed) return result;
  return result.insert(result.find(kBody) + kBody.size(), kZero);
}

}  // namespace

std::string WithoutNegations(std::string_view ptx) { return WithFunctions(ptx, WithDifferences); }

}  // namespace kiln::llvm_ir
