// SPDX-License-Identifier: Apache-2.0
#include <expected>
#include <map>
#include <memory>
#include <string>

#include "clients/runtime/sensors/sensor.h"
#include "server/execute/device_worker.h"
#include "server/system/utf8.h"

namespace kiln::server {
namespace {

constexpr runtime::DriverKind kDrivers[] = {runtime::DriverKind::kCuda, runtime::DriverKind::kHip};

v1::DeviceState Described(const runtime::GpuState& state) {
  v1::DeviceState to;
  if (state.clocks.compute_mhz) to.set_compute_mhz(*state.clocks.compute_mhz);
  if (state.clocks.memory_mhz) to.set_memory_mhz(*state.clocks.memory_mhz);
  if (state.most.compute_mhz) to.set_most_compute_mhz(*state.most.compute_mhz);
  if (state.most.memory_mhz) to.set_most_memory_mhz(*state.most.memory_mhz);
  if (state.celsius) to.set_celsius(*state.celsius);
  if (state.watts) to.set_watts(*state.watts);
  if (state.watts_limit) to.set_watts_limit(*state.watts_limit);
  if (state.memory_used_bytes) to.set_memory_used_bytes(*state.memory_used_bytes);
  if (state.busy_percent) to.set_busy_percent(*state.busy_percent);
  if (state.joules) to.set_joules(*state.joules);
  to.set_knows_processes(state.processes.has_value());
  if (!state.processes) return to;
  for (const runtime::GpuProcess& process : *state.processes) {
    v1::DeviceProcess& said = *to.add_processes();
    said.set_pid(process.pid);
    if (process.memory_bytes) said.set_memory_bytes(*process.memory_bytes);
  }
  return to;
}

// Runs nothing.
class SensorDevice final : public WorkerProgram::Device {
 public:
  void Start(std::string_view) override {
    for (const auto kind : kDrivers) runtime::StartSensors(kind);
  }
  v1::DeviceList List() override { return {}; }
  v1::DeviceResult Run(const v1::DeviceRun&, int, const WorkerProgram::OnStage&) override { return RunsNothing(); }
  v1::DeviceResult Measure(const v1::DeviceMeasure&, int, const WorkerProgram::OnStage&) override { return RunsNothing(); }

  v1::DeviceStates Sense(const v1::DeviceSense& which) override {
    v1::DeviceStates states;
    for (const v1::DeviceInfo& device : which.devices()) *states.add_states() = StateOf(device);
    return states;
  }

 private:
  using Opened = std::expected<std::unique_ptr<runtime::Sensor>, std::string>;

  static v1::DeviceResult RunsNothing() {
    v1::DeviceResult result;
    result.set_refusal("this worker runs nothing");
    return result;
  }

  v1::DeviceState StateOf(const v1::DeviceInfo& device) {
    const auto kind = device.name().starts_with("hip:") ? runtime::DriverKind::kHip : runtime::DriverKind::kCuda;
    const auto [at, is_new] = sensors_.try_emplace(device.name(), std::unexpected(std::string()));
    if (is_new || !at->second) at->second = runtime::OpenSensor(kind, device.pci());
    if (at->second) return Described((*at->second)->Read());
    v1::DeviceState state;
    state.set_problem(Utf8(at->second.error()));
    return state;
  }

  std::map<std::string, Opened> sensors_;  // by the device's name
};

}  // namespace

std::unique_ptr<WorkerProgram::Device> MakeSensorDevice() { return std::make_unique<SensorDevice>(); }

}  // namespace kiln::server
