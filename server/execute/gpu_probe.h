// SPDX-License-Identifier: Apache-2.0
//
// A kernel of our own: what a driver loads only when it is used has then been loaded, and it is known whether the driver works.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "clients/runtime/device.h"

namespace kiln::server {

// Copies some words on the device, from PTX that the driver compiles, and looks at them: alone, and in clusters where the device has
// them. Runs of another `number` have other code and data. The error says what fails. For CUDA; HIP devices only allocate and copy.
std::expected<void, std::string> ProbeGpu(const std::shared_ptr<const runtime::Device>& device, int number);

}  // namespace kiln::server
