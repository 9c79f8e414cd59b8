// SPDX-License-Identifier: Apache-2.0
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "clients/cli/candidates.h"
#include "clients/cli/report.h"
#include "clients/cli/sources.h"

namespace kiln::cli {
namespace {

struct Choice {
  Chosen chosen;
  std::string label;
};

struct CompileCommand {
  CompileArguments program;
  std::string code_file;
  std::string artifact_file;
  std::vector<std::string> space;
  RunArguments tuned_on{.device = {}};  // and dimensions, scalars
  std::optional<TuneMode> mode;
  bool on_emulator = false;

  void Run(Context& context) const {
    for (const std::string* file : {&code_file, &artifact_file}) context.LeaveStdoutTo(*file);
    if (!space.empty()) return RunSpace(context);
    if (mode || on_emulator || !tuned_on.device.empty() || !tuned_on.dims.empty() || !tuned_on.scalars.empty()) {
      return context.Fail(InvalidInput("--tune, --device, --dim, --scalar and --measure-on-emulator choose among programs: say which with --space"));
    }
    const auto request = MakeRequest(program);
    if (!request) return context.Fail(request.error());
    const auto compiled = CompileWithProgress(context, program, *request, false);
    if (!compiled) return context.Fail(compiled.error());
    Write(context, *compiled);
  }

  // One of the programs that the file and its open sizes are.
  void RunSpace(Context& context) const {
    const auto chosen = Choose(context);
    if (!chosen) return context.Fail(chosen.error());
    Write(context, chosen->chosen.compiled, &*chosen);
  }

  std::expected<Choice, Error> Choose(Context& context) const {
    if (program.local || !program.reproducer.empty() || program.refresh || program.priority != "interactive") {
      return std::unexpected(InvalidInput("--space goes with none of --local, --repro, --refresh and --priority"));
    }
    if (program.target.empty())
      return std::unexpected(InvalidInput("say what to compile for: --target cuda:sm_90a; `kiln devices` lists the targets"));
    if (tuned_on.device.empty())
      return std::unexpected(InvalidInput("say on which device its programs run: --device cuda:0; `kiln devices` lists them"));
    auto candidates = CandidatesOf({program.file}, space);
    if (!candidates) return std::unexpected(std::move(candidates.error()));
    const CompileRequest shared{.module = {}, .target = program.target, .options = program.options, .durable = program.durable};
    TuneRequest request{
        .candidates = {}, .device = tuned_on.device, .measure_on_emulator = on_emulator, .mode = mode.value_or(TuneMode::kBackground)};
    for (Candidate& candidate : *candidates) {
      request.candidates.push_back({{.module = std::move(candidate.module), .options = program.options}, std::move(candidate.label)});
    }
    auto client = context.Connect();
    if (!client) return std::unexpected(std::move(client.error()));
    CompileRequest first = request.candidates.front().program;
    first.target = program.target;
    auto arguments = RecipesFor(*client, first, tuned_on);
    if (!arguments) return std::unexpected(std::move(arguments.error()));
    request.arguments = std::move(*arguments);
    Progress progress(context.terminal.err && !context.json());
    auto chosen = client->CompileSpace(shared, request, [&](const TuneProgress& news) {
      progress.Show(
          fmt::format("tuning: {} of {} programs measured, {:.0f} s left", news.measured + news.failed, news.candidates, news.left_seconds));
    });
    progress.Clear();
    if (!chosen) return std::unexpected(std::move(chosen.error()));
    return Choice{std::move(*chosen), request.candidates[chosen->candidate].label};
  }

  void Write(Context& context, const Compiled& result, const Choice* choice = nullptr) const {
    const Compiled* compiled = &result;
    for (const auto& [file, bytes] : {std::pair{&code_file, &compiled->code}, {&artifact_file, &compiled->artifact}}) {
      if (file->empty()) continue;
      if (const auto written = WriteFile(*file, *bytes); !written) return context.Fail(written.error());
    }
    if (choice != nullptr) ShowChoice(context, *choice);
    else Show(context, *compiled);
    if (program.durable && !compiled->durable) {
      fmt::print(stderr, "{} the daemon's store could not take the result, which is in its memory alone (`kiln stats` shows the store)\n",
                 Paint("warning:", Style::kWarn, context.terminal.err));
    }
  }

  void ShowChoice(const Context& context, const Choice& choice) const {
    const auto& [chosen, label] = choice;
    const Tuned& tuned = chosen.tuned;
    if (context.json()) {
      return context.Print(Json::Object({{"program", label},
                                         {"tuned", tuned.has_record()},
                                         {"microseconds", tuned.has_record() ? Json(tuned.measurements[chosen.candidate].median) : Json::Null()},
                                         {"watch", Hex(tuned.watch)},
                                         {"untuned", tuned.untuned},
                                         {"compiled", ToJson(chosen.compiled)}}));
    }
    Show(context, chosen.compiled);
    const std::string why =
        tuned.has_record()     ? fmt::format("the fastest on the {}, {:.2f} us", tuned.device, tuned.measurements[chosen.candidate].median)
        : !tuned.watch.empty() ? "the best that is known; it is tuned in the background, and the same command shows the fastest once it is found"
                               : "not measured";
    fmt::print(context.report, "  {}: {}\n", label, why);
    if (!tuned.untuned.empty()) fmt::print(stderr, "kiln: nothing is tuned in the background: {}\n", tuned.untuned);
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
  sub.add_option("--space", command->space,
                 "NAME=VALUE,VALUE,… of a size that the program leaves open as ${NAME}: one of the programs that it then is, as --tune says");
  sub.add_option(
         "--tune", command->mode,
         "background: what is known or expected to be the fastest, which is then tuned; wait: the fastest; model: what is expected; off: the first")
      ->transform(CLI::CheckedTransformer(TuneModes()).description("wait|off|model|background"));
  sub.add_option("--device", command->tuned_on.device, "on which they are measured: cuda:0, hip:0, …");
  sub.add_option("--dim", command->tuned_on.dims, "with --space: NAME=INTEGER of a dimension that the programs leave open");
  sub.add_option("--scalar", command->tuned_on.scalars, "with --space: NAME=VALUE of a scalar parameter; 1 by default");
  sub.add_flag("--measure-on-emulator", command->on_emulator, "measure where the time says nothing of any GPU");
  sub.add_option("--repro", command->program.reproducer, "compile what a reproducer file holds, in a worker of its own");
  sub.add_option("--priority", command->program.priority, "whether it goes before or after other waiting requests")
      ->check(CLI::IsMember({"interactive", "batch", "tuning"}));
  sub.add_flag("--refresh", command->program.refresh, "compile even if the result is known");
  sub.add_flag("--durable", command->program.durable, "wait until the daemon's store has the result: it survives the daemon's end")
      ->excludes(sub.get_option("--local"));
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
