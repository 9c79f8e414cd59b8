// SPDX-License-Identifier: Apache-2.0
//
// `kiln devices`: the GPUs of this machine and of the daemon's, and what the latter do at this moment.
#include <fmt/format.h>

#include "clients/cli/commands.h"
#include "clients/cli/devices_text.h"
#include "clients/cli/terminal.h"
#include "clients/runtime/device.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

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

const DeviceState* StateOf(const Client::Result<Stats>& stats, const RemoteDevice& device) {
  if (!stats) return nullptr;
  for (const DeviceStats& one : stats->devices) {
    if (one.name == device.name && one.state) return &*one.state;
  }
  return nullptr;
}

Json ToJson(const RemoteDevice& d, const DeviceState* state) {
  return Json::Object({{"name", d.name},
                       {"target", d.target},
                       {"description", d.description},
                       {"memory_bytes", d.memory_bytes},
                       {"driver", d.driver_version},
                       {"state", state == nullptr ? Json::Null() : StateJson(*state)}});
}

void ShowLocal(const Context& context, const std::vector<runtime::DeviceInfo>& devices) {
  if (devices.empty()) {
    fmt::print("No GPU here: neither libcuda.so.1 nor libamdhip64.so opens a device. Compiling needs none.\n");
    return;
  }
  Table table({{"GPU"}, {"name"}, {"target"}, {"memory", Align::kRight}, {"driver"}});
  for (const auto& d : devices) {
    table.Add({std::to_string(d.index), d.name, d.arch, Bytes(d.memory_bytes), d.driver_version});
  }
  fmt::print("{}", table.Text(context.colours()));
}

void ShowRemote(const Context& context, const std::string& address, const Capabilities& known, const Client::Result<Stats>& stats) {
  Table remote({{"device"}, {"what"}, {"target"}, {"memory", Align::kRight}, {"driver"}});
  for (const RemoteDevice& d : known.devices) {
    remote.Add({d.name, d.description, d.target, d.memory_bytes == 0 ? "" : Bytes(d.memory_bytes), d.driver_version});
  }
  if (!remote.empty()) fmt::print("\n{} runs kernels on\n{}", address, remote.Text(context.colours()));
  for (const std::string& problem : known.gpu_problems) fmt::print("\n{} finds no GPU: {}\n", address, problem);
  if (stats) fmt::print("{}", StatesText(stats->devices, context.colours()));
  else fmt::print("\nwhat its GPUs do now is not shown: {}\n", stats.error().message);
  fmt::print("\n{} compiles for\n", address);
  for (const std::string& target : known.targets) fmt::print("  {}\n", target);
}

void ShowDevices(Context& context) {
  const auto devices = LocalDevices();
  auto client = context.Connect();
  const auto capabilities = client ? client->Capabilities() : std::unexpected(client.error());
  // Only whoever may see what everybody does is told.
  const auto stats = capabilities ? client->Stats(true) : std::unexpected(capabilities.error());
  if (context.json()) {
    if (!capabilities) context.status = 1;
    const auto remote = [&](const RemoteDevice& d) { return ToJson(d, StateOf(stats, d)); };
    return context.Print(
        Json::Object({{"error", capabilities ? Json::Null() : Json(capabilities.error().message)},
                      {"devices", Json::Map(devices, [](const runtime::DeviceInfo& d) { return ToJson(d); })},
                      {"daemon", capabilities ? Json::Map(capabilities->devices, remote) : Json::Null()},
                      {"state_error", stats || !capabilities ? Json::Null() : Json(stats.error().message)},
                      {"targets", capabilities ? Json::Map(capabilities->targets, [](const std::string& t) { return Json(t); }) : Json::Null()}}));
  }
  ShowLocal(context, devices);
  if (!capabilities) return context.Fail(capabilities.error());
  ShowRemote(context, client->address(), *capabilities, stats);
}

}  // namespace

void AddDevices(CLI::App& app, Context& context) {
  app.add_subcommand("devices", "GPUs of this machine, what the daemon's do now, and what it compiles for")->callback([&] { ShowDevices(context); });
}

}  // namespace kiln::cli
