// SPDX-License-Identifier: Apache-2.0
//
// What a kernel's launches take of energy. A GPU's counter moves some dozens of times a second, so that it says nothing of one launch. The device
// launches the kernel without a pause from one movement of the counter to another; what was counted meanwhile is divided by the launches.
#pragma once

#include <chrono>
#include <expected>
#include <span>
#include <string>

#include "cache/clock.h"
#include "clients/runtime/kernel.h"
#include "clients/runtime/sensors/sensor.h"
#include "kiln/v1/run.pb.h"

namespace kiln::server {

// Takes `span` at least, and somewhat longer. The outer error is the kernel's or the driver's; the inner one says why nothing can be told.
runtime::Result<std::expected<v1::LaunchEnergy, std::string>> MeasureEnergy(runtime::Kernel& kernel, std::span<const runtime::Arg> args,
                                                                            const runtime::Sensor& sensor, const cache::Clock& clock,
                                                                            std::chrono::duration<double> span);

}  // namespace kiln::server
