// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "clients/cli/page/facts.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::cli {
namespace {

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    lines.emplace_back(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return lines;
}

std::vector<const ir::Stmt*> Statements(const ir::Module& module) {
  std::vector<const ir::Stmt*> all;
  for (const ir::Kernel& kernel : module.kernels) ir::Walk(kernel.body, [&](const ir::Stmt& stmt) { all.push_back(&stmt); });
  return all;
}

// Of each line of the module's text, the line of the source that its statement comes from.
std::vector<uint32_t> LinesOf(const ir::Module& module, const std::string& text, size_t count) {
  std::vector<uint32_t> lines(count, 0);
  ir::Diagnostics diagnostics;
  const auto printed = ir::Parse(text, diagnostics);
  if (!printed) return lines;
  const auto there = Statements(*printed);
  const auto here = Statements(module);
  for (size_t i = 0; i < std::min(there.size(), here.size()); ++i) {
    const uint32_t at = there[i]->loc.line;
    if (at > 0 && at <= count) lines[at - 1] = here[i]->loc.line;
  }
  return lines;
}

}  // namespace

Json ProgramFacts(const ir::Module& program, std::string_view text) {
  const std::string shown = text.empty() ? ir::Print(program) : std::string(text);
  const std::vector<std::string> rows = SplitLines(shown);
  std::vector<uint32_t> lines(rows.size());
  if (text.empty()) {
    lines = LinesOf(program, shown, rows.size());
  } else {
    for (size_t i = 0; i < rows.size(); ++i) lines[i] = uint32_t(i + 1);
  }
  std::vector<Json> out;
  for (size_t i = 0; i < rows.size(); ++i) out.push_back(Json::Object({{"text", rows[i]}, {"line", lines[i]}}));
  return Json::Object({{"written", !text.empty()},
                       {"files", Json::Map(program.files, [](const std::string& file) { return Json(file); })},
                       {"rows", Json::Array(out)}});
}

Json DecisionFacts(const v1::Report& report) {
  return Json::Map(report.decisions(), [](const v1::Decision& d) {
    return Json::Object({{"pass", d.pass()}, {"subject", d.subject()}, {"decision", d.decision()}, {"reason", d.reason()}, {"line", d.line()}});
  });
}

}  // namespace kiln::cli
