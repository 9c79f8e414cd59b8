// SPDX-License-Identifier: Apache-2.0
//
// Products with a sparse A where no instruction takes one.
#pragma once

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Makes the product one of a dense tile in shared memory, which the returned loop fills from what A keeps and the metadata. The tile is a new buffer
// that nobody has declared yet.
ir::For MakeDense(ir::Module& module, ir::Gemm& gemm);

}  // namespace kiln::compiler
