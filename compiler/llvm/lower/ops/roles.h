// SPDX-License-Identifier: Apache-2.0
//
// A kernel whose threads have two roles: the body is lowered once for each, the producers' part of it as
// compiler/analysis/producer_slice.h cuts it.
#pragma once

#include <functional>

#include "compiler/llvm/lower/ops/rings.h"
#include "compiler/llvm/lower/ops/tensor_copies.h"

namespace kiln::llvm_ir {

// `produce` and `compute` lower what the threads of each role run.
void LowerRoles(KernelContext& context, Rings& rings, TensorCopies& copies, const std::function<void()>& produce,
                const std::function<void()>& compute);

}  // namespace kiln::llvm_ir
