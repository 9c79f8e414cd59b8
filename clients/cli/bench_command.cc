// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include "clients/cli/inputs.h"
#include "clients/common/run_names.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

constexpr std::uint32_t kLaunches = 20;  // of a program in its turn

struct Contender {
  std::string file;
  CompileRequest request;
  Inputs inputs;
  std::uint64_t bytes = 0;  // of all tensors, once each
  std::vector<double> microseconds;

  double Median() const { return microseconds[microseconds.size() / 2]; }
  double Best() const { return microseconds.front(); }
  double GigabytesPerSecond() const { return double(bytes) / Median() * 1e-3; }
};

// The programs take turns, so that load of the host affects all of them alike.
struct BenchCommand : RunArguments {
  std::vector<std::string> files;
  int rounds = 5;
  double flop = 0;

  void Run(Context& context) const {
    if (const auto done = TryRun(context); !done) context.Fail(done.error());
  }

  std::expected<void, Error> TryRun(Context& context) const {
    auto client = context.Connect();
    if (!client) return std::unexpected(std::move(client.error()));
    const auto target = Target(*client);
    if (!target) return std::unexpected(target.error());
    const auto values = Values::Parse(*this);
    if (!values) return std::unexpected(values.error());
    std::vector<Contender> contenders;
    KnownNames names;  // of all programs: each has its own
    for (const std::string& file : files) {
      auto contender = Prepare(context, file, *target, *values, names);
      if (!contender) return std::unexpected(std::move(contender.error()));
      contenders.push_back(std::move(*contender));
    }
    if (auto known = names.Check(*values); !known) return known;
    std::string description;
    Progress progress(context.terminal.err && !context.json());
    for (int round = 0; round < rounds; ++round) {
      for (Contender& contender : contenders) {
        progress.Show(fmt::format("round {} of {}: {} …", round + 1, rounds, contender.file));
        const auto ran = Measure(*client, contender);
        if (!ran) return std::unexpected(ran.error());
        description = ran->device;
      }
    }
    progress.Clear();
    for (Contender& contender : contenders) std::ranges::sort(contender.microseconds);
    context.json() ? context.Print(AsJson(contenders, description, *target)) : Show(context, contenders, description);
    return {};
  }

  std::expected<std::string, Error> Target(Client& client) const {
    if (device.starts_with("emu:")) return device;
    const auto capabilities = client.Capabilities();
    if (!capabilities) return std::unexpected(capabilities.error());
    std::vector<std::string> names;
    for (const RemoteDevice& known : capabilities->devices) {
      if (known.name == device) return known.target;
      names.push_back(known.name);
    }
    return std::unexpected(InvalidInput(fmt::format("{} has no device {}; it has {}, and emu:sm_90a and the like", client.address(), device,
                                                    names.empty() ? "no GPU" : fmt::format("{}", fmt::join(names, ", ")))));
  }

  std::expected<Contender, Error> Prepare(Context& context, const std::string& file, const std::string& target, const Values& values,
                                          KnownNames& names) const {
    CompileArguments arguments = program;
    arguments.file = file, arguments.target = target;
    auto request = MakeRequest(arguments);
    if (!request) return std::unexpected(std::move(request.error()));
    const auto compiled = CompileWithProgress(context, arguments, *request, false);
    if (!compiled) return std::unexpected(compiled.error());
    auto artifact = runtime::DecodeArtifact(compiled->artifact);
    if (!artifact) return std::unexpected(ToError(artifact.error()));
    NameParameters(request->module, artifact->launch);
    names.Add(artifact->launch);
    auto inputs = Inputs::Make(artifact->launch, values, seed);
    if (!inputs) return std::unexpected(std::move(inputs.error()));
    Contender contender{.file = file, .request = std::move(*request), .inputs = std::move(*inputs)};
    for (const std::string& data : contender.inputs.data) contender.bytes += data.size();
    return contender;
  }

  std::expected<RunResult, Error> Measure(Client& client, Contender& contender) const {
    auto ran = client.Run({.program = contender.request,
                           .device = device,
                           .arguments = contender.inputs.arguments,
                           .timeout_seconds = run_limit,
                           .repeat = static_cast<std::uint32_t>(repeat.value_or(kLaunches))});
    if (!ran) return ran;
    if (!ran->faults.empty() || ran->microseconds.empty()) {
      return std::unexpected(InvalidInput(fmt::format("{} did not come to its end{}; `kiln run` shows more", contender.file,
                                                      ran->faults.empty() ? "" : ": " + ran->faults[0].message)));
    }
    std::ranges::copy(ran->microseconds, std::back_inserter(contender.microseconds));
    return ran;
  }

  Json AsJson(const std::vector<Contender>& contenders, const std::string& description, const std::string& target) const {
    return Json::Object({{"device", description}, {"target", target}, {"programs", Json::Map(contenders, [&](const Contender& c) {
                                                                         return Json::Object({{"file", c.file},
                                                                                              {"microseconds", c.Median()},
                                                                                              {"best", c.Best()},
                                                                                              {"launches", c.microseconds.size()},
                                                                                              {"gigabytes_per_second", c.GigabytesPerSecond()},
                                                                                              {"teraflops", flop > 0 ? Json(flop / c.Median() * 1e-6)
                                                                                                                     : Json::Null()}});
                                                                       })}});
  }

  void Show(const Context& context, const std::vector<Contender>& contenders, const std::string& description) const {
    Table table({{"program"},
                 {"median", Align::kRight},
                 {"best", Align::kRight},
                 {"GB/s", Align::kRight},
                 {"TFLOP/s", Align::kRight},
                 {"over the first", Align::kRight}});
    for (const Contender& c : contenders) {
      table.Add({c.file, fmt::format("{:.2f} µs", c.Median()), fmt::format("{:.2f} µs", c.Best()), fmt::format("{:.1f}", c.GigabytesPerSecond()),
                 flop > 0 ? fmt::format("{:.2f}", flop / c.Median() * 1e-6) : "-", fmt::format("{:.3f}", c.Median() / contenders[0].Median())});
    }
    fmt::print("{} ({}), {} launches each, in turns\n{}", Paint(device, Style::kBold, context.colours()), description,
               contenders[0].microseconds.size(), table.Text(context.colours()));
  }
};

}  // namespace

void AddBench(CLI::App& app, Context& context) {
  const auto command = std::make_shared<BenchCommand>();
  command->device = "cuda:0";
  CLI::App& sub = *app.add_subcommand("bench", "Time programs in turns, with random data, on a device of the daemon");
  sub.add_option("files", command->files, "programs: the IR's text form (.kiln) or serialized kiln.v1.Modules")->required();
  AddOptions(sub, command->program.options);
  sub.add_option("--device", command->device, "cuda:0, hip:0, emu:sm_90a and the like, as `kiln devices` shows them (cuda:0)");
  sub.add_option("--dim", command->dims, "NAME=INTEGER of a dimension that a program leaves open");
  sub.add_option("--scalar", command->scalars, "NAME=NUMBER of a scalar parameter (1)");
  sub.add_option("--rounds", command->rounds, "turns of each program (5)")->check(CLI::Range(1, 1000));
  sub.add_option("--repeat", command->repeat, "timed launches of a turn (20)")->check(CLI::Range(1, 10'000));
  sub.add_option("--flop", command->flop, "operations of one launch, for TFLOP/s")->check(CLI::PositiveNumber);
  sub.add_option("--seed", command->seed, "of the random data");
  sub.add_option("--run-limit", command->run_limit, "seconds that a turn may take");
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
