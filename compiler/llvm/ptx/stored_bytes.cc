// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/stored_bytes.h"

#include <fmt/format.h>

#include <unordered_set>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

bool StoresBytes(std::string_view name) { return name.starts_with("st.") && name.ends_with(".b8"); }

std::string FromWords(std::string_view function) {
  std::unordered_set<std::string_view> floats;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    if (statement.first.starts_with("%rs") && statement.name.contains("f16")) floats.insert(statement.first);
  });
  std::string result;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    const std::vector<std::string_view> bytes = RegistersOf(statement.last);
    if (!StoresBytes(statement.name) || std::ranges::none_of(bytes, [&](std::string_view byte) { return floats.contains(byte); })) {
      result += line;
      return;
    }
    std::string before, operands;
    for (size_t i = 0; i < bytes.size(); ++i) {  // those of one store have the same width
      const std::string_view byte = bytes[i];
      std::string name(byte);
      if (byte.starts_with("%rs")) {
        name = fmt::format("word{}", i);
        before += fmt::format(".reg .b32 {0}; cvt.u32.u16 {0}, {1}; ", name, byte);
      }
      operands += (operands.empty() ? "" : ", ") + name;
    }
    if (statement.last.starts_with('{')) operands = "{" + operands + "}";
    result += WithStatement(line, fmt::format("{{ {}{} {}, {}; }}", before, statement.name, statement.first, operands));
  });
  return result;
}

}  // namespace

std::string WithoutStoredBytesOfFloats(std::string_view ptx) {
  if (!ptx.contains("f16") || !ptx.contains(".b8")) return std::string(ptx);
  return WithFunctions(ptx, FromWords);
}

}  // namespace kiln::llvm_ir
