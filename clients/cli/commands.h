// SPDX-License-Identifier: Apache-2.0
//
// The commands. Each adds itself to the application and returns through `Context::status`.
#pragma once

#include <chrono>
#include <cstdio>
#include <expected>
#include <limits>
#include <string>
#include <vector>

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
  std::vector<std::string> words;  // of the command line
  int status = 0;

  // Output that does not go to a terminal is for machines, unless an option says otherwise.
  bool json() const { return json_wanted || (!terminal.out_is_terminal && !text_wanted); }
  bool colours() const { return terminal.out; }
  std::chrono::milliseconds timeout() const;  // a year at most
  std::expected<Client, Error> Connect() const;
  // Reports go to stderr if the command writes to `file` and `file` is stdout. Empty: the command writes to no file.
  void LeaveStdoutTo(const std::string& file);
  void LeaveStdout();  // reports go to stderr
  void Print(const Json& value) const;

  // Says on stderr what went wrong and what to do next (as JSON with the reports, if that is wanted); sets the status.
  void Fail(const Error& error);
};

// Accepts numbers from `least` to `most`; without bounds, those above 0. CLI11's own range checks accept nan.
CLI::Validator Seconds(double least = 0, double most = std::numeric_limits<double>::infinity());

void AddCompile(CLI::App& app, Context& context);
void AddPrecompile(CLI::App& app, Context& context);
void AddRecord(CLI::App& app, Context& context);
void AddManifest(CLI::App& app, Context& context);
void AddExplain(CLI::App& app, Context& context);
void AddRun(CLI::App& app, Context& context);
void AddTune(CLI::App& app, Context& context);
void AddPlan(CLI::App& app, Context& context);
void AddBench(CLI::App& app, Context& context);
void AddCache(CLI::App& app, Context& context);
void AddInformation(CLI::App& app, Context& context);  // stats, devices, version
void AddDevices(CLI::App& app, Context& context);
void AddTop(CLI::App& app, Context& context);
void AddServe(CLI::App& app, Context& context);

}  // namespace kiln::cli
