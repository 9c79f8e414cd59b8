// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "clients/cli/candidates.h"
#include "clients/cli/page/tune_page.h"
#include "clients/cli/report.h"
#include "clients/cli/run_arguments.h"
#include "clients/cli/sources.h"
#include "clients/cpp/tune.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

std::string_view Name(TuneOutcome outcome) {
  switch (outcome) {
    case TuneOutcome::kNotReached: return "not reached";
    case TuneOutcome::kMeasured: return "measured";
    case TuneOutcome::kDropped: return "dropped";
    case TuneOutcome::kRefused: return "refused";
    case TuneOutcome::kFaulted: return "faulted";
    case TuneOutcome::kTimedOut: return "timed out";
    case TuneOutcome::kWrong: return "wrong";
  }
  return "";
}

std::string_view Name(TuneBasis basis) {
  switch (basis) {
    case TuneBasis::kNone: return "";
    case TuneBasis::kCaller: return "the first that was given";
    case TuneBasis::kPlanner: return "the planner's first";
    case TuneBasis::kNearRecord: return "measured with another driver or compiler";
  }
  return "";
}

std::string ProgressText(const TuneProgress& progress) {
  constexpr std::size_t kWidth = 24;
  const std::size_t done = progress.measured + progress.failed, all = std::max<std::size_t>(progress.candidates, 1);
  const std::size_t filled = std::min(kWidth, kWidth * done / all);
  if (progress.compiled == 0 && progress.ranked > 0) return fmt::format("the planner looks at {}/{}", progress.ranked, progress.candidates);
  const std::string best = progress.best ? fmt::format(", best {:.1f} us", progress.best_microseconds) : "";
  return fmt::format("[{}{}] {}/{}{}, {:.0f} s left", std::string(filled, '#'), std::string(kWidth - filled, '.'), done, progress.candidates, best,
                     progress.left_seconds);
}

struct TuneCommand {
  std::vector<std::string> files, space;
  RunArguments run;  // device, dimensions, scalars, seed
  Options options;
  double budget = 0, candidate_limit = 0;
  std::uint32_t candidates = 0;
  std::optional<std::uint32_t> energy;
  std::uint32_t devices = 0;
  std::string page_file;
  TuneMode mode = TuneMode::kWait;
  std::size_t reference = 0;
  bool on_emulator = false, refresh = false, known_only = false, show = false;

  void Run(Context& context) const {
    context.LeaveStdoutTo(page_file);
    const auto done = TryRun(context);
    if (!done) context.Fail(done.error());
  }

  std::expected<void, Error> TryRun(Context& context) const {
    auto client = context.Connect();
    if (!client) return std::unexpected(std::move(client.error()));
    auto target = TargetOf(*client);
    if (!target) return std::unexpected(std::move(target.error()));
    TuneRequest request{.candidates = {},
                        .device = run.device,
                        .arguments = {},
                        .budget_seconds = budget,
                        .budget_candidates = candidates,
                        .candidate_seconds = candidate_limit};
    auto candidates = CandidatesOf(files, space);
    if (!candidates) return std::unexpected(std::move(candidates.error()));
    std::vector<std::string> names;  // as they were given
    for (std::size_t i = 0; i < candidates->size(); ++i) {
      Candidate& candidate = (*candidates)[i];
      names.push_back(space.empty() ? files[i] : candidate.label);
      if (candidate.label == files.front()) candidate.label = std::filesystem::path(files.front()).filename().string();
      request.candidates.push_back({{.module = std::move(candidate.module), .target = *target, .options = options, .priority = Priority::kTuning},
                                    std::move(candidate.label)});
    }
    if (reference > request.candidates.size()) {
      return std::unexpected(InvalidInput(fmt::format("--reference {}: there are {} programs", reference, request.candidates.size())));
    }
    if (reference > 0) request.reference = reference - 1;
    request.measure_on_emulator = on_emulator;
    request.refresh = refresh;
    request.known_only = known_only;
    request.seed = run.seed;
    request.mode = mode;
    request.energy_candidates = energy;
    request.devices = devices;
    auto arguments = RecipesFor(*client, request.candidates[reference == 0 ? 0 : reference - 1].program, run);
    if (!arguments) return std::unexpected(std::move(arguments.error()));
    request.arguments = std::move(*arguments);
    Progress progress(context.terminal.err && !context.json());
    const auto tuned = client->Tune(request, [&](const TuneProgress& news) { progress.Show(ProgressText(news)); });
    progress.Clear();
    if (!tuned) return std::unexpected(tuned.error());
    if (!tuned->has_record()) {
      ShowChoices(context, *tuned, names);
      return {};
    }
    if (!page_file.empty()) return WritePage(context, *tuned);
    Show(context, *tuned, names);
    return {};
  }

  std::expected<void, Error> WritePage(const Context& context, const Tuned& tuned) const {
    const std::string page = MakeTunePage(tuned);
    if (auto written = WriteFile(page_file, page); !written) return written;
    if (context.json()) {
      context.Print(Json::Object({{"page", page_file}, {"bytes", std::uint64_t{page.size()}}}));
    } else {
      fmt::print(context.report, "→ {}  {}\n", page_file, Bytes(page.size()));
    }
    return {};
  }

