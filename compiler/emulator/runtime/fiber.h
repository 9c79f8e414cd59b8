// SPDX-License-Identifier: Apache-2.0
//
// Threads of a block, all run by one thread of the host: each has a stack of its own and runs until it switches away.
#pragma once

#include <cstddef>

namespace kiln::emulator {

class Stacks {
 public:
  // `own_bytes`: of memory that the code of a thread asks for, beside what its calls need.
  Stacks(size_t count, size_t own_bytes);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  bool ok() const { return base_ != nullptr; }
  // The stack pointer of a fiber that will call entry(argument), which must never return.
  void* Prepare(size_t index, void (*entry)(void*), void* argument);

 private:
  std::byte* base_ = nullptr;
  size_t count_, bytes_;  // bytes: of each
};

// Leaves the running fiber, whose stack pointer goes to *save, for another.
extern "C" void kiln_emu_switch(void** save, void* load);

}  // namespace kiln::emulator
