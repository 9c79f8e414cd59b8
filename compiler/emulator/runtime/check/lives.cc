// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check/lives.h"

#include <algorithm>

namespace kiln::emulator {

void Lives::Begin(uint32_t thread, uint32_t buffer) {
  auto it = buffers_.find(buffer);
  if (it == buffers_.end()) {
    const auto slot = std::ranges::find(slots_, buffer, &SharedSlot::number);
    if (slot == slots_.end()) return;
    it = buffers_.try_emplace(buffer, Buffer{&*slot, std::vector<uint32_t>(threads_), std::vector<uint32_t>(slot->bytes)}).first;
  }
  ++it->second.of_threads[thread];
}

void Lives::Write(uint32_t thread, uint32_t byte) {
  for (auto& [number, buffer] : buffers_) {
    if (buffer.Holds(byte)) buffer.of_bytes[byte - buffer.slot->offset] = buffer.of_threads[thread];
  }
}

bool Lives::IsOver(uint32_t thread, uint32_t location, uint32_t byte) const {
  if (location == 0) return false;
  const auto is_over = [&](const SharedSlot& slot) {
    const auto it = buffers_.find(slot.number);
    return it != buffers_.end() && it->second.of_bytes[byte - slot.offset] != it->second.of_threads[thread];
  };
  // A buffer that any statement may use is meant only where no other one of this byte is known to be the statement's.
  bool named = false, others = false, over = true, others_over = true;
  for (const SharedSlot& slot : slots_) {
    if (byte < slot.offset || byte - slot.offset >= slot.bytes || !slot.HasTo(location)) continue;
    const bool its = slot.statements.contains(location);
    (its ? named : others) = true;
    (its ? over : others_over) &= is_over(slot);
  }
  return named ? over : others && others_over;
}

}  // namespace kiln::emulator