  // Of the daemon's device.
  std::expected<std::string, Error> TargetOf(Client& client) const {
    if (run.device.starts_with("emu:")) return run.device;
    const auto known = client.Capabilities();
    if (!known) return std::unexpected(known.error());
    const auto found = std::ranges::find(known->devices, run.device, &RemoteDevice::name);
    if (found != known->devices.end()) return found->target;
    return std::unexpected(Error{.code = ErrorCode::kNotFound,
                                 .message = fmt::format("the daemon's host has no device {}; `kiln devices` lists those that it has", run.device)});
  }

  // Without a record.
  void ShowChoices(const Context& context, const Tuned& tuned, const std::vector<std::string>& names) const {
    if (context.json()) {
      return context.Print(Json::Object({{"choices", Json::Map(tuned.choices, [&](std::size_t choice) { return Json(names[choice]); })},
                                         {"basis", Name(tuned.basis)},
                                         {"watch", Hex(tuned.watch)},
                                         {"untuned", tuned.untuned}}));
    }
    fmt::print("{} is the choice of {}: {}\n", Paint(names[tuned.winner], Style::kGood, context.colours()), tuned.choices.size(), Name(tuned.basis));
    if (!tuned.watch.empty()) fmt::print("it is tuned in the background; the same command with --known shows the record once it exists\n");
    if (!tuned.untuned.empty()) fmt::print(stderr, "kiln: nothing is tuned in the background: {}\n", tuned.untuned);
    if (!page_file.empty()) fmt::print(stderr, "kiln: {} is not written: nothing was measured\n", page_file);
  }

  void Show(const Context& context, const Tuned& tuned, const std::vector<std::string>& names) const {
    if (context.json()) return context.Print(ToJson(tuned, names));
    const TuneMeasurement& winner = tuned.measurements[tuned.winner];
    fmt::print("{} is the fastest of {} on the {}: {:.2f} us, noise {:.2f} us ({})\n", Paint(winner.label, Style::kGood, context.colours()),
               tuned.measurements.size(), tuned.device, winner.median, winner.noise,
               tuned.origin == Origin::kCompiled ? fmt::format("tuned in {:.1f} s, {} rounds", tuned.seconds, tuned.rounds)
                                                 : fmt::format("from a record: {}", kiln::cli::Name(tuned.origin)));
    if (!tuned.caution.empty()) fmt::print(stderr, "kiln: the check of its outputs says little: {}; give other data\n", tuned.caution);
    if (!show) return;
    const PlannerScore score = ScoreOf(tuned);
    if (score.judged > 1) {
      const std::string place =
          score.winners_place == 0 ? "" : fmt::format("; the fastest is its number {} of {}", score.winners_place, score.judged);
      const std::string as = tuned.device == score.board ? "" : fmt::format(" (counted with the {})", score.board);
      fmt::print("the planner's first choice reaches {:.3f} of the fastest{}{}\n", score.first_choice, place, as);
    }
    Table table({{"candidate"},
                 {"outcome"},
                 {"us", Align::kRight},
                 {"noise", Align::kRight},
                 {"times", Align::kRight},
                 {"MHz", Align::kRight},
                 {"mJ", Align::kRight},
                 {"W", Align::kRight},
                 {"expected", Align::kRight},
                 {"limit"},
                 {"why"}});
    std::vector<const TuneMeasurement*> order;
    for (const TuneMeasurement& said : tuned.measurements) order.push_back(&said);
    std::ranges::stable_sort(order, {}, [](const TuneMeasurement* said) { return std::pair(said->microseconds.empty(), said->median); });
    for (const TuneMeasurement* said : order) {
      const bool has_time = !said->microseconds.empty();
      table.Add({said->label, std::string(Name(said->outcome)), has_time ? fmt::format("{:.2f}", said->median) : "-",
                 has_time ? fmt::format("{:.2f}", said->noise) : "-", std::to_string(said->microseconds.size()), ClockOf(*said),
                 said->energy ? fmt::format("{:.3f}", said->energy->joules * 1000) : "-",
                 said->energy ? fmt::format("{:.0f}", said->energy->watts) : "-",
                 said->estimate ? fmt::format("{:.2f}", said->estimate->microseconds) : "-", LimitOf(*said),
                 said->problem.substr(0, said->problem.find('\n'))});
    }
    fmt::print("{}", table.Text(context.colours()));
    for (const TuneDevice& device : tuned.devices) {
      fmt::print("{} measured {}{}{}\n", device.name, device.measured, device.scale == 1 ? "" : fmt::format(", in {:.3f} of the time", device.scale),
                 device.left.empty() ? "" : fmt::format(": {}", device.left));
    }
    if (!tuned.energy_problem.empty()) fmt::print("energy: {}\n", tuned.energy_problem);
  }

  // Of the multiprocessors, over its measurements.
  static std::string ClockOf(const TuneMeasurement& said) {
    const auto [low, high] = ClocksOf(said);
    return high == 0 ? "-" : low == high ? std::to_string(low) : fmt::format("{}-{}", low, high);
  }

