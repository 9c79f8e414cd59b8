// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/sensors/sensor.h"

#include "clients/runtime/sensors/amd_files.h"
#include "clients/runtime/sensors/nvml.h"

namespace kiln::runtime {

std::expected<std::unique_ptr<Sensor>, std::string> OpenSensor(DriverKind kind, const std::string& pci, const SensorPlaces& places) {
  if (pci.empty()) return std::unexpected("the driver does not say where on the bus the GPU is");
  return kind == DriverKind::kCuda ? OpenNvml(pci, places) : OpenAmdFiles(pci, places);
}

void StartSensors(DriverKind kind, const SensorPlaces& places) {
  if (kind == DriverKind::kCuda) StartNvml(places);
}

}  // namespace kiln::runtime
