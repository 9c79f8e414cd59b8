// SPDX-License-Identifier: Apache-2.0
//
// A product whose sum was set to zero just before starts from zero itself: fill c = 0; gemm a, b -> c    →    gemm a, b -> c clear
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Needs: masks removed where they hold (loops/split_ranges.h), for what remains of a mask that a sum starts with may be zeros.
void ClearSums(ir::Module& module, ir::Kernel& kernel, const Context& context);

}  // namespace kiln::compiler
