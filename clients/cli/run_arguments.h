// SPDX-License-Identifier: Apache-2.0
//
// What `kiln run` is told, and what it makes of it for a kernel's parameters.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "clients/cli/sources.h"
#include "clients/runtime/artifact.h"
#include "clients/runtime/error.h"

namespace kiln::cli {

struct RunArguments {
  CompileArguments program;
  std::vector<std::string> dims;
  std::vector<std::string> scalars;
  std::string device = "0";
  std::optional<int> repeat;
  std::uint64_t seed = 1;
  // Of emulated runs.
  bool check = false;
  std::uint64_t schedule = 0;
  double run_limit = 0;

  bool emulated() const { return device.starts_with("emu:") || program.target.starts_with("emu:"); }
  int index() const;  // of a GPU; -1: there is none of that name
};

using Values = std::map<std::string, std::int64_t>;

Error InvalidInput(std::string message);
Error ToError(const runtime::Error& error);

// "M=1000"
std::expected<Values, Error> ParseValues(const std::vector<std::string>& words);

// Of the value given by the parameter's name; else 1.
std::int64_t ScalarOf(const runtime::LaunchParam& param, const Values& values);

std::expected<std::vector<std::int64_t>, Error> ShapeOf(const runtime::LaunchInfo& info, const runtime::LaunchParam& param,
                                                        const Values& sizes);

// On the daemon's emulator.
std::expected<void, Error> RunEmulated(Context& context, const RunArguments& arguments);

}  // namespace kiln::cli
