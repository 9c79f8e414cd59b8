// SPDX-License-Identifier: Apache-2.0
//
// Programs that do the same, for `plan`, `tune` and `compile`: files, with every combination of the sizes that they leave open as ${NAME}.
#pragma once

#include <expected>
#include <map>
#include <string>
#include <vector>

#include "clients/cli/run_arguments.h"
#include "clients/cpp/tune.h"

namespace kiln::cli {

struct Candidate {
  std::string label;
  std::string module;
};

// `space`: "block_m=64,128".
std::expected<std::vector<Candidate>, Error> CandidatesOf(const std::vector<std::string>& files, const std::vector<std::string>& space);

// By their names, for options.
const std::map<std::string, TuneMode>& TuneModes();

// Recipes for the parameters of a program that are no outputs. The program is compiled for that.
std::expected<std::vector<TuneArgument>, Error> RecipesFor(Client& client, const CompileRequest& program, const RunArguments& run);

}  // namespace kiln::cli
