// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <fmt/format.h>

#include "clients/cli/report.h"
#include "clients/cli/sources.h"

namespace kiln::cli {
namespace {

struct CompileCommand {
  CompileArguments program;
  std::string code_file;
  std::string artifact_file;

  void Run(Context& context) const {
    for (const std::string* file : {&code_file, &artifact_file}) context.LeaveStdoutTo(*file);
    const auto request = MakeRequest(program);
    if (!request) return context.Fail(request.error());
    const auto compiled = CompileWithProgress(context, program, *request, false);
    if (!compiled) return context.Fail(compiled.error());
    for (const auto& [file, bytes] : {std::pair{&code_file, &compiled->code}, {&artifact_file, &compiled->artifact}}) {
      if (file->empty()) continue;
      if (const auto written = WriteFile(*file, *bytes); !written) return context.Fail(written.error());
    }
    Show(context, *compiled);
    if (program.durable && !compiled->durable) {
      fmt::print(stderr, "{} the daemon's store could not take the result, which is in its memory alone (`kiln stats` shows the store)\n",
                 Paint("warning:", Style::kWarn, context.terminal.err));
    }
  }

  void Show(const Context& context, const Compiled& compiled) const {
    if (context.json()) return context.Print(ToJson(compiled));
    for (const Diagnostic& warning : compiled.warnings) {
      fmt::print(stderr, "{} {}\n", Paint("warning:", Style::kWarn, context.terminal.err), warning.message);
    }
    double spent = 0;
    for (const Timing& timing : compiled.timings) spent += timing.milliseconds;
    const bool hit = compiled.origin == Origin::kMemory || compiled.origin == Origin::kDisk || compiled.origin == Origin::kBundle;
    fmt::print(context.report, "{} {}  {} of {}{}  {}\n", Paint("✓", Style::kGood, context.colours()),
               Paint(compiled.target, Style::kBold, context.colours()), Bytes(compiled.code.size()), Name(compiled.kind),
               compiled.cubin.empty() ? "" : fmt::format(" and {} of cubin", Bytes(compiled.cubin.size())),
               hit ? fmt::format("known ({})", Name(compiled.origin)) : fmt::format("compiled in {:.1f} ms", spent));
    if (!compiled.key.empty()) fmt::print(context.report, "  key {}\n", Hex(compiled.key));
    fmt::print(context.report, "{}", ResourcesText(compiled, context.colours()));
    for (const std::string* file : {&code_file, &artifact_file}) {
      if (!file->empty()) fmt::print(context.report, "  → {}\n", *file);
    }
  }
};

}  // namespace

void AddCompile(CLI::App& app, Context& context) {
  const auto command = std::make_shared<CompileCommand>();
  CLI::App& sub = *app.add_subcommand("compile", "Compile a program, or fetch its known result");
  AddProgram(sub, command->program);
  sub.add_option("-o,--output", command->code_file, "write the PTX or HSACO here");
  sub.add_option("--artifact", command->artifact_file, "write the whole kiln.v1.Artifact here, for `kiln run`");
  sub.add_option("--repro", command->program.reproducer, "compile what a reproducer file holds, in a worker of its own");
  sub.add_option("--priority", command->program.priority, "whether it goes before or after other waiting requests")
      ->check(CLI::IsMember({"interactive", "batch", "tuning"}));
  sub.add_flag("--refresh", command->program.refresh, "compile even if the result is known");
  sub.add_flag("--durable", command->program.durable, "wait until the daemon's store has the result: it survives the daemon's end")
      ->excludes(sub.get_option("--local"));
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
