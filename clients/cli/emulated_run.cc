// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "clients/cli/inputs.h"
#include "clients/cli/random_data.h"
#include "clients/cli/run_arguments.h"
#include "clients/common/run_names.h"
#include "clients/cpp/run.h"
#include "clients/runtime/bind.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

std::string Trim(const std::string& line) {
  const std::size_t first = line.find_first_not_of(" \t");
  return first == std::string::npos ? "" : line.substr(first);
}

// A line of the user's program, empty where it cannot be read.
std::string SourceLine(const RunStatement& statement) {
  std::ifstream file(statement.file);
  std::string line;
  for (std::uint32_t i = 0; i < statement.line && std::getline(file, line); ++i) {
  }
  return statement.line > 0 && file ? Trim(line) : "";
}

void PrintStatement(const char* word, const RunStatement& s, bool colours) {
  if (s.number == 0) return;
  const std::string place = s.line == 0 ? "" : (s.file.empty() ? "line " : s.file + ":") + std::to_string(s.line) + ": ";
  fmt::print(stderr, "    {} {}{}\n", word, Paint(place, Style::kBold, colours), s.text.empty() ? fmt::format("statement {}", s.number) : s.text);
  if (const std::string line = SourceLine(s); !line.empty()) fmt::print(stderr, "        {}\n", line);
}

void PrintFault(const RunFault& fault, bool colours) {
  fmt::print(stderr, "{}: {}\n", Paint(fault.kind, Style::kBad, colours), fault.message);
  if (fault.block.size() == 3) {
    fmt::print(stderr, "    in thread {} of block ({})\n", fault.thread, fmt::join(fault.block, ", "));
  }
  if (!fault.buffer.empty())
    fmt::print(stderr, "    {}: element {}, at byte {}\n", fault.buffer, static_cast<std::int64_t>(fault.element),
               static_cast<std::int64_t>(fault.address));
  PrintStatement("at", fault.statement, colours);
  if (fault.other.number != fault.statement.number) {
    PrintStatement("and", fault.other, colours);
  } else if (fault.other.number != 0) {
    fmt::print(stderr, "    and the same statement\n");
  }
}

Json ToJson(const RunStatement& s) {
  if (s.number == 0) return Json::Null();
  return Json::Object({{"number", s.number}, {"file", s.file}, {"line", s.line}, {"text", s.text}, {"source", SourceLine(s)}});
}

Json ToJson(const RunFault& f) {
  return Json::Object({{"kind", f.kind},
                       {"name", f.name},
                       {"message", f.message},
                       {"statement", ToJson(f.statement)},
                       {"other", ToJson(f.other)},
                       {"block", Json::Map(f.block, [](std::uint32_t index) { return Json(index); })},
                       {"thread", f.thread},
                       {"buffer", f.buffer},
                       {"address", static_cast<std::int64_t>(f.address)},  // before the first byte: negative
                       {"element", static_cast<std::int64_t>(f.element)}});
}

void Show(Context& context, const RunResult& ran) {
  Table table({{"tensor"}, {"dtype"}, {"shape"}, {"largest", Align::kRight}, {"not finite", Align::kRight}});
  std::vector<Json> tensors;
  for (const RunOutput& output : ran.outputs) {
    const auto dtype = static_cast<runtime::DType>(output.dtype);
    const runtime::DTypeInfo* type = runtime::Find(dtype);
    const Summary summary = type == nullptr ? Summary{} : Summarize(*type, output.bytes);
    table.Add({output.name, std::string(runtime::Name(dtype)), fmt::format("{}", fmt::join(output.shape, "×")),
               summary.known ? fmt::format("{:.4g}", summary.largest) : "-", summary.known ? std::to_string(summary.not_finite) : "-"});
    tensors.push_back(
        Json::Object({{"name", output.name}, {"dtype", runtime::Name(dtype)}, {"largest", summary.largest}, {"not_finite", summary.not_finite}}));
  }
  std::vector<double> times = ran.microseconds;
  std::ranges::sort(times);
  const double median = times.empty() ? 0 : times[times.size() / 2];
  if (context.json()) {
    return context.Print(Json::Object({{"device", ran.device},
                                       {"target", ran.target},
                                       {"finished", ran.finished},
                                       {"microseconds", median},
                                       {"faults", Json::Map(ran.faults, [](const RunFault& f) { return ToJson(f); })},
                                       {"tensors", Json::Array(tensors)}}));
  }
  for (const RunFault& fault : ran.faults) PrintFault(fault, context.colours());
  fmt::print("{} on the {}: {}\n", Paint(ran.target, Style::kBold, context.colours()), ran.device,
             ran.faults.empty()
                 ? Paint("no fault", Style::kGood, context.colours())
                 : Paint(fmt::format("{} fault{}", ran.faults.size(), ran.faults.size() > 1 ? "s" : ""), Style::kBad, context.colours()));
  if (!table.empty()) fmt::print("{}", table.Text(context.colours()));
  if (!times.empty()) fmt::print("median {:.2f} ms of {} launches on this host\n", median / 1000, times.size());
}

}  // namespace

std::expected<void, Error> RunEmulated(Context& context, const RunArguments& given) {
  RunArguments arguments = given;
  std::string& target = arguments.program.target;
  if (target.empty()) target = arguments.device;
  if (arguments.program.local) {
    return std::unexpected(InvalidInput("emulated kernels run in the daemon's workers: leave --local out, and start kilnd with `kiln serve`"));
  }
  auto request = MakeRequest(arguments.program);
  if (!request) return std::unexpected(std::move(request.error()));
  const auto compiled = CompileWithProgress(context, arguments.program, *request, false);
  if (!compiled) return std::unexpected(compiled.error());
  auto artifact = runtime::DecodeArtifact(compiled->artifact);
  if (!artifact) return std::unexpected(ToError(artifact.error()));
  NameParameters(request->module, artifact->launch);
  const auto values = Values::Parse(arguments);
  if (!values) return std::unexpected(values.error());
  KnownNames names;
  names.Add(artifact->launch);
  if (auto known = names.Check(*values); !known) return known;
  auto inputs = Inputs::Make(artifact->launch, *values, arguments.seed);
  if (!inputs) return std::unexpected(std::move(inputs.error()));
  auto client = context.Connect();
  if (!client) return std::unexpected(std::move(client.error()));
  Progress progress(context.terminal.err && !context.json());
  progress.Show(fmt::format("running on {} …", target));
  const auto ran = client->Run({.program = *request,
                                .device = target,
                                .arguments = inputs->arguments,
                                .check = arguments.check,
                                .seed = arguments.schedule,
                                .timeout_seconds = arguments.run_limit,
                                .repeat = static_cast<std::uint32_t>(arguments.repeat.value_or(0))});
  progress.Clear();
  if (!ran) return std::unexpected(ran.error());
  if (!ran->faults.empty()) context.status = 1;
  Show(context, *ran);
  return {};
}

}  // namespace kiln::cli
