// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <fmt/format.h>

#include "clients/cli/page/page.h"
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
  std::string page_file;

  void Run(Context& context) const {
    context.LeaveStdoutTo(page_file);
    auto request = MakeRequest(program);
    if (!request) return context.Fail(request.error());
    request->explain = Explain{.after = after, .llvm = llvm, .assembly = assembly};
    if (!page_file.empty()) request->explain->after.emplace_back(kPageDump);
    const auto compiled = CompileWithProgress(context, program, *request, true);
    if (!compiled) return context.Fail(compiled.error());
    if (!page_file.empty()) return WritePage(context, *request, *compiled);
    if (context.json()) return PrintJson(context, *compiled);

    const bool colours = context.colours();
    fmt::print("{}  {} of {}{}\n", Paint(compiled->target, Style::kBold, colours), Bytes(compiled->code.size()), Name(compiled->kind),
               compiled->key.empty() ? "" : "  key " + Hex(compiled->key).substr(0, 16));
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

  void WritePage(Context& context, const CompileRequest& request, const Compiled& compiled) const {
    const auto page = MakePage(request, compiled);
    if (!page) return context.Fail(page.error());
    if (const auto written = WriteFile(page_file, *page); !written) return context.Fail(written.error());
    for (const Diagnostic& warning : compiled.warnings) {
      fmt::print(stderr, "{} {}\n", Paint("warning:", Style::kWarn, context.terminal.err), warning.message);
    }
    if (context.json()) return context.Print(Json::Object({{"page", page_file}, {"bytes", std::uint64_t{page->size()}}}));
    fmt::print(context.report, "→ {}  {}\n", page_file, Bytes(page->size()));
  }

  static bool HasAssembly(const Compiled& compiled) {
    for (const PassDump& dump : compiled.dumps) {
      if (dump.pass == "assembly") return true;
    }
    return false;
  }

  static void Section(std::string_view name, std::string_view text, bool colours) {
    fmt::print("\n{}\n{}{}", Paint(fmt::format("── {} ──", name), Style::kAccent, colours), text, text.ends_with('\n') ? "" : "\n");
  }

  void PrintJson(const Context& context, const Compiled& compiled) const {
    context.Print(Json::Object(
        {{"compiled", ToJson(compiled)},
         {"report", ReportJson(compiled)},
         {"dumps", Json::Map(compiled.dumps, [](const PassDump& dump) { return Json::Object({{"after", dump.pass}, {"text", dump.text}}); })},
         {"assembly", assembly && compiled.kind == CodeKind::kPtx ? Json(compiled.code) : Json::Null()}}));
  }
};

}  // namespace

void AddExplain(CLI::App& app, Context& context) {
  const auto command = std::make_shared<ExplainCommand>();
  CLI::App& sub = *app.add_subcommand("explain", "Show what the compiler decides: instructions, layouts, pipeline, shared memory, code");
  AddProgram(sub, command->program);
  sub.add_option("--after", command->after, "show the IR after this pass; `all` for each (may be given more than once)");
  sub.add_flag("--llvm", command->llvm, "show LLVM's IR before and after its optimiser");
  sub.add_flag("--asm", command->assembly, "show the PTX or GCN");
  sub.add_flag("--time", command->time, "show where the time goes");
  sub.add_option(
         "--html", command->page_file,
         "write a page here that shows the decisions beside the program, and draws layouts, pipeline and shared memory; then nothing else is shown")
      ->type_name("FILE")
      ->excludes("--after", "--llvm", "--asm", "--time");
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
