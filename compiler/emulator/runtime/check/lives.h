// SPDX-License-Identifier: Apache-2.0
//
// Buffers in shared memory that a loop's body allocates: each iteration has a new one, and what an earlier one left there nobody wrote.
// A thread begins a buffer's next life where it comes to the allocation; threads may do so at different times, so each byte remembers
// in which life its writer was. Used by one block.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "compiler/emulator/runtime/grid.h"

namespace kiln::emulator {

class Lives {
 public:
  Lives(std::span<const SharedSlot> slots, uint32_t threads) : slots_(slots), threads_(threads) {}

  void Clear() { buffers_.clear(); }
  bool empty() const { return buffers_.empty(); }
  // The thread allocates the buffer of this number anew.
  void Begin(uint32_t thread, uint32_t buffer);
  // By any statement: what passes made of one may have another's number.
  void Write(uint32_t thread, uint32_t byte);
  // Was the byte of the statement's buffer written in another life than the thread's? Where several buffers share the byte and the
  // statement may use each of them: in another life of them all.
  bool IsOver(uint32_t thread, uint32_t location, uint32_t byte) const;

 private:
  struct Buffer {
    const SharedSlot* slot;
    std::vector<uint32_t> of_threads, of_bytes;

    bool Holds(uint32_t byte) const { return byte >= slot->offset && byte - slot->offset < slot->bytes; }
  };

  std::span<const SharedSlot> slots_;
  const uint32_t threads_;
  std::map<uint32_t, Buffer> buffers_;  // by number: those that began
};

}  // namespace kiln::emulator
