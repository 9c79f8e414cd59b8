// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/merged_halves.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace kiln::llvm_ir {
namespace {

constexpr std::string_view kBlanks = " \t\n";
constexpr std::string_view kEndOfFunction = "\n}";

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// The registers of an operand: one, or those between braces.
std::vector<std::string_view> Registers(std::string_view operand) {
  std::vector<std::string_view> names;
  if (!operand.starts_with('{')) return {operand};
  operand = operand.substr(1, operand.find('}') - 1);
  for (size_t start = 0; start <= operand.size();) {
    const size_t end = std::min(operand.find(',', start), operand.size());
    names.push_back(Trimmed(operand.substr(start, end - start)));
    start = end + 1;
  }
  return names;
}

// `name first, last;` as LLVM prints it, one in a line. A line with anything else has no name.
struct Statement {
  std::string_view name, first, last;  // `last`: all operands behind the first
};

Statement Parsed(std::string_view line) {
  line = Trimmed(line);
  if (!line.ends_with(';') || line.starts_with('{')) return {};
  line.remove_suffix(1);
  if (line.starts_with('@')) line = Trimmed(line.substr(std::min(line.find_first_of(kBlanks), line.size())));
  const size_t end = line.find_first_of(kBlanks);
  if (end == std::string_view::npos) return {};
  const std::string_view operands = Trimmed(line.substr(end));
  const size_t comma = operands.find(',', operands.starts_with('{') ? operands.find('}') : 0);
  if (comma == std::string_view::npos) return {};
  return {.name = line.substr(0, end), .first = Trimmed(operands.substr(0, comma)), .last = Trimmed(operands.substr(comma + 1))};
}

// A conversion to two 8-bit floats.
bool Converts(std::string_view name) { return name.starts_with("cvt.") && (name.contains("e4m3x2.f") || name.contains("e5m2x2.f")); }

// Whether ptxas holds what this writes in a half of a register, not in the low half of a word.
bool WritesHalves(const Statement& statement) {
  if (statement.name.starts_with("ld.") || Converts(statement.name)) return true;
  return statement.name.starts_with("mov.") && statement.first.starts_with('{');
}

bool StoresHalves(std::string_view name) { return name.starts_with("st.") && (name.ends_with(".v2.b16") || name.ends_with(".v4.b16")); }

class Function {
 public:
  explicit Function(std::string_view text) {
    ForEachLine(text, [&](std::string_view line) {
      const Statement statement = Parsed(line);
      if (statement.name.empty()) return;
      for (const std::string_view name : Registers(statement.first)) {
        if (Converts(statement.name)) converted_.insert(name);
        (WritesHalves(statement) ? halves_ : others_).insert(name);
      }
    });
  }

  std::string Mended(std::string_view text) const {
    std::string result;
    ForEachLine(text, [&](std::string_view line) { result += Mend(line); });
    return result;
  }

 private:
  // Each with its end.
  template <typename Body>
  static void ForEachLine(std::string_view text, const Body& body) {
    while (!text.empty()) {
      const size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
      body(text.substr(0, length));
      text.remove_prefix(length);
    }
  }

  bool IsLost(std::string_view low, std::string_view high) const {
    return converted_.contains(low) && high.starts_with('%') && (!halves_.contains(high) || others_.contains(high));
  }

  std::string Mend(std::string_view line) const {
    const Statement statement = Parsed(line);
    const bool packs = statement.name == "mov.b32" || statement.name == "mov.b64";
    if ((!packs && !StoresHalves(statement.name)) || !statement.last.starts_with('{')) return std::string(line);
    const std::vector<std::string_view> halves = Registers(statement.last);
    std::string before, names;
    for (size_t i = 0; i < halves.size(); ++i) {
      std::string name(halves[i]);
      if (i % 2 == 1 && IsLost(halves[i - 1], halves[i])) {
        const std::string number = std::to_string(i);
        name = "half" + number;
        before += ".reg .b32 word" + number + "; .reg .b16 " + name + "; cvt.u32.u16 word" + number + ", ";
        before.append(halves[i]).append("; mov.b32 {").append(name).append(", _}, word").append(number).append("; ");
      }
      names.append(i == 0 ? "" : ", ").append(name);
    }
    if (before.empty()) return std::string(line);
    const size_t first = line.find_first_not_of(kBlanks), list = size_t(statement.last.data() - line.data());
    std::string text(line.substr(0, first));
    text.append("{ ").append(before).append(line.substr(first, list - first)).append("{").append(names).append("}; }");
    return text.append(line.substr(line.rfind(';') + 1));
  }

  std::unordered_set<std::string_view> converted_, halves_, others_;  // registers that a statement of this kind writes
};

}  // namespace

std::string WithoutMergedHalves(std::string_view ptx) {
  if (!ptx.contains("e4m3x2.f") && !ptx.contains("e5m2x2.f")) return std::string(ptx);
  std::string result;
  while (!ptx.empty()) {
    const size_t end = std::min(ptx.find(kEndOfFunction), ptx.size() - 1) + 1;
    const std::string_view function = ptx.substr(0, end);
    result += Function(function).Mended(function);
    ptx.remove_prefix(end);
  }
  return result;
}

}  // namespace kiln::llvm_ir
