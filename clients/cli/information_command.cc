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
#include "clients/runtime/device.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

void ShowStats(Context& context) {
  auto client = context.Connect();
  if (!client) return context.Fail(client.error());
  const auto stats = client->Stats();
  if (!stats) return context.Fail(stats.error());
  if (context.json()) return context.Print(ToJson(*stats));
  fmt::print("{}", StatsText(*stats, client->address(), context.colours()));
}

std::vector<runtime::DeviceInfo> LocalDevices() {
  std::vector<runtime::DeviceInfo> all;
  for (const auto kind : {runtime::DriverKind::kCuda, runtime::DriverKind::kHip}) {
    const auto driver = runtime::Driver::Open(kind);
    if (!driver) continue;
    if (auto devices = runtime::ListDevices(**driver)) all.insert(all.end(), devices->begin(), devices->end());
  }
  return all;
}

Json ToJson(const runtime::DeviceInfo& d) {
  return Json::Object(
      {{"index", std::int64_t{d.index}}, {"name", d.name}, {"target", d.arch}, {"memory_bytes", d.memory_bytes}, {"driver", d.driver_version}});
}

Json ToJson(const RemoteDevice& d) {
  return Json::Object(
      {{"name", d.name}, {"target", d.target}, {"description", d.description}, {"memory_bytes", d.memory_bytes}, {"driver", d.driver_version}});
}

void ShowDevices(Context& context) {
  const auto devices = LocalDevices();
  auto client = context.Connect();
  const auto capabilities = client ? client->Capabilities() : std::unexpected(client.error());
  if (context.json()) {
    if (!capabilities) context.status = 1;
    return context.Print(
        Json::Object({{"error", capabilities ? Json::Null() : Json(capabilities.error().message)},
                      {"devices", Json::Map(devices, [](const runtime::DeviceInfo& d) { return ToJson(d); })},
                      {"daemon", capabilities ? Json::Map(capabilities->devices, [](const RemoteDevice& d) { return ToJson(d); }) : Json::Null()},
                      {"targets", capabilities ? Json::Map(capabilities->targets, [](const std::string& t) { return Json(t); }) : Json::Null()}}));
  }
  Table table({{"GPU"}, {"name"}, {"target"}, {"memory", Align::kRight}, {"driver"}});
  for (const auto& d : devices) {
    table.Add({std::to_string(d.index), d.name, d.arch, Bytes(d.memory_bytes), d.driver_version});
  }
  if (devices.empty()) {
    fmt::print("No GPU here: neither libcuda.so.1 nor libamdhip64.so opens a device. Compiling needs none.\n");
  } else {
    fmt::print("{}", table.Text(context.colours()));
  }
  if (!capabilities) return context.Fail(capabilities.error());
  Table remote({{"device"}, {"what"}, {"target"}, {"memory", Align::kRight}, {"driver"}});
  for (const RemoteDevice& d : capabilities->devices) {
    remote.Add({d.name, d.description, d.target, d.memory_bytes == 0 ? "" : Bytes(d.memory_bytes), d.driver_version});
  }
  if (!remote.empty()) fmt::print("\n{} runs kernels on\n{}", client->address(), remote.Text(context.colours()));
  for (const std::string& problem : capabilities->gpu_problems) fmt::print("\n{} finds no GPU: {}\n", client->address(), problem);
  fmt::print("\n{} compiles for\n", client->address());
  for (const std::string& target : capabilities->targets) fmt::print("  {}\n", target);
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
  app.add_subcommand("devices", "GPUs of this machine, and what the daemon compiles for")->callback([&] { ShowDevices(context); });
  app.add_subcommand("version", "Versions of this command, the daemon and its compiler")->callback([&] { ShowVersion(context); });
}

void AddServe(CLI::App& app, Context& context) {
  CLI::App& sub = *app.add_subcommand("serve", "Start the daemon here, at --address or $KILN_ADDRESS; takes kilnd's options (`kilnd --help`)");
  sub.prefix_command()->fallthrough(false);
  sub.set_help_flag();
  sub.callback([&sub, &context] { Serve(context, sub.remaining()); });
}

}  // namespace kiln::cli
