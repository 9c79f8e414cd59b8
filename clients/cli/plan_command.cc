// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <ranges>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "clients/cli/candidates.h"
#include "clients/cli/report.h"
#include "clients/cli/run_arguments.h"
#include "clients/cli/sources.h"
#include "clients/cpp/rank.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

struct PlanCommand {
  std::vector<std::string> files, space;
  std::string target, board;
  RunArguments run;  // dimensions
  Options options;
  std::size_t limit = 20;

  void Run(Context& context) const {
    const auto done = TryRun(context);
    if (!done) context.Fail(done.error());
  }

  std::expected<void, Error> TryRun(Context& context) const {
    if (target.empty()) return std::unexpected(InvalidInput("say what to plan for: --target cuda:sm_90a; `kiln devices` lists the targets"));
    const auto candidates = CandidatesOf(files, space);
    if (!candidates) return std::unexpected(candidates.error());
    const auto values = Values::Parse(run);
    if (!values) return std::unexpected(values.error());
    RankRequest request{.candidates = {}, .board = board, .symbols = {values->dims.begin(), values->dims.end()}};
    for (const Candidate& candidate : *candidates) request.candidates.push_back({.module = candidate.module, .target = target, .options = options});
    auto client = context.Connect();
    if (!client) return std::unexpected(std::move(client.error()));
    const auto ranked = client->Rank(request);
    if (!ranked) return std::unexpected(ranked.error());
    context.json() ? context.Print(ToJson(*candidates, *ranked)) : Show(context, *candidates, *ranked);
    if (std::isinf(ranked->front().microseconds)) context.status = 1;
    return {};
  }

  void Show(const Context& context, const std::vector<Candidate>& candidates, const std::vector<Ranked>& ranked) const {
    const auto first = std::ranges::find_if(ranked, [](const Ranked& one) { return !one.kernels.empty(); });
    std::vector<Table::Column> columns = {{"candidate"}, {"us", Align::kRight}};
    if (first != ranked.end()) {
      fmt::print("expected on the {}\n", first->board);
      if (!board.empty() && board != first->board) {
        fmt::print(stderr, "kiln: the planner does not know the {}; it counts with the target's usual one\n", board);
      }
      for (const PlanTerm& term : first->kernels.front().units) columns.push_back({term.name, Align::kRight});
      for (const PlanTerm& term : first->kernels.front().waits) columns.push_back({"wait: " + term.name, Align::kRight});
    }
    for (const char* name : {"turns", "blocks", "registers", "shared"}) columns.push_back({name, Align::kRight});
    Table table(columns);
    for (const Ranked& one : ranked | std::views::take(limit == 0 ? ranked.size() : limit)) {
      const std::string& label = candidates[one.candidate].label;
      if (one.kernels.empty()) {
        fmt::print(stderr, "{}: {}\n", label, one.problem.substr(0, one.problem.find('\n')));
        continue;
      }
      for (const KernelEstimate& kernel : one.kernels) {
        std::vector<std::string> row = {label, fmt::format("{:.1f}", kernel.microseconds)};
        for (const PlanTerm& term : kernel.units) row.push_back(fmt::format("{:.1f}", term.microseconds));
        for (const PlanTerm& term : kernel.waits) row.push_back(fmt::format("{:.1f}", term.microseconds));
        row.push_back(fmt::format("{:.2f}", kernel.turns));
        row.push_back(std::to_string(kernel.blocks));
        row.push_back(kernel.spilled == 0 ? std::to_string(kernel.registers) : fmt::format("{}+{}", kernel.registers, kernel.spilled));
        row.push_back(std::to_string(kernel.shared_bytes));
        table.Add(std::move(row));
      }
    }
    fmt::print("{}", table.Text(context.colours()));
  }

  static Json ToJson(const std::vector<Candidate>& candidates, const std::vector<Ranked>& ranked) {
    const auto term = [](const PlanTerm& one) { return Json::Object({{"name", one.name}, {"microseconds", one.microseconds}}); };
    const auto kernel = [&](const KernelEstimate& one) {
      return Json::Object({{"microseconds", one.microseconds},
                           {"units", Json::Map(one.units, term)},
                           {"waits", Json::Map(one.waits, term)},
                           {"launch", one.launch},
                           {"turns", one.turns},
                           {"grid", one.grid},
                           {"l2_bytes", one.l2_bytes},
                           {"memory_bytes", one.memory_bytes},
                           {"registers", one.registers},
                           {"spilled", one.spilled},
                           {"shared_bytes", one.shared_bytes},
                           {"blocks", one.blocks}});
    };
    return Json::Map(ranked, [&](const Ranked& one) {
      if (one.kernels.empty()) return Json::Object({{"candidate", candidates[one.candidate].label}, {"problem", one.problem}});
      return Json::Object({{"candidate", candidates[one.candidate].label},
                           {"microseconds", one.microseconds},
                           {"board", one.board},
                           {"kernels", Json::Map(one.kernels, kernel)}});
    });
  }
};

}  // namespace

void AddPlan(CLI::App& app, Context& context) {
  const auto command = std::make_shared<PlanCommand>();
  CLI::App& sub = *app.add_subcommand("plan", "Rank programs by the time that the planner expects them to take; nothing is compiled or measured");
  sub.add_option("files", command->files, "the programs, as `kiln compile` reads them; in text, ${NAME} stands for a size that --space names")
      ->required();
  sub.add_option("-t,--target", command->target, "cuda:sm_90a, hip:gfx942, …; `kiln devices` lists them");
  sub.add_option("--space", command->space, "NAME=VALUE,VALUE,… of an open size; of several, every combination is a candidate");
  sub.add_option("--board", command->board, "the GPU, as its driver calls it (\"NVIDIA H200\"); the target's usual one by default");
  sub.add_option("--dim", command->run.dims, "NAME=INTEGER of a dimension that the programs leave to the launch; 4096 by default");
  sub.add_option("--limit", command->limit, "candidates to show, the fastest first; 0: all")->capture_default_str();
  AddOptions(sub, command->options);
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
