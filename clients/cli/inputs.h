// SPDX-License-Identifier: Apache-2.0
//
// What a kernel is run with on a device of the daemon.
#pragma once

#include <deque>
#include <expected>
#include <string>
#include <vector>

#include "clients/cli/run_arguments.h"
#include "clients/cpp/run.h"

namespace kiln::cli {

// Random tensors, in memory of their own or of each other, and the scalars that were given. Only moved: the arguments refer to the data,
// which stays where it is.
struct Inputs {
  std::deque<std::string> data;
  std::vector<HostArgument> arguments;

  Inputs() = default;
  Inputs(Inputs&&) = default;
  Inputs& operator=(Inputs&&) = default;

  static std::expected<Inputs, Error> Make(const runtime::LaunchInfo& info, const Values& values, std::uint64_t seed);
};

}  // namespace kiln::cli
