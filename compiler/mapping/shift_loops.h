// SPDX-License-Identifier: Apache-2.0
//
// A parallel loop over a part of a fragment, of which only the program's run says where it begins, becomes a loop over the whole fragment whose
// body is for the iterations of that part. Every thread then finds the elements of its iterations in its own registers. What an iteration does where
// its element lies outside of the fragment, as a mask may have it, is no such part: those loops stay as they are.
#pragma once

#include "ir/module.h"

namespace kiln::compiler {

// Needs: loops without layouts.
void ShiftLoops(ir::Module& module, ir::Block& block);

}  // namespace kiln::compiler
