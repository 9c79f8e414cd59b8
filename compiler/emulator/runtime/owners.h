// SPDX-License-Identifier: Apache-2.0
//
// Which gang touched which element of the tensors that a launch writes, where its gangs run in parallel and nothing else is checked.
// As long as none writes what another touches, any order gives the same result. Where one does, the later one stops before it does,
// the memory goes back to what it was and the gangs run one after another in their turns: the same seed gives the same run.
//
// Concurrency: used by all gangs at once. Each marks an element as its own before it looks for the marks of others and touches it, so
// that of two at least one sees the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compiler/emulator/program.h"
#include "compiler/emulator/runtime/pages.h"
#include "compiler/emulator/runtime/shadow.h"

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
  // By gang, from 1; 0: none; kMany: several.
  struct Element {
    std::atomic<uint32_t> reader, writer, atomic, saved;
  };
  struct Tensor {
    std::byte* data;
    uint64_t bytes;
    uint32_t unit;   // bytes for which an element stands
    Pages elements, before;

    Element* At(uint64_t number) const { return reinterpret_cast<Element*>(elements.data()) + number; }
  };
  static bool NoteElement(const Tensor& tensor, uint64_t number, uint32_t self, Touch touch);
  static void Save(const Tensor& tensor, uint64_t number);

  std::vector<Tensor> tensors_;
  bool ok_ = true;
  std::atomic<bool> crossed_ = false;
};

}  // namespace kiln::emulator
