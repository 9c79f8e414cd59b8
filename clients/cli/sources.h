// SPDX-License-Identifier: Apache-2.0
//
// What `compile`, `explain` and `run` share: a program from a file and the ways to compile it.
#pragma once

#include <expected>
#include <string>

#include <CLI/CLI.hpp>

#include "clients/cli/commands.h"

namespace kiln::cli {

Error InvalidInput(std::string message);

std::expected<std::string, Error> ReadFile(const std::string& path);  // "-": stdin
std::expected<void, Error> WriteFile(const std::string& path, std::string_view bytes);

struct CompileArguments {
  std::string file;
  std::string target;
  std::string reproducer;
  Options options;
  std::string priority = "interactive";
  bool refresh = false;
  bool durable = false;
  bool local = false;
  bool raw = false;  // with --local
  std::string worker;
};

// The arguments that say how a program is compiled.
void AddOptions(CLI::App& command, Options& options);

// These, and those that name a program and say where it is compiled.
void AddProgram(CLI::App& command, CompileArguments& arguments);

// The request that the arguments describe; of a reproducer where one is named.
std::expected<CompileRequest, Error> MakeRequest(const CompileArguments& arguments);

// Through the daemon, or in a worker of its own; `fall_back`: in a worker where there is no daemon. Shows the stages.
std::expected<Compiled, Error> CompileWithProgress(Context& context, const CompileArguments& arguments, const CompileRequest& request,
                                                   bool fall_back);

std::string_view Name(Origin origin);
std::string_view Name(CodeKind kind);

}  // namespace kiln::cli
