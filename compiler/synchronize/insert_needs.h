// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "compiler/synchronize/pending.h"
#include "ir/module.h"

namespace kiln::compiler {

// Puts what each statement needs in front of it, in the block and those within it. `by_memory`: only barriers with kGlobal order global
// memory; else all do.
void InsertNeeds(ir::Kernel& kernel, ir::Block& block, const std::map<const ir::Stmt*, Need>& needs, bool by_memory);

}  // namespace kiln::compiler
