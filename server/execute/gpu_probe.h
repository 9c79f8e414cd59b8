// SPDX-License-Identifier: Apache-2.0
//
// Runs a kernel of our own: afterwards the driver has loaded everything that it loads on first use, and it is known whether it works.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "clients/runtime/device.h"

namespace kiln::server {

// Copies some words on the device with PTX that the driver compiles, and checks the result: once alone, and in clusters if the device has
// them. Runs with different `number`s have different code and data. The error says what fails. For CUDA; on HIP devices it only allocates
// and copies.
std::expected<void, std::string> ProbeGpu(const std::shared_ptr<const runtime::Device>& device, int number);

}  // namespace kiln::server
