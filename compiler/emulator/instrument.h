// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <set>

#include "compiler/llvm/llvm_headers.h"

namespace kiln::emulator {

// Calls kiln_emu_access before each load and store of global and shared memory, and kiln_emu_wgmma_touch before each instruction that
// computes with a register that wgmma may still write.
void Instrument(llvm::Function& kernel);

// The parameters whose memory the kernel writes.
struct Written {
  std::set<unsigned> params, maps;  // pointers; tensor maps
  bool any = false;                 // there are writes of which it is not known
};
// Calls kiln_emu_own before each load and store of global memory that the kernel writes.
Written HookOwners(llvm::Function& kernel);

// Does the kernel change one tensor by atomics of different kinds, a sum and a maximum, say? Their order counts, be it of integers.
bool MixesAtomics(const llvm::Function& kernel);

// Makes the smaller and the larger of two zeros certain: −0 is less than +0, as the devices have it (PTX ISA, min and max; RDNA3 ISA, v_min and
// v_max). Lanes that combine one pair the other way round would hold different zeros.
void OrderZeros(llvm::Function& kernel);

// Hides from LLVM that a pattern of 16 bits is a bf16's: where only the sign of one is wanted its code generator for x86-64 takes it for a float's,
// whose sign is 16 places further up.
void HideSigns(llvm::Function& kernel);

// Calls kiln_emu_time_over wherever a loop starts over while `time_over` is set; it outlives the code.
void PollInLoops(llvm::Function& kernel, const std::atomic<bool>& time_over);

}  // namespace kiln::emulator
