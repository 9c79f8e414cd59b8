// SPDX-License-Identifier: Apache-2.0
//
// Which gang touched which element of the tensors that a launch writes, where its gangs run in parallel and nothing else is checked.
// As long as none writes what another touches, any order gives the same result. Where one does, the later one stops before it does,
// the memory goes back to what it was and the gangs run one after another in their turns: the same seed gives the same run.
//
// Sixteen bytes, a unit, have one word as long as a single gang touches them; that is nearly always so, and costs one exchange for a
// vector. Once another gang comes, each of the unit's four parts has marks of its own.
//
// Concurrency: used by all gangs at once. A word changes by exchanges; who holds kBusy in it alone changes the unit's other state, which
// is to save it or to give it marks. Then each gang marks a part as its own before it looks for the marks of others and touches it, so
// that of two at least one sees the other.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compiler/emulator/program.h"
#include "compiler/emulator/runtime/check/pages.h"
#include "compiler/emulator/runtime/check/shadow.h"

namespace kiln::emulator {

class Owners {
 public:
  // `written`: addresses in the tensors that the launch writes; `all`: it may write any.
  Owners(std::span<const Memory> memory, std::span<const uint64_t> written, bool all);
  // False: this cannot be told, for want of memory or because tensors overlap.
  bool ok() const { return ok_; }

  // False: not to be touched by this gang, and crossed.
  bool Note(uint64_t gang, const void* data, uint32_t bytes, Touch touch);
  bool crossed() const { return crossed_.load(std::memory_order_relaxed); }
  // Memory as it was; nothing runs meanwhile.
  void Restore();

 private:
  static constexpr uint32_t kUnit = 16, kPart = 4;  // bytes
  using Word = std::atomic<uint64_t>;               // the gang, from 1; what it did to which parts; kBusy or kShared
  // By gang, from 1; 0: none; kMany: several.
  struct Marks {
    std::atomic<uint32_t> reader, writer, atomic;
  };
  struct Unit {
    std::array<Marks, kUnit / kPart> parts;
    std::atomic<uint32_t> saved;
  };
  struct Tensor {
    std::byte* data;
    uint64_t bytes;
    Pages words, units, before;

    uint64_t count() const { return (bytes + kUnit - 1) / kUnit; }
    Word& WordOf(uint64_t number) const { return reinterpret_cast<Word*>(words.data())[number]; }
    Unit& UnitOf(uint64_t number) const { return reinterpret_cast<Unit*>(units.data())[number]; }
    void Save(uint64_t number) const;
    void Restore(uint64_t number) const;
    uint64_t BytesOf(uint64_t number) const { return std::min<uint64_t>(kUnit, bytes - number * kUnit); }
  };
  // `parts`: a bit for each.
  static bool NoteUnit(const Tensor& tensor, uint64_t number, uint32_t parts, uint32_t self, Touch touch);
  static bool NoteShared(const Tensor& tensor, uint64_t number, uint32_t parts, uint32_t self, Touch touch);
  static void Share(const Tensor& tensor, uint64_t number, uint64_t word);
  static bool IsSaved(const Tensor& tensor, uint64_t number);

  std::vector<Tensor> tensors_;
  bool ok_ = true;
  std::atomic<bool> crossed_ = false;
};

}  // namespace kiln::emulator
