// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/names.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::emulator {
namespace {

void Append(std::string& text, const char* what, uint32_t location, const Names& names) {
  if (location == 0 || location >= names.statements.size()) return;
  text += std::string("\n  ") + what + names.statements[location].Place();
}

bool IsWord(char c) { return std::isalnum(uint8_t(c)) != 0 || c == '_'; }

// The number in "b7", which is the compiler's name for buffer 7; nullopt for other words.
std::optional<size_t> NumberOf(std::string_view word) {
  size_t number = 0;
  const auto [end, problem] = std::from_chars(word.data() + 1, word.data() + word.size(), number);
  if (!word.starts_with('b') || problem != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// Whether the statement names "%tile", and not only "%tile_1".
bool Speaks(const std::string& statement, const std::string& name) {
  for (size_t at = statement.find("%" + name); at != std::string::npos; at = statement.find("%" + name, at + 1)) {
    const size_t end = at + 1 + name.size();
    if (end == statement.size() || !IsWord(statement[end])) return true;
  }
  return false;
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
    if (!number) {
      out += word;
      i = end;
      continue;
    }
    out += *number < names.buffers.size() ? names.buffers[*number] : "the compiler's " + word;
    i = end;
    if (*number >= names.allocated.size() || names.allocated[*number] == 0) continue;
    if (i < text.size() && text[i] == '[') end = text.find(']', i) + 1;
    out += text.substr(i, end - i) + " (of line " + std::to_string(names.allocated[*number]) + ")";
    i = end;
  }
  return out;
}

// "(statement 7)", as the positions of threads have it, by its file and line.
std::string WithPlaces(const std::string& text, const Names& names) {
  static constexpr std::string_view kOpen = "(statement ";
  std::string out;
  for (size_t from = 0;;) {
    const size_t at = text.find(kOpen, from);
    if (at == std::string::npos) return out + text.substr(from);
    const size_t digits = at + kOpen.size();
    size_t number = 0;
    const char* end = std::from_chars(text.data() + digits, text.data() + text.size(), number).ptr;
    out += text.substr(from, at - from);
    from = size_t(end - text.data());
    const bool known = number != 0 && number < names.statements.size() && names.statements[number].line != 0;
    if (!known) {
      out += text.substr(at, from - at);
      continue;
    }
    const Statement& statement = names.statements[number];
    out += "(" + (statement.file.empty() ? "line " : statement.file.substr(statement.file.rfind('/') + 1) + ":") + std::to_string(statement.line);
  }
}

// Lines of the allocations of buffers that have their names in common.
std::vector<uint32_t> LinesOfNamesakes(const ir::Module& module) {
  std::map<std::string_view, int> named;
  for (const ir::Buffer& buffer : module.buffers) ++named[buffer.name];
  std::vector<uint32_t> lines(module.buffers.size());
  for (const ir::Kernel& kernel : module.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
      if (alloc != nullptr && named[module[alloc->buffer].name] > 1) lines[ir::Index(alloc->buffer)] = stmt.loc.line;
    });
  }
  return lines;
}

}  // namespace

std::string Statement::Place() const {
  if (line == 0) return text;
  return (file.empty() ? "line " : file + ":") + std::to_string(line) + ": " + text;
}

Names NamesOf(const ir::Module& module) {
  Names names{.statements = {{}}, .buffers = {}, .allocated = LinesOfNamesakes(module), .params = {}};
  const ir::Names printed(module);
  for (const ir::Kernel& kernel : module.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      names.statements.push_back(
          {stmt.loc.file < module.files.size() ? module.files[stmt.loc.file] : "", stmt.loc.line, ir::PrintStmt(module, printed, stmt)});
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
  const auto name_of = [&](const Element& element) {
    const auto number = element.buffer.starts_with('%') ? NumberOf(std::string_view(element.buffer).substr(1)) : std::nullopt;
    return number && *number < names.buffers.size() ? names.buffers[*number] : WithBufferNames(element.buffer, names);
  };
  for (const uint32_t number : {finding.location, finding.other_location}) {
    if (number == 0 || number >= names.statements.size()) continue;
    const auto it = std::ranges::find_if(all, [&](const Element& element) { return Speaks(names.statements[number].text, name_of(element)); });
    if (it != all.end()) return {name_of(*it), it->number};
  }
  return {name_of(all.front()), all.front().number};
}

std::string Message(const Finding& finding, const Names& names) { return WithPlaces(WithBufferNames(finding.message, names), names); }

std::string Describe(const Finding& finding, const Names& names) {
  std::string text = std::string(Name(finding.kind)) + ": " + Message(finding, names);
  text += "\n  in thread " + std::to_string(finding.thread) + " of block (" + std::to_string(finding.block[0]) + ", " +
          std::to_string(finding.block[1]) + ", " + std::to_string(finding.block[2]) + ")";
  Append(text, "at ", finding.location, names);
  if (finding.other_location != finding.location) {
    Append(text, "and ", finding.other_location, names);
  } else if (finding.location != 0) {
    text += "\n  and the same statement";
  }
  return text;
}

}  // namespace kiln::emulator
