// SPDX-License-Identifier: Apache-2.0
//
// The third family of devices: a thread whose hardware is compiler/emulator/runtime. Its code is for the host's processor.
#pragma once

#include <memory>

#include "compiler/llvm/device.h"

namespace kiln::emulator {

std::unique_ptr<llvm_ir::Device> MakeEmulatorDevice(const target::Target& target, llvm::IRBuilder<>& builder);

}  // namespace kiln::emulator
