// SPDX-License-Identifier: Apache-2.0
//
// Copies and ops of the family elementwise become parallel loops, except the copies that later passes want whole: loads from global to shared
// memory and tensor copies. Both sides of each reduction become fragments.
#pragma once

#include "ir/module.h"

namespace kiln::compiler {

void Expand(ir::Module& module, ir::Block& block);

}  // namespace kiln::compiler
