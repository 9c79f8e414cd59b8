// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/owners.h"

#include <algorithm>
#include <cstring>

namespace kiln::emulator {
namespace {

constexpr uint32_t kMany = ~0u;
constexpr uint32_t kLeastUnit = 4;  // bytes: marks take 16
constexpr uint32_t kSaving = 1, kSaved = 2;

bool Foreign(const std::atomic<uint32_t>& mark, uint32_t self) {
  const uint32_t owner = mark.load();
  return owner != 0 && owner != self;
}

void Mark(std::atomic<uint32_t>& mark, uint32_t self) {
  uint32_t owner = 0;
  if (!mark.compare_exchange_strong(owner, self) && owner != self) mark.store(kMany);
}

bool Overlap(const Memory& a, const Memory& b) {
  const auto x = reinterpret_cast<uintptr_t>(a.data), y = reinterpret_cast<uintptr_t>(b.data);
  return x < y + b.bytes && y < x + a.bytes;
}

}  // namespace

Owners::Owners(std::span<const Memory> memory, std::span<const uint64_t> written, bool all) {
  for (const Memory& m : memory) {
    const auto begin = reinterpret_cast<uintptr_t>(m.data);
    const bool is_written = all || std::ranges::any_of(written, [&](uint64_t at) { return at >= begin && at - begin < m.bytes; });
    if (m.bytes == 0 || !is_written) continue;
    ok_ &= std::ranges::none_of(memory, [&](const Memory& other) { return &other != &m && Overlap(m, other); });
    const uint32_t unit = std::max(m.element_bytes, kLeastUnit);
    tensors_.push_back({static_cast<std::byte*>(m.data), m.bytes, unit, Pages((m.bytes / unit + 1) * sizeof(Element)), Pages(m.bytes)});
    ok_ &= tensors_.back().elements.data() != nullptr && tensors_.back().before.data() != nullptr;
  }
}

void Owners::Restore() {
  for (const Tensor& t : tensors_) {
    for (uint64_t i = 0; i * t.unit < t.bytes; ++i) {
      if (t.At(i)->saved.load() != kSaved) continue;
      std::memcpy(t.data + i * t.unit, t.before.data() + i * t.unit, std::min<uint64_t>(t.unit, t.bytes - i * t.unit));
    }
  }
}

// Before the first change, by whom it may be; the others wait.
void Owners::Save(const Tensor& t, uint64_t number) {
  std::atomic<uint32_t>& saved = t.At(number)->saved;
  uint32_t state = 0;
  if (saved.compare_exchange_strong(state, kSaving)) {
    std::memcpy(t.before.data() + number * t.unit, t.data + number * t.unit, std::min<uint64_t>(t.unit, t.bytes - number * t.unit));
    saved.store(kSaved);
  }
  while (saved.load() != kSaved) {
  }
}

bool Owners::NoteElement(const Tensor& t, uint64_t number, uint32_t self, Touch touch) {
  Element& element = *t.At(number);
  std::atomic<uint32_t>& mark = touch == Touch::kRead ? element.reader : touch == Touch::kWrite ? element.writer : element.atomic;
  if (mark.load(std::memory_order_relaxed) == self) return true;  // whoever came since has seen it
  Mark(mark, self);
  const bool alone = !Foreign(element.writer, self) && (touch == Touch::kAtomic || !Foreign(element.atomic, self)) &&
                     (touch == Touch::kRead || !Foreign(element.reader, self));
  if (alone && touch != Touch::kRead) Save(t, number);
  return alone;
}

bool Owners::Note(uint64_t gang, const void* data, uint32_t bytes, Touch touch) {
  const auto at = static_cast<const std::byte*>(data);
  for (const Tensor& t : tensors_) {
    if (at < t.data || at >= t.data + t.bytes || bytes == 0) continue;
    const auto offset = uint64_t(at - t.data), last = std::min(offset + bytes, t.bytes) - 1;
    for (uint64_t i = offset / t.unit; i <= last / t.unit; ++i) {
      if (NoteElement(t, i, uint32_t(gang) + 1, touch)) continue;
      crossed_.store(true, std::memory_order_relaxed);
      return false;
    }
  }
  return true;
}

}  // namespace kiln::emulator
