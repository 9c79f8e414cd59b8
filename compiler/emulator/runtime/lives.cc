// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/lives.h"

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
  return std::ranges::any_of(buffers_, [&](const auto& entry) {
    const Buffer& buffer = entry.second;
    return location != 0 && buffer.Holds(byte) && buffer.slot->HasTo(location) &&
           buffer.of_bytes[byte - buffer.slot->offset] != buffer.of_threads[thread];
  });
}

}  // namespace kiln::emulator
