// SPDX-License-Identifier: Apache-2.0
//
// Checked accesses: alignment and bounds end the block, clashes are noted and it goes on. All do nothing where the launch is not
// checked.
#pragma once

#include "compiler/emulator/runtime/block.h"
#include "compiler/emulator/runtime/shadow.h"

namespace kiln::emulator {

struct Access {
  uint32_t thread;
  uint32_t location;
  Touch touch;
};

// `value`: the bytes about to be written, where they are known.
void CheckShared(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align,
                 const std::byte* value = nullptr);
void CheckGlobal(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align,
                 const std::byte* value = nullptr);
// By the asynchronous proxy, at a byte of shared memory.
void CheckAsyncProxyRead(Block& block, const Access& access, uint32_t offset, uint32_t bytes);
// The destination of an asynchronous copy, when it starts and when it is waited for.
void CheckStart(Block& block, uint32_t thread, const AsyncCopy& copy);
void CheckLand(Block& block, uint32_t thread, const AsyncCopy& copy);

}  // namespace kiln::emulator
