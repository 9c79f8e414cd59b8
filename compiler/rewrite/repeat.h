// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The statements once more, with variables of their own for those that they bind.
ir::Block Repeated(ir::Module& module, const ir::Block& block);

}  // namespace kiln::compiler
