// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check/owners.h"

#include <algorithm>
#include <cstring>

namespace kiln::emulator {
namespace {

constexpr uint32_t kMany = ~0u;
constexpr uint32_t kSaving = 1, kSaved = 2;

// The bits of a word: the gang's number, four bits for each kind of touch, and the two flags kBusy and kShared.
constexpr uint64_t kGang = 0xffffffff, kBusy = uint64_t{1} << 62, kShared = uint64_t{1} << 63;
constexpr int kFirstOf[] = {32, 36, 40};  // by Touch
constexpr uint64_t kChanges = uint64_t{0xff} << 36;

uint64_t DidOf(Touch touch, uint32_t parts) { return uint64_t{parts} << kFirstOf[size_t(touch)]; }

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
    const uint64_t units = (m.bytes + kUnit - 1) / kUnit;
    tensors_.push_back({static_cast<std::byte*>(m.data), m.bytes, Pages(units * sizeof(Word)), Pages(units * sizeof(Unit)), Pages(m.bytes)});
    const Tensor& t = tensors_.back();
    ok_ &= t.words.data() != nullptr && t.units.data() != nullptr && t.before.data() != nullptr;
  }
}

void Owners::Tensor::Save(uint64_t number) const { std::memcpy(before.data() + number * kUnit, data + number * kUnit, BytesOf(number)); }
void Owners::Tensor::Restore(uint64_t number) const { std::memcpy(data + number * kUnit, before.data() + number * kUnit, BytesOf(number)); }

bool Owners::IsSaved(const Tensor& t, uint64_t number) {
  const uint64_t word = t.WordOf(number).load();
  return (word & kShared) != 0 ? t.UnitOf(number).saved.load() == kSaved : (word & kChanges) != 0;
}

void Owners::Restore() {
  for (const Tensor& t : tensors_) {
    for (uint64_t i = 0; i < t.count(); ++i) {
      if (IsSaved(t, i)) t.Restore(i);
    }
  }
}

// A second gang has come: what the first did becomes marks.
void Owners::Share(const Tensor& t, uint64_t number, uint64_t word) {
  Unit& unit = t.UnitOf(number);
  const auto gang = uint32_t(word & kGang);
  for (uint32_t p = 0; p < unit.parts.size(); ++p) {
    Marks& marks = unit.parts[p];
    if ((word & DidOf(Touch::kRead, 1 << p)) != 0) marks.reader = gang;
    if ((word & DidOf(Touch::kWrite, 1 << p)) != 0) marks.writer = gang;
    if ((word & DidOf(Touch::kAtomic, 1 << p)) != 0) marks.atomic = gang;
  }
  unit.saved = (word & kChanges) != 0 ? kSaved : 0;
  t.WordOf(number).store(kShared);
}

bool Owners::NoteShared(const Tensor& t, uint64_t number, uint32_t parts, uint32_t self, Touch touch) {
  Unit& unit = t.UnitOf(number);
  bool alone = true, news = false;
  for (uint32_t p = 0; p < unit.parts.size(); ++p) {
    if ((parts >> p & 1) == 0) continue;
    Marks& marks = unit.parts[p];
    std::atomic<uint32_t>& mark = touch == Touch::kRead ? marks.reader : touch == Touch::kWrite ? marks.writer : marks.atomic;
    if (mark.load(std::memory_order_relaxed) == self) continue;  // whoever came since has seen it
    news = true;
    Mark(mark, self);
    alone &= !Foreign(marks.writer, self) && (touch == Touch::kAtomic || !Foreign(marks.atomic, self)) &&
             (touch == Touch::kRead || !Foreign(marks.reader, self));
  }
  if (!alone || !news || touch == Touch::kRead) return alone;
  // Before the first change, one thread saves what was there. The others wait for it.
  if (uint32_t state = 0; unit.saved.compare_exchange_strong(state, kSaving)) {
    t.Save(number);
    unit.saved = kSaved;
  }
  while (unit.saved.load() != kSaved) {
  }
  return true;
}

bool Owners::NoteUnit(const Tensor& t, uint64_t number, uint32_t parts, uint32_t self, Touch touch) {
  Word& word = t.WordOf(number);
  const uint64_t did = DidOf(touch, parts);
  for (uint64_t now = word.load(std::memory_order_relaxed);;) {
    if ((now & kShared) != 0) return NoteShared(t, number, parts, self, touch);
    const auto gang = uint32_t(now & kGang);
    if (gang == self && (now & did) == did) return true;
    if ((now & kBusy) != 0) {
      now = word.load();
    } else if (gang != 0 && gang != self) {
      if (word.compare_exchange_weak(now, now | kBusy)) Share(t, number, now), now = kShared;
    } else if (touch == Touch::kRead || (now & kChanges) != 0) {
      if (word.compare_exchange_weak(now, now | did | self)) return true;
    } else if (word.compare_exchange_weak(now, now | kBusy)) {
      t.Save(number);
      word.store(now | did | self);
      return true;
    }
  }
}

bool Owners::Note(uint64_t gang, const void* data, uint32_t bytes, Touch touch) {
  const auto at = static_cast<const std::byte*>(data);
  for (const Tensor& t : tensors_) {
    if (at < t.data || at >= t.data + t.bytes || bytes == 0) continue;
    const auto offset = uint64_t(at - t.data), last = std::min(offset + bytes, t.bytes) - 1;
    for (uint64_t unit = offset / kUnit; unit <= last / kUnit; ++unit) {
      const uint64_t from = std::max(offset, unit * kUnit) % kUnit / kPart, to = std::min(last, unit * kUnit + kUnit - 1) % kUnit / kPart;
      const uint32_t parts = (2u << to) - (1u << from);
      if (NoteUnit(t, unit, parts, uint32_t(gang) + 1, touch)) continue;
      crossed_.store(true, std::memory_order_relaxed);
      return false;
    }
  }
  return true;
}

}  // namespace kiln::emulator
