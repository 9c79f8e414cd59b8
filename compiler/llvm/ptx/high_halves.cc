// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/high_halves.h"

#include <fmt/format.h>

#include <initializer_list>
#include <unordered_map>
#include <unordered_set>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

bool EndsWithOneOf(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

// Whether this extends a shorter value to a word.
bool Extends(std::string_view name) {
  if (name.starts_with("ld.")) return EndsWithOneOf(name, {".b8", ".u8", ".s8", ".b16", ".u16", ".s16"});
  return name.starts_with("cvt.") && EndsWithOneOf(name, {".u8", ".s8", ".u16", ".s16"});
}

// The registers of `function` that may hold a shorter value, extended: also those that one is moved to.
std::unordered_set<std::string_view> ShortValues(std::string_view function) {
  std::unordered_multimap<std::string_view, std::string_view> moves;
  std::vector<std::string_view> found;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    if (Extends(statement.name)) std::ranges::copy(RegistersOf(statement.first), std::back_inserter(found));
    if (statement.name != "mov.b32" && statement.name != "selp.b32") return;
    for (size_t start = 0; start < statement.last.size();) {
      const size_t end = std::min(statement.last.find(", ", start), statement.last.size());
      moves.emplace(statement.last.substr(start, end - start), statement.first);
      start = end + 2;
    }
  });
  std::unordered_set<std::string_view> values;
  while (!found.empty()) {
    const std::string_view value = found.back();
    found.pop_back();
    if (!values.insert(value).second) continue;
    for (auto [move, end] = moves.equal_range(value); move != end; ++move) found.push_back(move->second);
  }
  return values;
}

std::string ByShifts(std::string_view function) {
  const std::unordered_set<std::string_view> values = ShortValues(function);
  std::string result;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    const std::vector<std::string_view> halves = RegistersOf(statement.first);
    const bool unpacks = statement.name == "mov.b32" && halves.size() == 2 && halves[1] != "_";
    if (!unpacks || !values.contains(statement.last)) {
      result += line;
      return;
    }
    const std::string low = halves[0] == "_" ? "" : fmt::format("mov.b32 {{{}, _}}, {}; ", halves[0], statement.last);
    result += WithStatement(line, fmt::format("{{ .reg .b32 high; shr.u32 high, {}, 16; {}cvt.u16.u32 {}, high; }}", statement.last, low, halves[1]));
  });
  return result;
}

}  // namespace

std::string WithoutHighHalvesOfShortValues(std::string_view ptx) { return WithFunctions(ptx, ByShifts); }

}  // namespace kiln::llvm_ir
