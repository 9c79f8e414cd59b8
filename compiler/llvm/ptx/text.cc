// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

constexpr std::string_view kBlanks = " \t\n";
constexpr std::string_view kEndOfFunction = "\n}";

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

}  // namespace

PtxStatement ParsedPtx(std::string_view line) {
  line = Trimmed(line);
  if (!line.ends_with(';') || line.starts_with('{') || line.starts_with('@')) return {};
  line.remove_suffix(1);
  const size_t end = line.find_first_of(kBlanks);
  if (end == std::string_view::npos) return {};
  const std::string_view operands = Trimmed(line.substr(end));
  const size_t comma = operands.find(',', operands.starts_with('{') ? operands.find('}') : 0);
  if (comma == std::string_view::npos) return {};
  return {.name = line.substr(0, end), .first = Trimmed(operands.substr(0, comma)), .last = Trimmed(operands.substr(comma + 1))};
}

std::vector<std::string_view> RegistersOf(std::string_view operand) {
  if (!operand.starts_with('{')) return {operand};
  std::vector<std::string_view> names;
  operand = operand.substr(1, operand.find('}') - 1);
  for (size_t start = 0; start <= operand.size();) {
    const size_t end = std::min(operand.find(',', start), operand.size());
    names.push_back(Trimmed(operand.substr(start, end - start)));
    start = end + 1;
  }
  return names;
}

std::string WithStatement(std::string_view line, std::string_view statement) {
  std::string text(line.substr(0, line.find_first_not_of(kBlanks)));
  return text.append(statement).append(line.substr(line.rfind(';') + 1));
}

std::string WithFunctions(std::string_view ptx, const std::function<std::string(std::string_view function)>& rewrite) {
  std::string result;
  while (!ptx.empty()) {
    const size_t end = std::min(ptx.find(kEndOfFunction), ptx.size() - 1) + 1;
    result += rewrite(ptx.substr(0, end));
    ptx.remove_prefix(end);
  }
  return result;
}

std::string WithUnknownZero(std::string function) {
  constexpr std::string_view kBody = "{\n";
  // The upper bit of a multiprocessor's number, which no GPU has.
  constexpr std::string_view kZero = "\t.reg .b32 \tzero;\n\tmov.u32 \tzero, %smid;\n\tshr.u32 \tzero, zero, 31;\n";
  const size_t body = function.find(kBody);
  if (body == std::string::npos || function.compare(body + kBody.size(), kZero.size(), kZero) == 0) return function;
  return function.insert(body + kBody.size(), kZero);
}

}  // namespace kiln::llvm_ir
