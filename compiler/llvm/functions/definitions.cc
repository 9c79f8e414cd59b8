// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/functions/definitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

namespace kiln::llvm_ir {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

bool IsPartOfName(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' || c == '%'; }

// The text with blanks in the place of comments, and of all but line ends within them: places stay what they are.
std::string WithoutComments(std::string text) {
  for (size_t at = text.find('/'); at != std::string::npos && at + 1 < text.size(); at = text.find('/', at + 1)) {
    const bool line = text[at + 1] == '/';
    if (!line && text[at + 1] != '*') continue;
    const size_t close = line ? text.find('\n', at) : text.find("*/", at + 2);
    const size_t end = close == std::string::npos ? text.size() : line ? close : close + 2;
    for (; at < end; ++at)
      if (text[at] != '\n') text[at] = ' ';
    --at;
  }
  return text;
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// Takes the next word, or one other character; empty at the end.
std::string_view Take(std::string_view& text) {
  text = text.substr(std::min(text.find_first_not_of(kBlanks), text.size()));
  size_t length = 0;
  while (length < text.size() && (IsPartOfName(text[length]) || text[length] == '.')) ++length;
  const std::string_view word = text.substr(0, std::max<size_t>(length, text.empty() ? 0 : 1));
  text.remove_prefix(word.size());
  return word;
}

// Takes what stands in parentheses, if that comes next.
std::optional<std::string_view> TakeList(std::string_view& text) {
  std::string_view rest = text;
  if (Take(rest) != "(") return std::nullopt;
  const size_t close = rest.find(')');
  if (close == std::string_view::npos) return std::nullopt;
  const std::string_view list = rest.substr(0, close);
  text = rest.substr(close + 1);
  return list;
}

uint32_t LineAt(std::string_view text, size_t place) { return uint32_t(1 + std::count(text.begin(), text.begin() + ptrdiff_t(place), '\n')); }

std::optional<PtxParameter> TypeNamed(std::string_view name) {
  struct Row {
    std::string_view name;
    PtxParameter type;
  };
  constexpr std::array<Row, 8> kRows{{{".b32", {32, false}},
                                      {".u32", {32, false}},
                                      {".s32", {32, false}},
                                      {".f32", {32, true}},
                                      {".b64", {64, false}},
                                      {".u64", {64, false}},
                                      {".s64", {64, false}},
                                      {".f64", {64, true}}}};
  const auto row = std::ranges::find(kRows, name, &Row::name);
  return row == kRows.end() ? std::nullopt : std::optional(row->type);
}

// ".param .u64 .ptr .global .align 4 name"
std::optional<PtxParameter> ParameterOf(std::string_view text) {
  if (text.contains('[') || Take(text) != ".param") return std::nullopt;
  std::string_view word = Take(text);
  if (word == ".align") Take(text), word = Take(text);
  return TypeNamed(word);
}

// The place of the function's definition behind ".func"; npos: there is none.
size_t FindDefinition(std::string_view text, std::string_view symbol) {
  for (size_t at = text.find(".func"); at != std::string_view::npos; at = text.find(".func", at + 1)) {
    std::string_view rest = text.substr(at + 5);
    (void)TakeList(rest);
    if (Take(rest) != symbol) continue;
    if (!TakeList(rest)) continue;
    if (rest.find('{') < rest.find(';')) return at + 5;
  }
  return std::string_view::npos;
}

bool IsOfTarget(std::string_view line) {
  const std::string_view trimmed = Trimmed(line);
  return std::ranges::any_of(std::array<std::string_view, 3>{".version", ".target", ".address_size"},
                             [&](std::string_view word) { return trimmed.starts_with(word); });
}

std::string Body(const std::string& text) {
  std::string body;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = std::string_view(text).substr(start, end - start);
    if (!IsOfTarget(line)) body.append(line) += '\n';
    start = end + 1;
  }
  return body;
}

// The declaration as LLVM prints it, ".extern .func name \n(\n … )\n;", from its first character to one past its last.
std::optional<std::pair<size_t, size_t>> FindDeclaration(std::string_view ptx, std::string_view symbol) {
  constexpr std::string_view kBegin = ".extern .func";
  for (size_t at = ptx.find(kBegin); at != std::string_view::npos; at = ptx.find(kBegin, at + 1)) {
    std::string_view rest = ptx.substr(at + kBegin.size());
    (void)TakeList(rest);
    if (Take(rest) != symbol) continue;
    const size_t end = ptx.find(';', at);
    if (end == std::string_view::npos) return std::nullopt;
    return std::pair(at, end + 1);
  }
  return std::nullopt;
}

}  // namespace

std::expected<std::vector<PtxParameter>, Fault> ParametersOf(const ir::Function& function) {
  const std::string text = WithoutComments(function.text);
  if (const size_t entry = text.find(".entry"); entry != std::string::npos) {
    return std::unexpected(Fault{"the text has a kernel of its own", "leave it out, or make it a .func", LineAt(text, entry)});
  }
  const size_t place = FindDefinition(text, function.symbol);
  if (place == std::string::npos) {
    return std::unexpected(Fault{fmt::format("the text does not define a function '{}'", function.symbol), "write .func and its name"});
  }
  const uint32_t line = LineAt(text, place);
  std::string_view rest = std::string_view(text).substr(place);
  if (TakeList(rest)) return std::unexpected(Fault{fmt::format("'{}' gives something back", function.symbol), "write results to memory", line});
  Take(rest);
  std::vector<PtxParameter> parameters;
  std::string_view list = Trimmed(TakeList(rest).value_or(""));
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::optional<PtxParameter> parameter = ParameterOf(list.substr(0, comma));
    if (!parameter) {
      return std::unexpected(
          Fault{fmt::format("parameter {} of '{}' is '{}'", parameters.size() + 1, function.symbol, Trimmed(list.substr(0, comma))),
                "write .param and a type of 32 or 64 bits", line});
    }
    parameters.push_back(*parameter);
    list = Trimmed(list.substr(std::min(comma + 1, list.size())));
  }
  return parameters;
}

std::string WithDefinitions(std::string ptx, std::span<const ir::Function* const> functions) {
  std::set<std::string_view> written;
  for (const ir::Function* function : functions) {
    const auto declared = FindDeclaration(ptx, function->symbol);
    if (!declared) continue;
    const bool first = written.insert(function->text).second;
    ptx.replace(declared->first, declared->second - declared->first, first ? Body(function->text) : "");
  }
  return ptx;
}

}  // namespace kiln::llvm_ir
