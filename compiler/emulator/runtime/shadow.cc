// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "compiler/emulator/program.h"

namespace kiln::emulator {
namespace {

bool Ordered(const Who& a, uint32_t block, uint32_t epoch, uint16_t thread) {
  return block == 0 || (block == a.block && (thread == a.thread || epoch != a.epoch));
}

}  // namespace

Clash Cell::Note(const Who& who, Touch touch, bool same) {
  Clash clash;
  const Who writer{writer_block, writer_epoch, writer_thread, writer_location};
  const bool both_atomic = touch == Touch::kAtomic && writer_atomic;
  const bool both_same = touch == Touch::kWrite && same;
  if (!both_atomic && !both_same && !Ordered(who, writer_block, writer_epoch, writer_thread)) clash = {Clash::kRace, true, writer};
  if (pending) clash = {Clash::kPending, true, writer};
  if (touch == Touch::kRead) {
    if (reader_block == who.block && reader_epoch == who.epoch) {
      many_readers |= reader_thread != who.thread;
      return clash;
    }
    many_blocks |= reader_block != 0 && reader_block != who.block;
    many_readers = false;
    reader_block = uint32_t(who.block);
    reader_epoch = who.epoch;
    reader_thread = uint16_t(who.thread);
    reader_location = who.location;
    return clash;
  }
  const bool read = many_blocks || (many_readers && reader_block == who.block && reader_epoch == who.epoch) ||
                    !Ordered(who, reader_block, reader_epoch, reader_thread);
  if (clash.kind == Clash::kNone && read && !both_same) {
    clash = {Clash::kRace, false, {reader_block, reader_epoch, reader_thread, reader_location}};
  }
  writer_block = uint32_t(who.block);
  writer_epoch = who.epoch;
  writer_thread = uint16_t(who.thread);
  writer_location = who.location;
  writer_atomic = touch == Touch::kAtomic;
  return clash;
}

void SharedShadow::Enter(uint64_t) { std::ranges::fill(cells_, Cell{}); }

Clash SharedShadow::Note(const Who& who, uint32_t offset, uint32_t bytes, Touch touch, const std::byte* before,
                         const std::byte* after) {
  Clash found;
  for (uint32_t i = 0; i < bytes; ++i) {
    Cell& cell = cells_[offset + i];
    const bool unwritten = cell.writer_block == 0 && touch != Touch::kWrite;
    const Clash clash = cell.Note(who, touch, after != nullptr && before[i] == after[i]);
    if (touch != Touch::kRead) cell.writer_fences = fences_[who.thread];
    if (found.kind == Clash::kNone) found = clash;
    if (found.kind == Clash::kNone && unwritten) found.kind = Clash::kUninitialized;
  }
  return found;
}

Clash SharedShadow::Start(const Who& who, uint32_t offset, uint32_t bytes) {
  const Clash clash = Note(who, offset, bytes, Touch::kWrite, nullptr, nullptr);
  for (uint32_t i = 0; i < bytes; ++i) cells_[offset + i].pending = true;
  return clash;
}

void SharedShadow::Land(const Who& who, uint32_t offset, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i) {
    Cell& cell = cells_[offset + i];
    cell.pending = false;
    cell.writer_epoch = who.epoch;
    cell.writer_fences = fences_[who.thread];
  }
}

Clash SharedShadow::NoteAsyncProxy(const Who& who, uint32_t offset, uint32_t bytes) {
  const Clash clash = Note(who, offset, bytes, Touch::kRead, nullptr, nullptr);
  const Cell& cell = cells_[offset];
  if (clash.kind != Clash::kNone || fences_[cell.writer_thread] != cell.writer_fences) return clash;
  return {Clash::kUnfenced, true, {cell.writer_block, cell.writer_epoch, cell.writer_thread, cell.writer_location}};
}

GlobalShadow::GlobalShadow(std::span<const Memory> memory) {
  for (const Memory& m : memory) {
    if (m.bytes == 0) continue;
    const uint32_t element = std::max(m.element_bytes, 1u);
    const size_t mapped = (m.bytes / element + 1) * sizeof(Cell);
    void* cells = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED) cells = nullptr;  // its accesses are bounded, but races in it are not seen
    allocations_.push_back({static_cast<const std::byte*>(m.data), m.bytes, element, m.name, static_cast<Cell*>(cells), mapped});
  }
}

GlobalShadow::~GlobalShadow() {
  for (const Allocation& a : allocations_)
    if (a.cells != nullptr) munmap(a.cells, a.mapped);
}

std::optional<size_t> GlobalShadow::Find(const void* data, uint32_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  for (size_t i = 0; i < allocations_.size(); ++i) {
    const auto begin = reinterpret_cast<uintptr_t>(allocations_[i].data);
    if (at >= begin && at - begin <= allocations_[i].bytes && bytes <= allocations_[i].bytes - (at - begin)) return i;
  }
  return std::nullopt;
}

Clash GlobalShadow::Note(const Who& who, size_t allocation, const std::byte* data, uint32_t bytes, Touch touch,
                         const std::byte* after) {
  const Allocation& a = allocations_[allocation];
  if (a.cells == nullptr) return {};
  const uint64_t offset = uint64_t(data - a.data), first = offset / a.element, last = (offset + bytes - 1) / a.element;
  Clash found;
  for (uint64_t i = first; i <= last; ++i) {
    const uint64_t in_access = i * a.element - std::min(offset, i * a.element);
    const bool whole = i * a.element >= offset && in_access + a.element <= bytes;
    std::atomic_flag& lock = locks_[(i / 16 + allocation * 37) % kLocks];
    while (lock.test_and_set(std::memory_order_acquire)) {
    }
    const bool same = after != nullptr && whole && std::memcmp(data + in_access, after + in_access, a.element) == 0;
    const Clash clash = a.cells[i].Note(who, touch, same);
    lock.clear(std::memory_order_release);
    if (found.kind == Clash::kNone) found = clash;
  }
  return found;
}

std::string GlobalShadow::Describe(const void* data) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const Allocation* nearest = nullptr;
  uint64_t distance = std::numeric_limits<uint64_t>::max();
  for (const Allocation& a : allocations_) {
    const auto begin = reinterpret_cast<uintptr_t>(a.data), end = begin + a.bytes;
    if (at >= begin && at < end) return a.name + "[" + std::to_string((at - begin) / a.element) + "]";
    const uint64_t away = at < begin ? begin - at : at - end + 1;
    if (away < distance) {
      distance = away;
      nearest = &a;
    }
  }
  if (nearest == nullptr) return "an address in no tensor";
  const bool before = at < reinterpret_cast<uintptr_t>(nearest->data);
  return std::to_string(distance) + " bytes " + (before ? "before the start" : "past the end") + " of " + nearest->name + ", which has " +
         std::to_string(nearest->bytes);
}

}  // namespace kiln::emulator
