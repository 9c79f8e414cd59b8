// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/negations.h"

#include <fmt/format.h>

#include <optional>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

// Of a zero of its own, which takes no register for longer.
std::optional<std::string> Difference(const PtxStatement& statement) {
  const bool word = statement.name == "neg.s32";
  if (!word && statement.name != "neg.s16") return std::nullopt;
  return fmt::format("{{ .reg .b32 none; {}mov.u32 none, %smid; shr.u32 none, none, 31; {}{}, {}, {}; }}", word ? "" : ".reg .b16 short_none; ",
                     word ? "sub.s32 " : "cvt.u16.u32 short_none, none; sub.s16 ", statement.first, word ? "none" : "short_none", statement.last);
}

}  // namespace

std::string WithoutNegations(std::string_view ptx) {
  std::string result;
  ForEachLine(ptx, [&](std::string_view line) {
    const std::optional<std::string> difference = Difference(ParsedPtx(line));
    result += difference ? WithStatement(line, *difference) : line;
  });
  return result;
}

}  // namespace kiln::llvm_ir
