// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's GPUs, through NVML. Prototypes and constants follow NVIDIA's "NVML API Reference Guide".
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "clients/runtime/sensors/sensor.h"

namespace kiln::runtime {

void StartNvml(const SensorPlaces& places);
std::expected<std::unique_ptr<Sensor>, std::string> OpenNvml(const std::string& pci, const SensorPlaces& places);

}  // namespace kiln::runtime
