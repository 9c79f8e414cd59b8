// SPDX-License-Identifier: Apache-2.0
//
// Groups of asynchronous copies (cp.async), for which threads wait together.
#pragma once

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

bool IsAsync(const ir::Copy& copy);

// Closes the groups of the async copies that no pipeline moved. Adjacent copies to one buffer form a group. Synchronize waits for a group where
// its buffer is first used, while later groups are still under way.
void CloseGroups(ir::Block& block);

}  // namespace kiln::compiler
