// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/short_extremes.h"

#include <fmt/format.h>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

bool IsShortExtreme(std::string_view name) {
  return (name.starts_with("min.") || name.starts_with("max.")) && name.ends_with("16") && !name.contains('f');
}

// `min.s16 d, a, b;` of words.
std::string ExtremeOfWords(const PtxStatement& statement) {
  const std::string_view which = statement.name.substr(0, 3), sign = statement.name.substr(4, 1);
  const size_t comma = statement.last.find(',');
  return fmt::format(
      "{{ .reg .b16 short<2>; .reg .b32 word<2>; mov.b16 short0, {2}; mov.b16 short1{3}; cvt.{1}32.{1}16 word0, short0; "
      "cvt.{1}32.{1}16 word1, short1; {0}.{1}32 word0, word0, word1; cvt.u16.u32 {4}, word0; }}",
      which, sign, statement.last.substr(0, comma), statement.last.substr(comma), statement.first);
}

}  // namespace

std::string WithoutShortExtremes(std::string_view ptx) {
  std::string result;
  ForEachLine(ptx, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    result += IsShortExtreme(statement.name) ? WithStatement(line, ExtremeOfWords(statement)) : std::string(line);
  });
  return result;
}

}  // namespace kiln::llvm_ir
