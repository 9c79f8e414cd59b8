// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "ir/print.h"

namespace kiln::emulator {
namespace {

void Append(std::string& text, const char* what, uint32_t location, const Names& names) {
  if (location == 0 || location >= names.statements.size()) return;
  text += std::string("\n  ") + what + names.statements[location].Place();
}

bool IsWord(char c) { return std::isalnum(uint8_t(c)) != 0 || c == '_'; }

// The compiler calls buffers "b7" by their number.
std::string WithBufferNames(const std::string& text, const Names& names) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    uint32_t number = 0;
    const char *first = text.data() + i + 1, *end = text.data() + text.size();
    const bool starts = text[i] == 'b' && (i == 0 || !IsWord(text[i - 1]));
    const auto parsed = starts ? std::from_chars(first, end, number) : std::from_chars_result{first, std::errc::invalid_argument};
    const bool whole = parsed.ec == std::errc() && (parsed.ptr == end || !IsWord(*parsed.ptr));
    if (whole && number < names.buffers.size()) {
      out += names.buffers[number];
      i = size_t(parsed.ptr - text.data());
    } else {
      out += text[i++];
    }
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
