// SPDX-License-Identifier: Apache-2.0
//
// What `kiln run` is told, and what it makes of it for a kernel's parameters.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "clients/cli/sources.h"
#include "clients/runtime/artifact.h"
#include "clients/runtime/error.h"

namespace kiln::cli {

struct RunArguments {
  CompileArguments program;
  std::vector<std::string> dims;
  std::vector<std::string> scalars;
  std::vector<std::string> shares;
  std::string device = "0";
  std::optional<int> repeat;
  std::uint64_t seed = 1;
  // Of emulated runs.
  bool check = false;
  std::uint64_t schedule = 0;
  double run_limit = 0;

  bool emulated() const { return device.starts_with("emu:") || program.target.starts_with("emu:"); }
  int index() const;  // of a GPU; -1: there is none of that name
  // Checks that no option was given which runs on this host's GPUs do not support.
  std::expected<void, Error> CheckForGpu() const;
};

Error ToError(const runtime::Error& error);

// Whose memory a tensor lies in, and how many of its own elements from the beginning.
struct Share {
  std::string of;
  std::uint64_t elements = 0;
};

// Reads "M=1000" for dimensions and scalar parameters, and "B=A+1" for tensors, by name.
struct Values {
  std::map<std::string, std::int64_t> dims;
  std::map<std::string, Share> shares;
  std::map<std::string, std::string> scalars;  // a parameter's type says what its text means

  static std::expected<Values, Error> Parse(const RunArguments& arguments);
};

// The names that programs give dimensions and scalar parameters.
class KnownNames {
 public:
  void Add(const runtime::LaunchInfo& info);

  // Names a given value that matches no program, and the names that exist.
  std::expected<void, Error> Check(const Values& values) const;

 private:
  std::vector<std::string> dims_;
  std::vector<std::string> scalars_;
};

// The value given by the parameter's name; 1 if none was given.
using Scalar = std::variant<std::int64_t, double>;
std::expected<Scalar, Error> ScalarOf(const runtime::LaunchParam& param, const Values& values);

std::expected<std::vector<std::int64_t>, Error> ShapeOf(const runtime::LaunchInfo& info, const runtime::LaunchParam& param, const Values& values);

// On the daemon's emulator.
std::expected<void, Error> RunEmulated(Context& context, const RunArguments& arguments);

}  // namespace kiln::cli
