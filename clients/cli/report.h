// SPDX-License-Identifier: Apache-2.0
//
// What the compiler decided, for people and for machines.
#pragma once

#include <string>

#include "clients/cli/json.h"
#include "clients/cpp/client.h"

namespace kiln::cli {

// Resources of each kernel in one line each; empty where nothing is known.
std::string ResourcesText(const Compiled& compiled, bool colours);

// Decisions by pass, the map of the shared memory, resources.
std::string ReportText(const Compiled& compiled, bool colours);
std::string TimingsText(const Compiled& compiled, bool colours);

Json ToJson(const Compiled& compiled);  // without the code
Json ReportJson(const Compiled& compiled);

}  // namespace kiln::cli
