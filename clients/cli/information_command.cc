// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "clients/cli/commands.h"
#include "clients/cli/local.h"
#include "clients/cli/stats_text.h"

namespace kiln::cli {
namespace {

void ShowStats(Context& context) {
  auto client = context.Connect();
  if (!client) return context.Fail(client.error());
  const auto stats = client->Stats();
  if (!stats) return context.Fail(stats.error());
  if (context.json()) return context.Print(ToJson(*stats));
  fmt::print("{}", StatsText(*stats, client->address(), context.colours()));
}

void ShowVersion(Context& context) {
  auto client = context.Connect();
  const auto capabilities = client ? client->Capabilities() : std::unexpected(client.error());
  if (context.json()) {
    return context.Print(Json::Object({{"version", KILN_VERSION},
                                       {"error", capabilities ? Json::Null() : Json(capabilities.error().message)},
                                       {"daemon", capabilities ? Json(capabilities->version) : Json::Null()},
                                       {"compiler", capabilities ? Json(capabilities->compiler) : Json::Null()},
                                       {"ptxas", capabilities ? Json(capabilities->ptxas) : Json::Null()}}));
  }
  fmt::print("kiln {}\n", KILN_VERSION);
  if (!capabilities) {
    fmt::print("kilnd: {}\n", capabilities.error().message);
    return;
  }
  fmt::print("kilnd {} at {}\ncompiler {}\nptxas {}\n", capabilities->version, client->address(), capabilities->compiler,
             capabilities->ptxas.empty() ? "none" : capabilities->ptxas);
}

// kilnd listens where clients of this environment look for it, unless KILN_LISTEN says otherwise. What --address gives comes before both.
void ListenAt(std::string address) {
  const bool given = !address.empty();
  if (const char* named = std::getenv("KILN_ADDRESS"); !given && named != nullptr) address = named;
  if (address.starts_with('/')) address.insert(0, "unix:");
  if (!address.empty()) ::setenv("KILN_LISTEN", address.c_str(), given ? 1 : 0);
}

// Becomes kilnd.
void Serve(Context& context, std::vector<std::string> arguments) {
  ListenAt(context.connect.address);
  std::string program = Beside("kilnd");
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  context.Fail(
      {.code = ErrorCode::kUnavailable, .message = fmt::format("cannot run {}: {}; kilnd belongs beside kiln", program, std::strerror(errno))});
}

}  // namespace

void AddInformation(CLI::App& app, Context& context) {
  app.add_subcommand("stats", "Requests, hits, workers and the tiers of the cache")->callback([&] { ShowStats(context); });
  AddDevices(app, context);
  app.add_subcommand("version", "Versions of this command, the daemon and its compiler")->callback([&] { ShowVersion(context); });
}

void AddServe(CLI::App& app, Context& context) {
  CLI::App& sub = *app.add_subcommand("serve", "Start the daemon here, at --address or $KILN_ADDRESS; takes kilnd's options (`kilnd --help`)");
  sub.prefix_command()->fallthrough(false);
  sub.set_help_flag();
  sub.callback([&sub, &context] { Serve(context, sub.remaining()); });
}

}  // namespace kiln::cli
