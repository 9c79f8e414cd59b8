// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/negations.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

std::optional<std::string> Difference(const PtxStatement& statement) {
  if (statement.name == "neg.s32") return fmt::format("sub.s32 \t{}, zero, {};", statement.first, statement.last);
  if (statement.name == "neg.s16")
    return fmt::format("{{ .reg .b16 none; cvt.u16.u32 none, zero; sub.s16 {}, none, {}; }}", statement.first, statement.last);
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
  return changed ? WithUnknownZero(std::move(result)) : result;
}

}  // namespace

std::string WithoutNegations(std::string_view ptx) { return WithFunctions(ptx, WithDifferences); }

}  // namespace kiln::llvm_ir
