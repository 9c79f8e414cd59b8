// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::emulator {

// Calls kiln_emu_access before each load and store of global and shared memory.
void Instrument(llvm::Function& kernel);

}  // namespace kiln::emulator
