// SPDX-License-Identifier: Apache-2.0
//
// What a GPU does at this moment, whoever makes it do so. What its driver does not tell is absent.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/runtime/driver.h"

namespace kiln::runtime {

struct GpuClocks {
  std::optional<std::uint32_t> compute_mhz;  // of the multiprocessors
  std::optional<std::uint32_t> memory_mhz;
};

struct GpuProcess {
  std::uint32_t pid = 0;  // as the driver numbers processes: in a container, perhaps not as the container does
  std::optional<std::uint64_t> memory_bytes;
};

struct GpuState {
  GpuClocks clocks, most;  // now, and at most
  std::optional<double> celsius;
  std::optional<double> watts, watts_limit;
  std::optional<std::uint64_t> memory_used_bytes;
  std::optional<std::uint32_t> busy_percent;  // of the last moments, with any kernel
  std::optional<double> joules;               // since the driver started
  std::optional<std::vector<GpuProcess>> processes;
};

// Of one GPU. Not synchronised.
class Sensor {
 public:
  virtual ~Sensor() = default;
  virtual GpuState Read() const = 0;
  virtual GpuClocks Clocks() const = 0;
  // A counter of all the energy that the GPU has taken, which moves some dozens of times a second. The error says why there is none.
  virtual std::expected<std::uint64_t, std::string> Millijoules() const = 0;
};

// Where it looks; tests put others in their place.
struct SensorPlaces {
  Loader loader = Loader::System();
  std::string nvml = "libnvidia-ml.so.1";
  std::filesystem::path pci = "/sys/bus/pci/devices";
  std::filesystem::path kfd = "/sys/devices/virtual/kfd/kfd";  // AMD's driver for computing
};

// Starts what OpenSensor needs of the drivers of that kind, where a process may do so only at its beginning. Where it fails, OpenSensor says why.
void StartSensors(DriverKind kind, const SensorPlaces& places = {});

// Of the GPU at that place of the bus (DeviceInfo::pci). The error says what is missing.
std::expected<std::unique_ptr<Sensor>, std::string> OpenSensor(DriverKind kind, const std::string& pci, const SensorPlaces& places = {});

}  // namespace kiln::runtime
