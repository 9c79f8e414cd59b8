// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "compiler/analysis/threads/divergence.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Whether no two iterations of a parallel loop store different elements of one byte of a tensor for which `is_packed` holds, whose elements are
// halves of bytes: all stores are to elements of even numbers, or all to those of odd ones, or each iteration stores to bytes of its own. What
// differs between threads differs between iterations, for they run in different ones.
bool StoresAlone(const ir::Module& module, const ir::For& loop, const Divergence& divergence, const std::function<bool(ir::BufferId)>& is_packed);

}  // namespace kiln::compiler
