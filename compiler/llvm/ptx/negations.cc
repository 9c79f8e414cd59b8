// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/negations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

bool Negates(const PtxStatement& statement) { return statement.name == "neg.s32" || statement.name == "neg.s16"; }

// Whether what ptxas makes of this may negate its operands itself, rightly, or negates none.
bool TakesNegations(std::string_view name) {
  constexpr std::array<std::string_view, 12> kNames = {"add.", "sub.",  "mul.lo.", "mad.lo.", "and.",  "or.",
                                                       "xor.", "setp.", "selp.",   "st.",     "atom.", "cvt.rn."};
  return std::ranges::any_of(kNames, [&](std::string_view start) { return name.starts_with(start); });
}

// The registers whose negations ptxas must not know.
std::unordered_set<std::string_view> Hidden(std::string_view function) {
  std::unordered_set<std::string_view> negations, hidden;
  ForEachLine(function, [&](std::string_view line) {
    if (const PtxStatement statement = ParsedPtx(line); Negates(statement)) negations.insert(statement.first);
  });
  if (negations.empty()) return hidden;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    if (TakesNegations(statement.name)) return;
    ForEachRegister(Negates(statement) ? statement.last : line, [&](std::string_view name) {
      if (negations.contains(name)) hidden.insert(name);
    });
  });
  return hidden;
}

// Of a zero of its own, which takes no register for longer.
std::string Difference(const PtxStatement& statement) {
  const bool word = statement.name == "neg.s32";
  return fmt::format("{{ .reg .b32 none; {}mov.u32 none, %smid; shr.u32 none, none, 31; {}{}, {}, {}; }}", word ? "" : ".reg .b16 short_none; ",
                     word ? "sub.s32 " : "cvt.u16.u32 short_none, none; sub.s16 ", statement.first, word ? "none" : "short_none", statement.last);
}

std::string WithDifferences(std::string_view function) {
  const std::unordered_set<std::string_view> hidden = Hidden(function);
  std::string result;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    result += Negates(statement) && hidden.contains(statement.first) ? WithStatement(line, Difference(statement)) : line;
  });
  return result;
}

}  // namespace

std::string WithoutNegations(std::string_view ptx) { return WithFunctions(ptx, WithDifferences); }

}  // namespace kiln::llvm_ir
