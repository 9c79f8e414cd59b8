// SPDX-License-Identifier: Apache-2.0
//
// Copies and ops of the family elementwise become parallel loops, except the copies that later passes want whole: loads from global to shared
// memory and tensor copies. Both sides of each reduction become fragments. What each thread keeps to itself is done by loops that are unrolled,
// so that arrays become registers, unless they are more elements than a thread has registers for. Tiles in shared memory that a function of another
// language gets lie there by rows.
#pragma once

#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::compiler {

void Expand(ir::Module& module, const target::Target& target, ir::Block& block);

}  // namespace kiln::compiler
