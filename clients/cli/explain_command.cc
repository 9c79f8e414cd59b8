// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <fmt/format.h>

#include "clients/cli/report.h"
#include "clients/cli/sources.h"

namespace kiln::cli {
namespace {

struct ExplainCommand {
  CompileArguments program;
  std::vector<std::string> after;
  bool llvm = false;
  bool assembly = false;
  bool time = false;

  void Run(Context& context) const {
    auto request = MakeRequest(program);
    if (!request) return context.Fail(request.error());
    request->explain = Explain{.after = after, .llvm = llvm, .assembly = assembly};
    const auto compiled = CompileWithProgress(context, program, *request, true);
    if (!compiled) return context.Fail(compiled.error());
    if (context.json()) return PrintJson(context, *compiled);

    const bool colours = context.colours();
    fmt::print("{}  {} of {}{}\n", Paint(compiled->target, Style::kBold, colours), Bytes(compiled->code.size()),
               Name(compiled->kind), compiled->key.empty() ? "" : "  key " + Hex(compiled->key).substr(0, 16));
    for (const Diagnostic& warning : compiled->warnings) {
      fmt::print("{} {}\n", Paint("warning:", Style::kWarn, colours), warning.message);
    }
    fmt::print("{}", ReportText(*compiled, colours));
    for (const PassDump& dump : compiled->dumps) Section(dump.pass, dump.text, colours);
    if (assembly && !HasAssembly(*compiled)) {
      if (compiled->kind == CodeKind::kPtx) Section("assembly", compiled->code, colours);
    }
    if (time) fmt::print("{}", TimingsText(*compiled, colours));
  }

  static bool HasAssembly(const Compiled& compiled) {
    for (const PassDump& dump : compiled.dumps) {
      if (dump.pass == "assembly") return true;
    }
    return false;
  }

  static void Section(std::string_view name, std::string_view text, bool colours) {
    fmt::print("\n{}\n{}{}", Paint(fmt::format("── {} ──", name), Style::kAccent, colours), text,
               text.ends_with('\n') ? "" : "\n");
  }

  void PrintJson(const Context& context, const Compiled& compiled) const {
    context.Print(Json::Object({{"compiled", ToJson(compiled)},
                                {"report", ReportJson(compiled)},
                                {"dumps", Json::Map(compiled.dumps,
                                                    [](const PassDump& dump) {
                                                      return Json::Object({{"after", dump.pass}, {"text", dump.text}});
                                                    })},
                                {"assembly", assembly && compiled.kind == CodeKind::kPtx ? Json(compiled.code)
                                                                                         : Json::Null()}}));
  }
};

}  // namespace

void AddExplain(CLI::App& app, Context& context) {
  const auto command = std::make_shared<ExplainCommand>();
  CLI::App& sub = *app.add_subcommand(
      "explain", "Show what the compiler decides: instructions, layouts, pipeline, shared memory, code");
  AddProgram(sub, command->program);
  sub.add_option("--after", command->after, "show the IR after this pass; `all` for each (may be given more than once)");
  sub.add_flag("--llvm", command->llvm, "show LLVM's IR before and after its optimiser");
  sub.add_flag("--asm", command->assembly, "show the PTX or GCN");
  sub.add_flag("--time", command->time, "show where the time goes");
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
