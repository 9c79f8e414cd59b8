// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check/tenants.h"

#include <iterator>
#include <set>

namespace kiln::emulator {
namespace {

bool IsLeft(std::span<const SharedSlot> slots, uint32_t byte, uint32_t reader, uint32_t writer) {
  bool read = false, written = false;
  for (const SharedSlot& slot : slots) {
    if (byte < slot.offset || byte - slot.offset >= slot.bytes) continue;
    const bool reads = slot.HasTo(reader), writes = slot.HasTo(writer);
    if (reads && writes) return false;
    read |= reads;
    written |= writes;
  }
  return read && written;
}

}  // namespace

bool ShareBytes(std::span<const SharedSlot> slots) {
  for (size_t i = 0; i < slots.size(); ++i) {
    for (const SharedSlot& other : slots.first(i)) {
      if (slots[i].offset < other.offset + other.bytes && other.offset < slots[i].offset + slots[i].bytes) return true;
    }
  }
  return false;
}

std::vector<SharedRange> LeftByOthers(std::span<const SharedSlot> slots, uint32_t reader, uint32_t writer) {
  std::set<uint32_t> bounds;
  for (const SharedSlot& slot : slots) bounds.insert({slot.offset, slot.offset + slot.bytes});
  std::vector<SharedRange> left;
  for (auto it = bounds.begin(); it != bounds.end() && std::next(it) != bounds.end(); ++it) {
    if (IsLeft(slots, *it, reader, writer)) left.push_back({*it, *std::next(it)});
  }
  return left;
}

}  // namespace kiln::emulator
