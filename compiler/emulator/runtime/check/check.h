// SPDX-License-Identifier: Apache-2.0
//
// Checked accesses: alignment and bounds end the gang, clashes are noted and it goes on. All do nothing where the launch is not
// checked.
#pragma once

#include <span>
#include <string>

#include "compiler/emulator/runtime/block.h"
#include "compiler/emulator/runtime/check/shadow.h"

namespace kiln::emulator {

struct Access {
  uint32_t thread;
  uint32_t location;
  Touch touch;
};

// `value`: the bytes about to be written, where they are known. Shared memory may be another block's of the cluster.
void CheckShared(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align, const std::byte* value = nullptr);
void CheckGlobal(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align, const std::byte* value = nullptr);
// Unchecked launches whose gangs run in parallel: the gang ends where another's accesses and this one's depend on their order.
void Own(Block& block, const std::byte* data, uint32_t bytes, Touch touch);
// An element that its buffer does not have: ends the gang, checked or not.
struct Outside {
  std::string buffer;
  std::span<const int64_t> index, shape;
  uint32_t bytes;  // of an element
  bool write;
};
[[noreturn]] void StopOutside(Block& block, const Outside& outside, uint32_t location);
// An element of the running thread's own array that nothing has written, and that it reads.
void ReportUnwritten(Block& block, const Outside& element, uint32_t location);
// The destination of an asynchronous copy of one thread, when it starts and when it is waited for.
void CheckStart(Block& block, uint32_t thread, const AsyncCopy& copy);
void CheckLand(Block& block, uint32_t thread, const AsyncCopy& copy);

// By the asynchronous proxy. What comes before it is what those knew who started it.
struct AsyncAccess {
  uint32_t agent = 0, time = 0;
  const Thread* starter = nullptr;  // null: those with `views`
  std::span<const View> views;
  uint32_t first_thread = 0;  // of those
  uint32_t location = 0;
};
void CheckAsyncShared(Block& block, const AsyncAccess& access, uint32_t offset, uint32_t bytes, Touch touch);
void CheckAsyncGlobal(Block& block, const AsyncAccess& access, const std::byte* data, uint32_t bytes, Touch touch);

}  // namespace kiln::emulator
