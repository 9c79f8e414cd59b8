// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "clients/runtime/artifact.h"

namespace kiln {

// An artifact is shared by all programs that differ in names only: gives its parameters, symbols and workspaces those of this program, for
// error texts and reports. `module`: as in CompileRequest; empty or unreadable: they keep what they have, and a number where that is nothing.
void NameParameters(std::string_view module, runtime::LaunchInfo& launch);

}  // namespace kiln
