// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/fiber.h"

#include <sys/mman.h>

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define KILN_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KILN_EMU_ASAN 1
#endif
#endif
#if defined(KILN_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace kiln::emulator {

#if !defined(__x86_64__)
#error "the emulator switches between threads with x86-64 code; another processor needs its own kiln_emu_switch"
#endif

// System V ABI: rbx, rbp and r12 to r15 belong to the caller; all else is dead across a call.
__asm__(R"(
.text
.p2align 4
.globl kiln_emu_switch
.type kiln_emu_switch, @function
kiln_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kiln_emu_switch, .-kiln_emu_switch

.p2align 4
.type kiln_emu_start, @function
.globl kiln_emu_start
kiln_emu_start:
  movq %r12, %rdi
  callq *%r13
  ud2
.size kiln_emu_start, .-kiln_emu_start
)");

extern "C" void kiln_emu_start();

namespace {

constexpr size_t kGuard = 4096, kBytes = size_t{256} << 10;

}  // namespace

Stacks::Stacks(size_t count, size_t own_bytes) : count_(count), bytes_(kBytes + (own_bytes + kGuard - 1) / kGuard * kGuard) {
  void* memory = mmap(nullptr, count * bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  base_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < count; ++i) mprotect(base_ + i * bytes_, kGuard, PROT_NONE);
}

Stacks::~Stacks() {
  if (base_ != nullptr) munmap(base_, count_ * bytes_);
}

void* Stacks::Prepare(size_t index, void (*entry)(void*), void* argument) {
#if defined(KILN_EMU_ASAN)
  // Frames that were left behind in the middle are no one's any more.
  __asan_unpoison_memory_region(base_ + index * bytes_ + kGuard, bytes_ - kGuard);
#endif
  // Neighbours' stacks start on different cache lines: at equal offsets they would evict each other.
  const size_t colour = (index % 32) * 64;
  auto* top = reinterpret_cast<uint64_t*>(base_ + (index + 1) * bytes_ - 4096 + colour);
  // What kiln_emu_switch pops: r15, r14, r13, r12, rbx, rbp, the return address. The stack
  // pointer is a multiple of 16 at the call in kiln_emu_start.
  uint64_t* frame = top - 7;
  frame[0] = frame[1] = 0;
  frame[2] = reinterpret_cast<uint64_t>(entry);
  frame[3] = reinterpret_cast<uint64_t>(argument);
  frame[4] = frame[5] = 0;
  frame[6] = reinterpret_cast<uint64_t>(&kiln_emu_start);
  return frame;
}

}  // namespace kiln::emulator