  // The largest term of what was expected.
  static std::string LimitOf(const TuneMeasurement& said) {
    std::string name;
    double most = 0;
    for (const KernelEstimate& kernel : said.estimate ? said.estimate->kernels : std::vector<KernelEstimate>()) {
      for (const PlanTerm& term : kernel.units) {
        if (term.microseconds > most) name = term.name, most = term.microseconds;
      }
    }
    return name;
  }

  static Json EnergyJson(const LaunchEnergy& energy) {
    return Json::Object({{"joules", energy.joules},
                         {"watts", energy.watts},
                         {"microseconds", energy.microseconds},
                         {"launches", energy.launches},
                         {"compute_mhz", energy.compute_mhz}});
  }

  Json ToJson(const Tuned& tuned, const std::vector<std::string>& names) const {
    const auto measurement = [](const TuneMeasurement& said) {
      return Json::Object({{"label", said.label},
                           {"key", Hex(said.key)},
                           {"outcome", Name(said.outcome)},
                           {"median", said.median},
                           {"noise", said.noise},
                           {"expected", said.estimate ? Json(said.estimate->microseconds) : Json::Null()},
                           {"compute_mhz", Json::Map(said.compute_mhz, [](std::uint32_t clock) { return Json(clock); })},
                           {"memory_mhz", Json::Map(said.memory_mhz, [](std::uint32_t clock) { return Json(clock); })},
                           {"energy", said.energy ? EnergyJson(*said.energy) : Json::Null()},
                           {"microseconds", Json::Map(said.microseconds, [](double time) { return Json(time); })},
                           {"problem", said.problem}});
    };
    return Json::Object({{"winner", names[tuned.winner]},
                         {"microseconds", tuned.measurements[tuned.winner].median},
                         {"reference", names[tuned.reference]},
                         {"device", tuned.device},
                         {"target", tuned.target},
                         {"driver", tuned.driver},
                         {"compiler", tuned.compiler},
                         {"key", Hex(tuned.key)},
                         {"origin", kiln::cli::Name(tuned.origin)},
                         {"seconds", tuned.seconds},
                         {"rounds", tuned.rounds},
                         {"caution", tuned.caution},
                         {"energy_problem", tuned.energy_problem},
                         {"devices", Json::Map(tuned.devices,
                                               [](const TuneDevice& d) {
                                                 return Json::Object(
                                                     {{"name", d.name}, {"scale", d.scale}, {"measured", d.measured}, {"left", d.left}});
                                               })},
                         {"candidates", Json::Map(tuned.measurements, measurement)}});
  }
};

}  // namespace

void AddTune(CLI::App& app, Context& context) {
  const auto command = std::make_shared<TuneCommand>();
  CLI::App& sub = *app.add_subcommand("tune", "Find the fastest of several programs that do the same, on a device of the daemon's host");
  sub.add_option("files", command->files, "the programs, as `kiln compile` reads them")->required();
  sub.add_option("--space", command->space, "NAME=VALUE,VALUE,… of a size that the programs leave open as ${NAME}; each combination is a program");
  sub.add_option("-d,--device", command->run.device, "cuda:0, hip:0, …; `kiln devices` lists them")->required();
  sub.add_option("--dim", command->run.dims, "NAME=INTEGER of a dimension that the programs leave open");
  sub.add_option("--scalar", command->run.scalars, "NAME=VALUE of a scalar parameter; 1 by default");
  sub.add_option("--seed", command->run.seed, "of the random data")->capture_default_str();
  sub.add_option("--budget", command->budget, "seconds for compiling and measuring; as long as the daemon allows by default")->check(Seconds());
  sub.add_option("--candidates", command->candidates, "compile and measure so many, of which the planner expects most; all by default");
  sub.add_option("--candidate-limit", command->candidate_limit, "seconds one measurement may take; by the others' time by default")->check(Seconds());
  sub.add_option("--devices", command->devices, "so many GPUs of the same model measure the first round together; the one alone by default");
  sub.add_option("--energy", command->energy, "measure the energy of so many of the fastest; 0: of none; a few by default");
  sub.add_option("--reference", command->reference, "number of the program, from 1, whose outputs are right; the first that runs by default");
  sub.add_option(
         "--mode", command->mode,
         "wait: for the record; background: answer with what is known or expected, and tune behind it; model: only that; off: the first program")
      ->transform(CLI::CheckedTransformer(TuneModes()).description("wait|off|model|background"));
  sub.add_flag("--measure-on-emulator", command->on_emulator, "measure where the time says nothing of any GPU");
  sub.add_flag("--refresh", command->refresh, "measure even if there is a record");
  sub.add_flag("--known", command->known_only, "only look for a record")->excludes("--mode");
  sub.add_flag("--show", command->show, "every program's time beside what the planner expected, and why others have none");
  sub.add_option("--html", command->page_file, "write a page of the same, with the terms of what was expected, to this file");
  AddOptions(sub, command->options);
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
