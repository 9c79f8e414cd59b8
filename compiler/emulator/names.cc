// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <string_view>

#include "ir/print.h"

namespace kiln::emulator {
namespace {

void Append(std::string& text, const char* what, uint32_t location, const Names& names) {
  if (location == 0 || location >= names.statements.size()) return;
  text += std::string("\n  ") + what + names.statements[location].Place();
}

bool IsWord(char c) { return std::isalnum(uint8_t(c)) != 0 || c == '_'; }

// Of "b7", which is the compiler's for a buffer's number; nothing else has one.
std::optional<size_t> NumberOf(std::string_view word) {
  size_t number = 0;
  const auto [end, problem] = std::from_chars(word.data() + 1, word.data() + word.size(), number);
  if (!word.starts_with('b') || problem != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// Buffers stand in messages as "%b7".
std::string WithBufferNames(const std::string& text, const Names& names) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '%') {
      out += text[i++];
      continue;
    }
    size_t end = i + 1;
    while (end < text.size() && IsWord(text[end])) ++end;
    const std::string word = text.substr(i + 1, end - i - 1);
    const auto number = word.empty() || names.buffers.empty() ? std::nullopt : NumberOf(word);
    if (!number) out += word;
    else out += *number < names.buffers.size() ? names.buffers[*number] : "the compiler's " + word;
    i = end;
  }
  return out;
}

}  // namespace

std::string Statement::Place() const {
  if (line == 0) return text;
  return (file.empty() ? "line " : file + ":") + std::to_string(line) + ": " + text;
}

Names NamesOf(const ir::Module& module) {
  Names names{.statements = {{}}, .buffers = {}, .params = {}};
  const ir::Names printed(module);
  for (const ir::Kernel& kernel : module.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      names.statements.push_back({stmt.loc.file < module.files.size() ? module.files[stmt.loc.file] : "", stmt.loc.line,
                                  ir::PrintStmt(module, printed, stmt)});
    });
  }
  for (uint32_t id = 0; id < module.buffers.size(); ++id) names.buffers.push_back(printed.Of(ir::BufferId(id)));
  for (const ir::Param& param : module.params) {
    names.params.push_back(std::visit([&](auto id) { return printed.Of(id); }, param));
  }
  return names;
}

Element ElementOf(const Finding& finding, const Names& names) {
  const std::vector<Element>& all = finding.place.elements;
  if (all.empty()) return {};
  const auto said = [&](const Element& element) {
    const std::string name = "%" + WithBufferNames(element.buffer, names);
    return std::ranges::any_of(std::array{finding.location, finding.other_location}, [&](uint32_t number) {
      return number != 0 && number < names.statements.size() && names.statements[number].text.find(name) != std::string::npos;
    });
  };
  const auto it = std::ranges::find_if(all, said);
  const Element& element = it == all.end() ? all.front() : *it;
  return {WithBufferNames(element.buffer, names), element.number};
}

std::string Message(const Finding& finding, const Names& names) { return WithBufferNames(finding.message, names); }

std::string Describe(const Finding& finding, const Names& names) {
  std::string text = std::string(Name(finding.kind)) + ": " + Message(finding, names);
  text += "\n  in thread " + std::to_string(finding.thread) + " of block (" + std::to_string(finding.block[0]) + ", " + std::to_string(finding.block[1]) +
          ", " + std::to_string(finding.block[2]) + ")";
  Append(text, "at ", finding.location, names);
  if (finding.other_location != finding.location) {
    Append(text, "and ", finding.other_location, names);
  } else if (finding.location != 0) {
    text += "\n  and the same statement";
  }
  return text;
}

}  // namespace kiln::emulator
