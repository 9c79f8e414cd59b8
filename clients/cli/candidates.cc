// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/candidates.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "clients/cli/sources.h"
#include "clients/common/run_names.h"
#include "clients/runtime/bind.h"

namespace kiln::cli {
namespace {

constexpr std::size_t kMostCandidates = 4096;

// A size that programs leave open, as ${NAME}.
struct Open {
  std::string name;
  std::vector<std::string> values;
};

// "block_m=64,128"
std::expected<Open, Error> ParseOpen(const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == 0 || at == std::string::npos || at + 1 == text.size()) {
    return std::unexpected(InvalidInput("--space " + text + ": write NAME=VALUE,VALUE,…, as in block_m=64,128"));
  }
  Open open{.name = text.substr(0, at), .values = {}};
  for (std::size_t begin = at + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) return std::unexpected(InvalidInput("--space " + text + ": a value is empty"));
    open.values.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return open;
}

// False: the text does not name it.
bool Fill(std::string& text, const std::string& name, const std::string& value) {
  const std::string place = "${" + name + "}";
  bool found = false;
  for (std::size_t at = text.find(place); at != std::string::npos; at = text.find(place, at + value.size())) {
    text.replace(at, place.size(), value);
    found = true;
  }
  return found;
}

}  // namespace

std::expected<std::vector<Candidate>, Error> CandidatesOf(const std::vector<std::string>& files, const std::vector<std::string>& space) {
  std::vector<Candidate> candidates;
  for (const std::string& file : files) {
    auto text = ReadFile(file);
    if (!text) return std::unexpected(std::move(text.error()));
    candidates.push_back({files.size() > 1 ? std::filesystem::path(file).filename().string() : "", std::move(*text)});
  }
  for (const std::string& given : space) {
    const auto open = ParseOpen(given);
    if (!open) return std::unexpected(open.error());
    if (candidates.size() * open->values.size() > kMostCandidates) {
      return std::unexpected(InvalidInput(fmt::format("more than {} candidates: name fewer values with --space", kMostCandidates)));
    }
    std::vector<Candidate> filled;
    for (const Candidate& candidate : candidates) {
      for (const std::string& value : open->values) {
        filled.push_back({fmt::format("{}{}{}={}", candidate.label, candidate.label.empty() ? "" : " ", open->name, value), candidate.module});
        if (Fill(filled.back().module, open->name, value)) continue;
        return std::unexpected(InvalidInput(fmt::format("no program has the open size ${{{}}} of --space {}", open->name, given)));
      }
    }
    candidates = std::move(filled);
  }
  if (candidates.size() == 1 && candidates.front().label.empty()) candidates.front().label = files.front();
  return candidates;
}

const std::map<std::string, TuneMode>& TuneModes() {
  static const std::map<std::string, TuneMode> modes = {
      {"wait", TuneMode::kWait}, {"off", TuneMode::kOff}, {"model", TuneMode::kModel}, {"background", TuneMode::kBackground}};
  return modes;
}

std::expected<std::vector<TuneArgument>, Error> RecipesFor(Client& client, const CompileRequest& program, const RunArguments& run) {
  const auto compiled = client.Compile(program);
  if (!compiled) return std::unexpected(compiled.error());
  auto artifact = runtime::DecodeArtifact(compiled->artifact);
  if (!artifact) return std::unexpected(ToError(artifact.error()));
  NameParameters(program.module, artifact->launch);
  const auto values = Values::Parse(run);
  if (!values) return std::unexpected(values.error());
  KnownNames names;
  names.Add(artifact->launch);
  if (auto known = names.Check(*values); !known) return std::unexpected(std::move(known.error()));
  std::vector<TuneArgument> arguments;
  for (const runtime::LaunchParam& param : artifact->launch.params) {
    if (param.output) continue;
    if (!param.tensor) {
      const auto scalar = ScalarOf(param, *values);
      if (!scalar) return std::unexpected(scalar.error());
      std::visit([&](auto number) { arguments.emplace_back(number); }, *scalar);
      continue;
    }
    auto shape = ShapeOf(artifact->launch, param, *values);
    if (!shape) return std::unexpected(std::move(shape.error()));
    arguments.emplace_back(Recipe{.dtype = static_cast<DType>(param.dtype), .shape = std::move(*shape)});
  }
  return arguments;
}

}  // namespace kiln::cli
