// SPDX-License-Identifier: Apache-2.0
//
// AMD's GPUs, by what the kernel's driver tells in files: "amdgpu" in the kernel's driver documentation (thermal and power, hwmon), and the
// processes of KFD. It has no counter of energy there.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "clients/runtime/sensors/sensor.h"

namespace kiln::runtime {

std::expected<std::unique_ptr<Sensor>, std::string> OpenAmdFiles(const std::string& pci, const SensorPlaces& places);

}  // namespace kiln::runtime
