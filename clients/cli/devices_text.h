// SPDX-License-Identifier: Apache-2.0
//
// What the daemon's GPUs do at this moment, in words.
#pragma once

#include <string>
#include <vector>

#include "clients/cli/json.h"
#include "clients/cpp/client.h"

namespace kiln::cli {

Json StateJson(const DeviceState& state);

// A table of the GPUs that there is something to say of, the processes on them, and why nothing is known of others. Empty: there are no GPUs.
std::string StatesText(const std::vector<DeviceStats>& devices, bool colours);

}  // namespace kiln::cli
