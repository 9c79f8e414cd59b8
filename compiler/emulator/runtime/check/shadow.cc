// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check/shadow.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "compiler/emulator/program.h"

namespace kiln::emulator {
namespace {

bool Ordered(const Who& a, uint32_t block, uint32_t time, uint32_t agent) {
  if (block == 0) return true;
  if (block != a.block) return a.ahead != nullptr && a.ahead->contains(block);
  if (a.order != nullptr) return a.order->After(agent, time);
  return agent == a.agent || time != a.time;
}

// Threads of a block that write one value by one statement, as those that hold copies of it do: it is there whichever comes last.
// `same`: the value that is there is written.
bool Harmless(const Who& who, const Clash& clash, uint32_t block_threads, bool same) {
  const Who& other = clash.other;
  return same && clash.kind == Clash::kRace && clash.other_writes && other.block == who.block && other.location == who.location &&
         other.agent / block_threads == who.agent / block_threads;
}

}  // namespace

bool Order::After(uint32_t agent, uint32_t time) const {
  if (agent == self) return true;
  if (after.agent != agent || after.time != time) {
    after = {agent, time, std::ranges::all_of(views, [&](const View& view) { return view.seen.Covers(agent, time); })};
  }
  return after.value;
}

bool Order::Fenced(uint32_t agent, uint32_t time) const {
  if (!async || agent >= threads) return true;
  if (fenced.agent != agent || fenced.time != time) {
    fenced = {agent, time, std::ranges::all_of(views, [&](const View& view) { return view.fenced.Covers(agent, time); })};
  }
  return fenced.value;
}

void Accesses::Drop(uint32_t& list, const Who& who) {
  for (uint32_t* link = &list; *link != 0;) {
    Node& node = nodes_[*link];
    if (node.agent != who.agent && !Ordered(who, uint32_t(who.block), node.time, node.agent)) {
      link = &node.next;
      continue;
    }
    const uint32_t freed = *link;
    *link = node.next;
    nodes_[freed].next = free_;
    free_ = freed;
  }
}

void Accesses::Add(uint32_t& list, const Who& who, const Node& access) {
  Drop(list, who);
  uint32_t index = free_;
  if (index == 0) {
    index = uint32_t(nodes_.size());
    nodes_.emplace_back();
  } else {
    free_ = nodes_[index].next;
  }
  nodes_[index] = access;
  nodes_[index].next = list;
  list = index;
}

std::optional<Accesses::Node> Accesses::Find(uint32_t list, const Who& who) const {
  while (list != 0 && Ordered(who, uint32_t(who.block), nodes_[list].time, nodes_[list].agent)) list = nodes_[list].next;
  return list == 0 ? std::nullopt : std::optional(nodes_[list]);
}

void Accesses::Free(uint32_t& list) {
  if (list == 0) return;
  uint32_t last = list;
  while (nodes_[last].next != 0) last = nodes_[last].next;
  nodes_[last].next = free_;
  free_ = list;
  list = 0;
}

Clash Cell::WriterClash(const Who& who, Touch touch, const Accesses& accesses, const OfOthers* of_others) const {
  const Who other{writer_block, writer_time, writer, writer_location};
  if (pending) return {Clash::kPending, true, other};
  const bool both_atomic = touch == Touch::kAtomic && writer_atomic;
  if (!both_atomic && !Ordered(who, writer_block, writer_time, writer)) return {Clash::kRace, true, other};
  if (touch != Touch::kAtomic && writer_atomic) {
    if (const Clash clash = AtomicsClash(who, accesses, of_others); clash.kind != Clash::kNone) return clash;
  }
  const bool fenced = who.order == nullptr || writer_block != who.block || who.order->Fenced(writer, writer_time);
  return fenced ? Clash{} : Clash{Clash::kUnfenced, true, other};
}

// With those that the writer, an atomic too, did not clash with.
Clash Cell::AtomicsClash(const Who& who, const Accesses& accesses, const OfOthers* of_others) const {
  if (of_others != nullptr && of_others->atomic.block != 0) {
    const Abroad& other = of_others->atomic;
    if (!Ordered(who, other.block, 0, other.agent)) return {Clash::kRace, true, {other.block, 0, other.agent, other.location}};
  }
  const auto other = accesses.Find(atomics, who);
  return other ? Clash{Clash::kRace, true, {who.block, other->time, other->agent, other->location}} : Clash{};
}

Clash Cell::ReadersClash(const Who& who, const Accesses& accesses, const OfOthers* of_others) const {
  if (!Ordered(who, reader_block, reader_time, reader)) return {Clash::kRace, false, {reader_block, reader_time, reader, reader_location}};
  if (many_readers && reader_time == who.time && peer != who.agent) {
    return {Clash::kRace, false, {who.block, reader_time, peer, peer_location}};
  }
  if (const auto other = accesses.Find(readers, who)) return {Clash::kRace, false, {who.block, other->time, other->agent, other->location}};
  if (who.order != nullptr && reader_block == who.block && !who.order->Fenced(reader, reader_time)) {
    return {Clash::kUnfenced, false, {reader_block, reader_time, reader, reader_location}};
  }
  if (of_others == nullptr || !many_blocks) return {};
  const Abroad& other = of_others->reader;
  if (Ordered(who, other.block, 0, other.agent)) return {};  // of the blocks before it nothing is known
  return {Clash::kRace, false, {other.block, 0, other.agent, other.location}};
}

void Cell::NoteRead(const Who& who, Accesses& accesses, OfOthers* of_others) {
  if (reader_block != 0 && reader_block != who.block) {
    if (of_others != nullptr) of_others->reader = {reader_block, reader, reader_location};
    many_blocks = true;
    accesses.Free(readers);
    many_readers = false;
  } else if (who.order == nullptr) {
    if (reader_block != 0 && reader_time == who.time) {
      if (reader == who.agent) return;
      many_readers = true;
      peer = who.agent;
      peer_location = who.location;
      return;
    }
    many_readers = false;
  } else if (reader_block != 0 && reader != who.agent) {
    const bool before = who.order->After(reader, reader_time);
    if (!before) accesses.Add(readers, who, {reader, reader_time, reader_location, 0});
    if (before && readers != 0) accesses.Drop(readers, who);
  }
  reader_block = uint32_t(who.block);
  reader_time = who.time;
  reader = who.agent;
  reader_location = who.location;
}

// Behind another atomic, with which it does not clash: what comes later may clash with both. Without clocks one of an epoch is enough.
void Cell::NoteAtomic(const Who& who, Accesses& accesses, OfOthers* of_others) {
  if (writer_block != who.block) {
    if (of_others != nullptr) of_others->atomic = {writer_block, writer, writer_location};
    accesses.Free(atomics);
    return;
  }
  accesses.Drop(atomics, who);
  const bool enough = who.order == nullptr && atomics != 0;
  if (!enough && !Ordered(who, writer_block, writer_time, writer)) accesses.Add(atomics, who, {writer, writer_time, writer_location, 0});
}

void Cell::NoteWriter(const Who& who, Touch touch) {
  writer_block = uint32_t(who.block);
  writer_time = who.time;
  writer = who.agent;
  writer_location = who.location;
  writer_atomic = touch == Touch::kAtomic;
}

Clash Cell::Note(const Who& who, Touch touch, Accesses& accesses, OfOthers* of_others) {
  Clash clash = WriterClash(who, touch, accesses, of_others);
  if (touch == Touch::kRead) {
    NoteRead(who, accesses, of_others);
    return clash;
  }
  const Clash read = ReadersClash(who, accesses, of_others);
  if (clash.kind == Clash::kNone) clash = read;
  if (who.order != nullptr) {
    accesses.Free(readers);
    if (!many_blocks) reader_block = 0;
  }
  if (touch == Touch::kAtomic && writer_atomic) {
    NoteAtomic(who, accesses, of_others);
  } else {
    accesses.Free(atomics);
    if (of_others != nullptr) of_others->atomic = {};
  }
  NoteWriter(who, touch);
  return clash;
}

void SharedShadow::Enter() {
  std::ranges::fill(cells_, Cell{});
  accesses_ = {};
  lives_.Clear();
}

bool SharedShadow::IsLeft(const Statements& statements, uint32_t byte) {
  if (statements.first == statements.second || statements.first == 0 || statements.second == 0) return false;
  if (answer_ == nullptr || asked_ != statements) {
    const auto [it, added] = left_.try_emplace(statements);
    if (added) it->second = LeftByOthers(sharing_, statements.first, statements.second);
    asked_ = statements;
    answer_ = &it->second;
  }
  return std::ranges::any_of(*answer_, [&](const SharedRange& r) { return byte >= r.first && byte < r.end; });
}

Clash::Kind SharedShadow::Leftover(const Who& who, uint32_t thread, uint32_t byte, Touch touch) {
  const bool reads = touch != Touch::kWrite && cells_[byte].writer_block != 0;
  Clash::Kind kind = Clash::kNone;
  if (reads && !sharing_.empty() && IsLeft({who.location, cells_[byte].writer_location}, byte)) kind = Clash::kUninitialized;
  if (lives_.empty()) return kind;
  if (reads && kind == Clash::kNone && lives_.IsOver(thread, who.location, byte)) kind = Clash::kOutlived;
  if (touch != Touch::kRead) lives_.Write(thread, byte);
  return kind;
}

Clash SharedShadow::Note(const Who& who, uint32_t thread, uint32_t offset, uint32_t bytes, Touch touch, const std::byte* before,
                         const std::byte* after) {
  Clash found;
  const bool plain = who.order == nullptr;
  const auto find = [&](const Clash& clash, uint32_t byte) {
    if (found.kind != Clash::kNone) return;
    found = clash;
    found.byte = byte;
  };
  for (uint32_t i = 0; i < bytes; ++i) {
    Cell& cell = cells_[offset + i];
    const Clash::Kind left = Leftover(who, thread, offset + i, touch);
    if (left != Clash::kNone) find({left, true, {cell.writer_block, cell.writer_time, cell.writer, cell.writer_location}}, i);
    if (plain && (touch == Touch::kWrite || cell.writer_block != 0) && cell.NotePlain(who, touch)) continue;
    const bool unwritten = cell.writer_block == 0 && touch != Touch::kWrite;
    const Clash clash = cell.Note(who, touch, accesses_, nullptr);
    const bool same = after != nullptr && before[i] == after[i];
    if (clash.kind != Clash::kNone && !Harmless(who, clash, block_threads_, same)) find(clash, i);
    if (unwritten) find({.kind = Clash::kUninitialized}, i);
  }
  return found;
}

Clash SharedShadow::Start(const Who& who, uint32_t thread, uint32_t offset, uint32_t bytes) {
  const Clash clash = Note(who, thread, offset, bytes, Touch::kWrite, nullptr, nullptr);
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

GlobalShadow::GlobalShadow(std::span<const Memory> memory, uint32_t block_threads) : block_threads_(block_threads) {
  for (Storage& storage : Gather(memory)) {
    const uint64_t bytes = storage.bytes, elements = bytes / storage.element;
    allocations_.push_back({std::move(storage), Pages((elements + 1) * sizeof(GlobalCell)), Pages(bytes)});
  }
}

std::vector<GlobalShadow::Storage> GlobalShadow::Gather(std::span<const Memory> memory) {
  std::vector<Storage> all;
  for (const Memory& m : memory) {
    if (m.bytes == 0) continue;
    const bool known = std::ranges::all_of(m.strides, [](int64_t stride) { return stride > 0; }) && m.strides.size() == m.shape.size();
    auto* const data = static_cast<std::byte*>(m.data);
    Storage added{.data = data, .bytes = m.bytes, .element = std::max(m.element_bytes, 1u), .tensors = {}};
    added.tensors.push_back({data, m.bytes, added.element, m.name, {}, {}});
    if (known) added.tensors.back().shape = m.shape, added.tensors.back().strides = m.strides;
    for (auto other = all.begin(); other != all.end();) {
      const std::less<> before;
      if (!before(other->data, added.data + added.bytes) || !before(added.data, other->data + other->bytes)) {
        ++other;
        continue;
      }
      std::byte* const end = std::max(added.data + added.bytes, other->data + other->bytes);
      const auto apart = uint32_t(std::abs(added.data - other->data) % std::max(added.element, other->element));
      added.element = std::gcd(std::gcd(added.element, other->element), apart);
      added.data = std::min(added.data, other->data);
      added.bytes = uint64_t(end - added.data);
      added.tensors.insert(added.tensors.begin(), other->tensors.begin(), other->tensors.end());
      other = all.erase(other);
    }
    all.push_back(std::move(added));
  }
  return all;
}

bool GlobalShadow::Tensor::Holds(uintptr_t at, uint64_t count) const {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return at >= begin && at - begin <= bytes && count <= bytes - (at - begin);
}

void GlobalShadow::Restore() {
  for (Allocation& a : allocations_) {
    for (uint64_t i = 0; a.Cells() != nullptr && i < a.elements(); ++i) {
      if (a.Cells()[i].writer_block != 0) std::memcpy(a.data + i * a.element, a.before.data() + i * a.element, a.element);
    }
    a.cells.Clear();
  }
  for (Stripe& stripe : stripes_) stripe.accesses = {};
  crossed_ = false;
}

std::optional<size_t> GlobalShadow::Find(const void* data, uint32_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  for (size_t i = 0; i < allocations_.size(); ++i) {
    if (std::ranges::any_of(allocations_[i].tensors, [&](const Tensor& tensor) { return tensor.Holds(at, bytes); })) return i;
  }
  return std::nullopt;
}

Clash GlobalShadow::NoteElement(const Who& who, const Allocation& a, uint64_t number, Touch touch, const std::byte* after, Accesses& accesses) {
  GlobalCell& cell = a.Cells()[number];
  const std::byte* now = a.data + number * a.element;
  if (touch != Touch::kRead && cell.writer_block == 0) std::memcpy(a.before.data() + number * a.element, now, a.element);
  if (who.order == nullptr && cell.NotePlain(who, touch)) return {};
  const Clash clash = cell.Note(who, touch, accesses, &cell.of_others);
  if (clash.kind == Clash::kNone) return clash;
  if (clash.other.block != who.block) crossed_.store(true, std::memory_order_relaxed);
  return Harmless(who, clash, block_threads_, after != nullptr && std::memcmp(now, after, a.element) == 0) ? Clash{} : clash;
}

Clash GlobalShadow::Note(const Who& who, size_t allocation, const std::byte* data, uint32_t bytes, Touch touch, const std::byte* after) {
  const Allocation& a = allocations_[allocation];
  if (a.Cells() == nullptr) return {};
  const uint64_t offset = uint64_t(data - a.data), first = offset / a.element, last = (offset + bytes - 1) / a.element;
  Clash found;
  for (uint64_t i = first; i <= last; ++i) {
    const uint64_t in_access = i * a.element - std::min(offset, i * a.element);
    const bool whole = i * a.element >= offset && in_access + a.element <= bytes;
    Stripe& stripe = stripes_[(i / 16 + allocation * 37) % kLocks];
    while (stripe.lock.test_and_set(std::memory_order_acquire)) {
    }
    const Clash clash = NoteElement(who, a, i, touch, after != nullptr && whole ? after + in_access : nullptr, stripe.accesses);
    stripe.lock.clear(std::memory_order_release);
    if (found.kind != Clash::kNone || clash.kind == Clash::kNone) continue;
    found = clash;
    found.byte = uint32_t(in_access);
  }
  return found;
}

// The index whose strides add up to the element, largest strides first; counted as one row where there is none.
std::string GlobalShadow::Tensor::ElementText(uint64_t number) const {
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
  NamedPlace named;
  const Tensor* nearest = nullptr;
  uint64_t distance = std::numeric_limits<uint64_t>::max();
  for (const Allocation& a : allocations_) {
    for (const Tensor& tensor : a.tensors) {
      const auto begin = reinterpret_cast<uintptr_t>(tensor.data), end = begin + tensor.bytes;
      if (tensor.Holds(at, 1)) {
        const uint64_t element = (at - begin) / tensor.element;
        if (named.text.empty()) named.place.address = at - begin;
        named.text += (named.text.empty() ? "" : " or ") + tensor.ElementText(element);
        named.place.elements.push_back({tensor.name, element});
        continue;
      }
      const uint64_t away = at < begin ? begin - at : at - end + 1;
      if (away < distance) {
        distance = away;
        nearest = &tensor;
      }
    }
  }
  if (!named.text.empty()) return named;
  if (nearest == nullptr) return {"an address in no tensor", {.address = at, .elements = {}}};
  const auto begin = reinterpret_cast<uintptr_t>(nearest->data);
  const int64_t offset = int64_t(at - begin);  // negative: before the start
  return {std::to_string(distance) + " bytes " + (offset < 0 ? "before the start" : "past the end") + " of " + nearest->name + ", which has " +
              std::to_string(nearest->bytes),
          {.address = uint64_t(offset), .elements = {{nearest->name, uint64_t(offset / int64_t(nearest->element))}}}};
}

}  // namespace kiln::emulator
