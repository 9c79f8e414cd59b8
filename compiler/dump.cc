// SPDX-License-Identifier: Apache-2.0
#include "compiler/dump.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

std::vector<uint32_t> StatementLines(const ir::Module& module) {
  std::vector<uint32_t> lines;
  for (const ir::Kernel& kernel : module.kernels) ir::Walk(kernel.body, [&](const ir::Stmt& stmt) { lines.push_back(stmt.loc.line); });
  return lines;
}

}  // namespace

std::string DumpText(const ir::Module& module, std::span<const ir::SourceLoc> numbers) {
  std::string text = ir::Print(module);
  ir::Diagnostics diagnostics;
  const auto parsed = ir::Parse(text, diagnostics);  // which tells where in the text each statement stands
  if (!parsed) return text;
  const std::vector<uint32_t> at = StatementLines(*parsed);
  const std::vector<uint32_t> from = StatementLines(module);
  std::string out;
  std::string_view rest = text;
  size_t next = 0;
  for (uint32_t row = 1; !rest.empty(); ++row) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    out += line;
    if (next < at.size() && next < from.size() && at[next] == row) {
      const uint32_t source = from[next] < numbers.size() ? numbers[from[next]].line : from[next];
      if (source != 0) out += fmt::format("  # line {}", source);
      ++next;
    }
    out += '\n';
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return out;
}

}  // namespace kiln::compiler
