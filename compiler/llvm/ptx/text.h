// SPDX-License-Identifier: Apache-2.0
//
// PTX as LLVM prints it: one statement in a line.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::llvm_ir {

// `name first, last;`. A line with anything else has no name, nor has a statement under a predicate or one in braces.
struct PtxStatement {
  std::string_view name, first, last;  // `last`: all operands behind the first
};
PtxStatement ParsedPtx(std::string_view line);

// The registers of an operand: one, or those between braces.
std::vector<std::string_view> RegistersOf(std::string_view operand);

// `line` with this in the place of its statement, which keeps its blanks and its end.
std::string WithStatement(std::string_view line, std::string_view statement);

// Calls `body` with each line of `text`, its end included.
template <typename Body>
void ForEachLine(std::string_view text, const Body& body) {
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
    body(text.substr(0, length));
    text.remove_prefix(length);
  }
}

// Calls `body` with each register of 16 or 32 bits in `line`.
template <typename Body>
void ForEachRegister(std::string_view line, const Body& body) {
  for (size_t at = line.find("%r"); at != std::string_view::npos; at = line.find("%r", at + 1)) {
    const size_t number = at + (line.substr(at).starts_with("%rs") ? 3 : 2), end = line.find_first_not_of("0123456789", number);
    if (end != number) body(line.substr(at, end - at));
  }
}

// `ptx` with each of its functions as `rewrite` makes it.
std::string WithFunctions(std::string_view ptx, const std::function<std::string(std::string_view function)>& rewrite);

// One function's PTX, at whose beginning a register `zero` is 0, of which ptxas does not know that. Once, however often it is called.
std::string WithUnknownZero(std::string function);

}  // namespace kiln::llvm_ir
