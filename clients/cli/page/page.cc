// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/page/page.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "clients/cli/page/facts.h"
#include "clients/cli/page/markup.h"
#include "clients/cli/page/template.h"
#include "ir/codec/decode.h"
#include "ir/text/parse.h"

namespace kiln::cli {
namespace {

std::unexpected<Error> Unreadable(std::string_view what, const ir::Diagnostics& diagnostics) {
  const std::string why = diagnostics.all().empty() ? "no reason is given" : diagnostics.all().front().message;
  return std::unexpected(Error{.code = ErrorCode::kInternal, .message = fmt::format("{} cannot be read: {}", what, why)});
}

std::expected<Decided, Error> ReadDump(const Compiled& compiled) {
  const auto dump = std::ranges::find(compiled.dumps, kPageDump, &PassDump::pass);
  if (dump == compiled.dumps.end()) {
    return std::unexpected(
        Error{.code = ErrorCode::kInternal, .message = fmt::format("the compiler gave no dump after {}, from which the page is made", kPageDump)});
  }
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(dump->text, diagnostics);
  if (!module) return Unreadable(fmt::format("the dump after {}", kPageDump), diagnostics);
  return Decided{std::move(*module), SourceLines(dump->text)};
}

// Within <script>: no end of it, no comment and no other script begins without a '<', and JSON has those in strings only.
std::string WithoutMarkup(std::string_view json) {
  std::string out;
  for (const char c : json) c == '<' ? out += "\\u003c" : out += c;
  return out;
}

// What is put in is not looked through again: a program may have {{script}} in its text.
std::string Filled(std::string_view frame, const std::vector<std::pair<std::string_view, std::string_view>>& holes) {
  std::string out;
  for (const auto& [hole, content] : holes) {
    const auto at = frame.find(hole);
    out += frame.substr(0, at);
    out += content;
    frame.remove_prefix(std::min(frame.size(), at + hole.size()));
  }
  return out + std::string(frame);
}

}  // namespace

std::expected<std::string, Error> MakePage(const CompileRequest& request, const Compiled& compiled) {
  ir::Diagnostics diagnostics;
  const auto program = ir::DecodeModule(request.module, diagnostics);
  if (!program) return Unreadable("the program", diagnostics);
  const auto decided = ReadDump(compiled);
  if (!decided) return std::unexpected(decided.error());
  v1::Artifact artifact;
  if (!artifact.ParseFromString(compiled.artifact)) return Unreadable("the artifact", {});
  const v1::Report& report = artifact.report();
  const auto found = target::Find(compiled.target);
  const target::Target* target = found ? *found : nullptr;

  const std::string_view text = request.module.starts_with("kiln ") ? std::string_view(request.module) : std::string_view();
  const Json data = Json::Object({{"name", program->name},
                                  {"target", compiled.target},
                                  {"compiler", artifact.compiler()},
                                  {"program", ProgramFacts(*program, text)},
                                  {"decisions", DecisionFacts(report)},
                                  {"warnings", Json::Map(compiled.warnings, [](const Diagnostic& d) { return Json(d.message); })},
                                  {"layouts", LayoutFacts(*decided, report)},
                                  {"schedule", ScheduleFacts(*decided, report)},
                                  {"memory", MemoryFacts(*decided, report, target)},
                                  {"resources", ResourceFacts(*decided, artifact, target)},
                                  {"work", WorkFacts(*program, *decided, target)}});
  const std::string title = Escaped(fmt::format("{} for {}", program->name.empty() ? "program" : program->name, compiled.target));
  return Filled(kPageFrame, {{"{{title}}", title}, {"{{style}}", kPageStyle}, {"{{data}}", WithoutMarkup(data.text())}, {"{{script}}", kPageScript}});
}

}  // namespace kiln::cli
