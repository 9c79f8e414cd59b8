// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::ir {

// Fails where `module` holds what only passes make: layouts, plans, offsets, asynchronous groups.
Result RefuseDecisions(const Module& module, Diagnostics& diagnostics);

}  // namespace kiln::ir
