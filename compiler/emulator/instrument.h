// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/llvm/llvm_headers.h"

namespace kiln::emulator {

// Calls kiln_emu_access before each load and store of global and shared memory, and kiln_emu_wgmma_touch before each instruction that
// computes with a register that wgmma may still write.
void Instrument(llvm::Function& kernel);

}  // namespace kiln::emulator
