// SPDX-License-Identifier: Apache-2.0
//
// The third family of devices: a thread whose hardware is compiler/emulator/runtime. Its code is for the host's processor.
#pragma once

#include <memory>

#include "compiler/llvm/device/device.h"

namespace kiln::emulator {

// The thread-level program of a target, with calls of abi.h for what its hardware does. AMD's s_waitcnt has no call: no program of ours
// holds one. LLVM puts them where a register or a barrier needs what is under way, after all that the emulator sees (emit_test.cc).
std::unique_ptr<llvm_ir::Device> MakeEmulatorDevice(const target::Target& target, llvm::IRBuilderBase& builder);

}  // namespace kiln::emulator
