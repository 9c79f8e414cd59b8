// SPDX-License-Identifier: Apache-2.0
//
// PTX ISA, "Data Movement and Conversion Instructions": ld, st, cvta, cp.async; and "Parallel Synchronization": atom, red, fences. One thread
// runs at a time, so that every access is seen by all at once and fences have nothing to do.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/numbers.h"

namespace kiln::ptx {
namespace {

constexpr uint64_t kWindow = uint64_t{1} << 60;

Space SpaceOf(const Instruction& i) {
  for (const std::string& word : i.words) {
    if (word == "global" || word == "const") return Space::kGlobal;
    if (word == "shared" || word == "shared::cta") return Space::kShared;
    if (word == "local") return Space::kLocal;
    if (word == "param") return Space::kParam;
    if (word == "shared::cluster") return Space::kCluster;
  }
  return Space::kGeneric;
}
Space SpaceOfNumber(const Instruction& i) { return Space(i.number & 7); }

uint64_t LoadBits(const std::byte* from, uint32_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, bytes);
  return bits;
}

void Load(Thread& t, const Instruction& i) {
  const Operand& to = i.operands[0];
  const uint32_t count = to.kind == Operand::Kind::kVector ? uint32_t(to.parts.size()) : 1, each = i.type.Bytes();
  const std::byte* from = t.PlaceToRead(SpaceOfNumber(i), t.Address(i.operands[1]), each * count);
  for (uint32_t p = 0; p < count; ++p) {
    uint64_t bits = LoadBits(from + p * each, each);
    if (i.type.kind == 's') bits = uint64_t(int64_t(bits << (64 - i.type.bits)) >> (64 - i.type.bits));
    t.Write(count == 1 && to.kind != Operand::Kind::kVector ? to : to.parts[p], bits);
  }
}

void Store(Thread& t, const Instruction& i) {
  const Operand& from = i.operands[1];
  const uint32_t count = from.kind == Operand::Kind::kVector ? uint32_t(from.parts.size()) : 1, each = i.type.Bytes();
  std::byte* to = t.Place(SpaceOfNumber(i), t.Address(i.operands[0]), each * count);
  for (uint32_t p = 0; p < count; ++p) {
    const uint64_t bits = t.Read(from.kind == Operand::Kind::kVector ? from.parts[p] : from);
    std::memcpy(to + p * each, &bits, each);
  }
}

uint64_t ToWindow(Space space) { return space == Space::kShared ? kWindow : space == Space::kLocal ? 2 * kWindow : 0; }
void ConvertAddress(Thread& t, const Instruction& i) {
  const uint64_t address = t.Read(i.operands[1]), window = ToWindow(SpaceOfNumber(i));
  t.Write(i.operands[0], i.Has("to") ? address - window : address + window);
}

enum class AtomicKind : uint32_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompare, kIncrement, kDecrement };

template <typename T>
uint64_t Changed(AtomicKind kind, uint64_t old_bits, uint64_t bits) {
  const T old = FromBits<T>(old_bits), v = FromBits<T>(bits);
  if constexpr (kIsSmall<T>) {
    const double a = old.value, b = v.value;
    return ToBits(T{kind == AtomicKind::kAdd ? a + b : kind == AtomicKind::kMin ? std::fmin(a, b) : std::fmax(a, b)});
  } else if constexpr (std::is_floating_point_v<T>) {
    return ToBits(kind == AtomicKind::kAdd ? old + v : kind == AtomicKind::kMin ? std::fmin(old, v) : std::fmax(old, v));
  } else {
    switch (kind) {
      case AtomicKind::kAdd: return old_bits + bits;
      case AtomicKind::kMin: return ToBits(std::min(old, v));
      case AtomicKind::kMax: return ToBits(std::max(old, v));
      case AtomicKind::kAnd: return old_bits & bits;
      case AtomicKind::kOr: return old_bits | bits;
      case AtomicKind::kXor: return old_bits ^ bits;
      case AtomicKind::kIncrement: return old >= v ? 0 : old_bits + 1;
      case AtomicKind::kDecrement: return old == 0 || old > v ? bits : old_bits - 1;
      default: return bits;
    }
  }
}

uint64_t ChangedOf(const Instruction& i, AtomicKind kind, uint64_t old, uint64_t bits) {
  const Type type = i.type;
  if (type.lanes == 2) {
    uint64_t result = 0;
    for (int half = 0; half < 2; ++half) {
      const uint64_t a = old >> (16 * half), b = bits >> (16 * half);
      result |= (type.kind == 'B' ? Changed<Bfloat>(kind, a, b) : Changed<Half>(kind, a, b)) << (16 * half);
    }
    return result;
  }
  if (type.kind == 'B') return Changed<Bfloat>(kind, old, bits);
  if (type.kind == 'f') {
    return type.bits == 16 ? Changed<Half>(kind, old, bits) : type.bits == 32 ? Changed<float>(kind, old, bits) : Changed<double>(kind, old, bits);
  }
  if (type.bits == 32) return type.kind == 's' ? Changed<int32_t>(kind, old, bits) : Changed<uint32_t>(kind, old, bits);
  return type.kind == 's' ? Changed<int64_t>(kind, old, bits) : Changed<uint64_t>(kind, old, bits);
}

