// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "clients/runtime/artifact.h"

namespace kiln {

// All programs that differ only in names share an artifact. This gives its parameters, symbols and workspaces the names of this program,
// for error texts and reports. `module`: as in CompileRequest. If it is empty or unreadable, they keep their names, and those without one
// get a number.
void NameParameters(std::string_view module, runtime::LaunchInfo& launch);

}  // namespace kiln
