// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "compiler/emulator/program.h"

namespace kiln::emulator {
namespace {

bool Ordered(const Who& a, uint32_t block, uint32_t time, uint32_t agent) {
  if (block == 0) return true;
  if (block != a.block) return false;
  if (a.order != nullptr) return a.order->After(agent, time);
  return agent == a.agent || time != a.time;
}

// Who writes the value that is there, hurts nobody.
bool Harmless(const Clash& clash, bool same) { return same && clash.kind == Clash::kRace; }

}  // namespace

bool Order::After(uint32_t agent, uint32_t time) const {
  if (agent == self) return true;
  return std::ranges::all_of(views, [&](const View& view) { return view.seen.Covers(agent, time); });
}

bool Order::Fenced(uint32_t agent, uint32_t time) const {
  if (!async || agent >= threads) return true;
  return std::ranges::all_of(views, [&](const View& view) { return view.fenced.Covers(agent, time); });
}

void Readers::Drop(uint32_t& list, const Who& who) {
  for (uint32_t* link = &list; *link != 0;) {
    Node& node = nodes_[*link];
    if (node.agent != who.agent && !who.order->After(node.agent, node.time)) {
      link = &node.next;
      continue;
    }
    const uint32_t freed = *link;
    *link = node.next;
    nodes_[freed].next = free_;
    free_ = freed;
  }
}

void Readers::Add(uint32_t& list, const Who& who, const Node& reader) {
  Drop(list, who);
  uint32_t index = free_;
  if (index == 0) {
    index = uint32_t(nodes_.size());
    nodes_.emplace_back();
  } else {
    free_ = nodes_[index].next;
  }
  nodes_[index] = reader;
  nodes_[index].next = list;
  list = index;
}

std::optional<Readers::Node> Readers::Clear(uint32_t& list, const Who& who) {
  Drop(list, who);
  if (list == 0) return std::nullopt;
  const Node first = nodes_[list];
  uint32_t last = list;
  while (nodes_[last].next != 0) last = nodes_[last].next;
  nodes_[last].next = free_;
  free_ = list;
  list = 0;
  return first;
}

Clash Cell::NoteWriter(const Who& who, Touch touch) const {
  const Who other{writer_block, writer_time, writer, writer_location};
  if (pending) return {Clash::kPending, true, other};
  const bool both_atomic = touch == Touch::kAtomic && writer_atomic;
  if (!both_atomic && !Ordered(who, writer_block, writer_time, writer)) return {Clash::kRace, true, other};
  const bool fenced = who.order == nullptr || writer_block != who.block || who.order->Fenced(writer, writer_time);
  return fenced ? Clash{} : Clash{Clash::kUnfenced, true, other};
}

void Cell::NoteRead(const Who& who, Readers* list) {
  const bool mine = reader_block == who.block;
  if (who.order == nullptr) {
    if (mine && reader_time == who.time) {
      many_readers |= reader != who.agent;
      return;
    }
    many_readers = false;
  } else if (list != nullptr && mine && reader != who.agent) {
    const bool before = who.order->After(reader, reader_time);
    if (!before) list->Add(readers, who, {reader, reader_time, reader_location, 0});
    if (before && readers != 0) list->Drop(readers, who);
  }
  many_blocks |= reader_block != 0 && !mine;
  reader_block = uint32_t(who.block);
  reader_time = who.time;
  reader = who.agent;
  reader_location = who.location;
}

Clash Cell::ReadersClash(const Who& who, Readers* list) {
  const bool several = who.order == nullptr && many_readers && reader_block == who.block && reader_time == who.time;
  Clash clash;
  if (many_blocks || several || !Ordered(who, reader_block, reader_time, reader)) {
    clash = {Clash::kRace, false, {reader_block, reader_time, reader, reader_location}};
  }
  if (readers == 0 || list == nullptr) return clash;
  if (const auto other = list->Clear(readers, who)) clash = {Clash::kRace, false, {who.block, other->time, other->agent, other->location}};
  return clash;
}

Clash Cell::Note(const Who& who, Touch touch, Readers* list) {
  Clash clash = NoteWriter(who, touch);
  if (touch == Touch::kRead) {
    NoteRead(who, list);
    return clash;
  }
  const Clash read = ReadersClash(who, list);
  if (clash.kind == Clash::kNone) clash = read;
  if (who.order != nullptr && !many_blocks) reader_block = 0;
  writer_block = uint32_t(who.block);
  writer_time = who.time;
  writer = who.agent;
  writer_location = who.location;
  writer_atomic = touch == Touch::kAtomic;
  return clash;
}

void SharedShadow::Enter() {
  std::ranges::fill(cells_, Cell{});
  readers_ = {};
}

Clash SharedShadow::Note(const Who& who, uint32_t offset, uint32_t bytes, Touch touch, const std::byte* before,
                         const std::byte* after) {
  Clash found;
  const bool plain = who.order == nullptr;
  for (uint32_t i = 0; i < bytes; ++i) {
    Cell& cell = cells_[offset + i];
    if (plain && (touch == Touch::kWrite || cell.writer_block != 0) && cell.NotePlain(who, touch)) continue;
    const bool unwritten = cell.writer_block == 0 && touch != Touch::kWrite;
    const Clash clash = cell.Note(who, touch, &readers_);
    const bool same = after != nullptr && before[i] == after[i];
    if (found.kind == Clash::kNone && !Harmless(clash, same)) found = clash;
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
    cell.writer_time = who.time;
  }
}

GlobalShadow::Pages::Pages(size_t bytes) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  data_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

GlobalShadow::Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void GlobalShadow::Pages::Clear() {
  if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
}

GlobalShadow::GlobalShadow(std::span<const Memory> memory) {
  for (const Memory& m : memory) {
    if (m.bytes == 0) continue;
    const uint32_t element = std::max(m.element_bytes, 1u);
    const bool known = std::ranges::all_of(m.strides, [](int64_t stride) { return stride > 0; }) && m.strides.size() == m.shape.size();
    allocations_.push_back({static_cast<std::byte*>(m.data), m.bytes, element, m.name, known ? m.shape : std::vector<int64_t>(),
                            known ? m.strides : std::vector<int64_t>(), Pages((m.bytes / element + 1) * sizeof(Cell)), Pages(m.bytes)});
  }
}

void GlobalShadow::Restore() {
  for (Allocation& a : allocations_) {
    for (uint64_t i = 0; a.Cells() != nullptr && i < a.elements(); ++i) {
      if (a.Cells()[i].writer_block != 0) std::memcpy(a.data + i * a.element, a.before.data() + i * a.element, a.element);
    }
    a.cells.Clear();
  }
  crossed_ = false;
}

std::optional<size_t> GlobalShadow::Find(const void* data, uint32_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  for (size_t i = 0; i < allocations_.size(); ++i) {
    const auto begin = reinterpret_cast<uintptr_t>(allocations_[i].data);
    if (at >= begin && at - begin <= allocations_[i].bytes && bytes <= allocations_[i].bytes - (at - begin)) return i;
  }
  return std::nullopt;
}

Clash GlobalShadow::NoteElement(const Who& who, const Allocation& a, uint64_t number, Touch touch, const std::byte* after) {
  Cell& cell = a.Cells()[number];
  const std::byte* now = a.data + number * a.element;
  if (touch != Touch::kRead && cell.writer_block == 0) std::memcpy(a.before.data() + number * a.element, now, a.element);
  if (who.order == nullptr && cell.NotePlain(who, touch)) return {};
  const Clash clash = cell.Note(who, touch, nullptr);
  if (clash.kind == Clash::kNone) return clash;
  if (clash.other.block != who.block) crossed_.store(true, std::memory_order_relaxed);
  return Harmless(clash, after != nullptr && std::memcmp(now, after, a.element) == 0) ? Clash{} : clash;
}

Clash GlobalShadow::Note(const Who& who, size_t allocation, const std::byte* data, uint32_t bytes, Touch touch,
                         const std::byte* after) {
  const Allocation& a = allocations_[allocation];
  if (a.Cells() == nullptr) return {};
  const uint64_t offset = uint64_t(data - a.data), first = offset / a.element, last = (offset + bytes - 1) / a.element;
  Clash found;
  for (uint64_t i = first; i <= last; ++i) {
    const uint64_t in_access = i * a.element - std::min(offset, i * a.element);
    const bool whole = i * a.element >= offset && in_access + a.element <= bytes;
    std::atomic_flag& lock = locks_[(i / 16 + allocation * 37) % kLocks];
    while (lock.test_and_set(std::memory_order_acquire)) {
    }
    const Clash clash = NoteElement(who, a, i, touch, after != nullptr && whole ? after + in_access : nullptr);
    lock.clear(std::memory_order_release);
    if (found.kind == Clash::kNone) found = clash;
  }
  return found;
}

// The index whose strides add up to the element, largest strides first; counted as one row where there is none.
std::string GlobalShadow::Allocation::ElementText(uint64_t number) const {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, std::greater(), [&](size_t d) { return strides[d]; });
  std::vector<int64_t> index(shape.size());
  auto rest = int64_t(number);
  for (const size_t d : order) {
    index[d] = std::min(rest / strides[d], shape[d] - 1);
    rest -= index[d] * strides[d];
  }
  return name + (rest == 0 && !index.empty() ? IndexText(index) : "[" + std::to_string(number) + "]");
}

NamedPlace GlobalShadow::NameOf(const void* data) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const Allocation* nearest = nullptr;
  uint64_t distance = std::numeric_limits<uint64_t>::max();
  for (const Allocation& a : allocations_) {
    const auto begin = reinterpret_cast<uintptr_t>(a.data), end = begin + a.bytes;
    const uint64_t element = (at - begin) / a.element;
    if (at >= begin && at < end) return {a.ElementText(element), {.address = at - begin, .elements = {{a.name, element}}}};
    const uint64_t away = at < begin ? begin - at : at - end + 1;
    if (away < distance) {
      distance = away;
      nearest = &a;
    }
  }
  if (nearest == nullptr) return {"an address in no tensor", {.address = at, .elements = {}}};
  const auto begin = reinterpret_cast<uintptr_t>(nearest->data);
  const int64_t offset = int64_t(at - begin);  // negative: before the start
  return {std::to_string(distance) + " bytes " + (offset < 0 ? "before the start" : "past the end") + " of " + nearest->name + ", which has " +
              std::to_string(nearest->bytes),
          {.address = uint64_t(offset), .elements = {{nearest->name, uint64_t(offset / int64_t(nearest->element))}}}};
}

}  // namespace kiln::emulator