void Atomic(Thread& t, const Instruction& i) {
  const bool gives_old = i.words[0] == "atom";
  const size_t first = gives_old ? 1 : 0;
  const auto kind = AtomicKind(i.number >> 3);
  std::byte* place = t.Place(SpaceOfNumber(i), t.Address(i.operands[first]), i.type.Bytes());
  const uint64_t old = LoadBits(place, i.type.Bytes()), given = t.Read(i.operands[first + 1]);
  uint64_t next = 0;
  if (kind == AtomicKind::kCompare) {
    const uint64_t mask = i.type.bits == 64 ? ~uint64_t{0} : (uint64_t{1} << i.type.bits) - 1;
    next = old == (given & mask) ? t.Read(i.operands[first + 2]) : old;
  } else {
    next = ChangedOf(i, kind, old, given);
  }
  std::memcpy(place, &next, i.type.Bytes());
  if (gives_old) t.Write(i.operands[0], old);
}

Execute DecodeAtomic(Instruction& i) {
  static const std::map<std::string, AtomicKind> kKinds = {
      {"add", AtomicKind::kAdd},       {"min", AtomicKind::kMin},      {"max", AtomicKind::kMax},       {"and", AtomicKind::kAnd},
      {"or", AtomicKind::kOr},         {"xor", AtomicKind::kXor},      {"exch", AtomicKind::kExchange}, {"cas", AtomicKind::kCompare},
      {"inc", AtomicKind::kIncrement}, {"dec", AtomicKind::kDecrement}};
  for (const std::string& word : i.words) {
    const auto it = kKinds.find(word);
    if (it == kKinds.end()) continue;
    i.number = uint32_t(it->second) << 3 | uint32_t(SpaceOf(i));
    if (i.type.kind == 0 || i.type.bits < 16) throw Refusal("an atomic of an unknown type");
    return Atomic;
  }
  throw Refusal("an unknown atomic");
}

// With the sizes that the instruction names: to copy, and of that to read.
void CopyAsync(Thread& t, const Instruction& i) {
  const uint64_t to = t.Address(i.operands[0]), from = t.Address(i.operands[1]);
  const auto bytes = uint32_t(t.Read(i.operands[2]));
  const uint32_t read = i.operands.size() > 3 ? uint32_t(t.Read(i.operands[3])) : bytes;
  if (read > bytes) throw Failure("cp.async reads more than it writes");
  const Copy copy{from, to, bytes, read};
  t.Place(Space::kShared, to, bytes);
  if (t.block->copies_at_once) return t.Complete({copy});
  t.copies.push_back(copy);
}
void CommitGroup(Thread& t, const Instruction&) {
  t.groups.push_back(std::move(t.copies));
  t.copies.clear();
}
void WaitGroup(Thread& t, const Instruction& i) {
  for (const uint64_t most = t.Read(i.operands[0]); t.groups.size() > most; t.groups.pop_front()) t.Complete(t.groups.front());
}
void WaitAll(Thread& t, const Instruction& i) {
  CommitGroup(t, i);
  for (; !t.groups.empty(); t.groups.pop_front()) t.Complete(t.groups.front());
}

void Nothing(Thread&, const Instruction&) {}
void Zero(Thread& t, const Instruction& i) { t.Write(i.operands[0], 0); }

}  // namespace

Execute DecodeMemory(Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "ld" || name == "ldu" || name == "st" || name == "cvta") i.number = uint32_t(SpaceOf(i));
  if (name == "ld" || name == "ldu") return Load;
  if (name == "st") {
    if (i.words[1] == "async" || i.words[1] == "bulk") return nullptr;
    return Store;
  }
  if (name == "cvta") return ConvertAddress;
  if (name == "atom" || name == "red") return DecodeAtomic(i);
  if (name == "fence" || name == "membar" || name == "prefetch" || name == "prefetchu" || name == "discard") return Nothing;
  if (name == "createpolicy") return Zero;
  if (name != "cp" || i.words[1] != "async") return nullptr;
  const std::string& kind = i.words[2];
  if (kind == "ca" || kind == "cg") return CopyAsync;
  if (kind == "commit_group") return CommitGroup;
  if (kind == "wait_group") return WaitGroup;
  if (kind == "wait_all") return WaitAll;
  return nullptr;
}

}  // namespace kiln::ptx
