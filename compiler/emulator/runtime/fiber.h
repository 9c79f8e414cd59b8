// SPDX-License-Identifier: Apache-2.0
//
// Threads of a block, all run by one thread of the host: each has a stack of its own and runs until it switches away.
#pragma once

#include <cstddef>

namespace kiln::emulator {

class Stacks {
 public:
  static constexpr size_t kBytes = size_t{256} << 10;

  explicit Stacks(size_t count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  bool ok() const { return base_ != nullptr; }
  // The stack pointer of a fiber that will call entry(argument), which must never return.
  void* Prepare(size_t index, void (*entry)(void*), void* argument);
  // Is this address in the guard between stacks? Then a thread's own memory is larger than its stack.
  bool IsGuard(const void* address) const;

 private:
  std::byte* base_ = nullptr;
  size_t count_;
};

// Leaves the running fiber, whose stack pointer goes to *save, for another.
extern "C" void kiln_emu_switch(void** save, void* load);

}  // namespace kiln::emulator
