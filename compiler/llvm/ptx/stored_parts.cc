// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/stored_parts.h"

#include <fmt/format.h>

#include <unordered_set>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

// The bits of each register of a store, or 0 where this is none.
int StoredBits(std::string_view name) {
  if (!name.starts_with("st.")) return 0;
  return name.ends_with(".b8") ? 8 : name.ends_with(".b16") ? 16 : name.ends_with(".b32") ? 32 : 0;
}

int BitsOf(std::string_view reg) { return reg.starts_with("%rs") ? 16 : reg.starts_with("%rd") ? 64 : reg.starts_with("%r") ? 32 : 0; }

bool IsOfFloats(std::string_view name) { return name.contains("f16") || name.contains("f32") || name.contains("f64"); }

std::string ByNarrowRegisters(std::string_view function) {
  std::unordered_set<std::string_view> floats;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    if (IsOfFloats(statement.name) && BitsOf(statement.first) != 0) floats.insert(statement.first);
  });
  std::string result;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    const int bits = StoredBits(statement.name);
    const std::vector<std::string_view> values = RegistersOf(statement.last);
    if (std::ranges::none_of(values, [&](std::string_view value) { return bits < BitsOf(value) && floats.contains(value); }) || bits == 0) {
      result += line;
      return;
    }
    std::string before, operands;
    for (size_t i = 0; i < values.size(); ++i) {  // those of one store have the same width
      const int width = BitsOf(values[i]);
      std::string name(values[i]);
      if (width != 0) {
        name = fmt::format("part{}", i);
        // No register has eight bits: from one of 16, st.b8 takes an integer of 32.
        const int part = width == 16 || bits == 32 ? 32 : 16;
        before += fmt::format(".reg .b{1} {0}; cvt.u{1}.u{2} {0}, {3}; ", name, part, width, values[i]);
      }
      operands += (operands.empty() ? "" : ", ") + name;
    }
    if (statement.last.starts_with('{')) operands = "{" + operands + "}";
    result += WithStatement(line, fmt::format("{{ {}{} {}, {}; }}", before, statement.name, statement.first, operands));
  });
  return result;
}

}  // namespace

std::string WithoutStoredPartsOfFloats(std::string_view ptx) { return WithFunctions(ptx, ByNarrowRegisters); }

}  // namespace kiln::llvm_ir
