// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "server/config/config.h"

namespace kiln::server {

// What would keep a kilnd with these settings from serving as they say: files that cannot be read, run or written, certificates and
// tokens that are no such. Changes nothing.
std::vector<std::string> ProblemsOf(const Config& config);

// Prints the settings on stdout and the problems on stderr; the status to exit with, 0 or 2.
int CheckConfig(const Config& config);

}  // namespace kiln::server
