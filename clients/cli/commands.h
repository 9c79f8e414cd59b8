// SPDX-License-Identifier: Apache-2.0
//
// The commands. Each adds itself to the application and returns through `Context::status`.
#pragma once

#include <chrono>
#include <cstdio>
#include <expected>
#include <limits>
#include <string>

#include <CLI/CLI.hpp>

#include "clients/cli/json.h"
#include "clients/cli/terminal.h"
#include "clients/cpp/client.h"

namespace kiln::cli {

// What all commands share.
struct Context {
  ConnectOptions connect;
  double timeout_seconds = 300;  // more than none, and as many as somebody likes to say
  bool json_wanted = false;
  bool text_wanted = false;
  Terminal terminal = Terminal::Detect();
  std::FILE* report = stdout;
  int status = 0;

  // What does not go to a terminal is read by machines, unless a person says otherwise.
  bool json() const { return json_wanted || (!terminal.out_is_terminal && !text_wanted); }
  bool colours() const { return terminal.out; }
  std::chrono::milliseconds timeout() const;  // a year at most
  std::expected<Client, Error> Connect() const;
  // Reports go to stderr where the command is to write to `file` and that is stdout. Empty: it writes to none.
  void LeaveStdoutTo(const std::string& file);
  void Print(const Json& value) const;

  // Says what went wrong and what to do next, on stderr (as JSON with the reports where that is wanted); sets the status.
  void Fail(const Error& error);
};

// Numbers from `least` to `most`; without them those above 0. CLI11's own checks take nan for one of any range.
CLI::Validator Seconds(double least = 0, double most = std::numeric_limits<double>::infinity());

void AddCompile(CLI::App& app, Context& context);
void AddPrecompile(CLI::App& app, Context& context);
void AddExplain(CLI::App& app, Context& context);
void AddRun(CLI::App& app, Context& context);
void AddBench(CLI::App& app, Context& context);
void AddCache(CLI::App& app, Context& context);
void AddInformation(CLI::App& app, Context& context);  // stats, devices, version
void AddTop(CLI::App& app, Context& context);
void AddServe(CLI::App& app, Context& context);

}  // namespace kiln::cli
