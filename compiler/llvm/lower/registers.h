// SPDX-License-Identifier: Apache-2.0
//
// Registers of fragments. They live in an array on the stack that is indexed by constants only, so that LLVM's SROA turns every element into
// an SSA value. On targets whose registers have 32 bits only, the values of narrower elements are words, so that what one iteration of a
// loop hands to the next is neither taken apart nor put together.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compiler/llvm/lower/places.h"

namespace kiln::llvm_ir {

class Registers : Part {
 public:
  Registers(KernelContext& context, const Places& places);

  Value* Load(ir::BufferId fragment, int64_t reg);
  void Store(ir::BufferId fragment, int64_t reg, Value* v);
  void Put(ir::BufferId fragment, int64_t reg, Value* v);         // a store by the product that computes the fragment
  void Use(ir::BufferId fragment, int64_t first, int64_t count);  // tells the emulator which registers the last started products use
  // The fragment is about to be accessed by address.
  void Forget(ir::BufferId fragment);
  // Registers first … first + count − 1 as words of 32 bits, as matrix instructions take them.
  Values Words(ir::BufferId fragment, int64_t first, int64_t count);
  Value* Word(std::span<Value* const> elements, ir::DType dtype) const;

 private:
  // What is known of a register in the block under construction. Only its first read and its last write there become memory accesses: the
  // time in which LLVM promotes them grows with the number of accesses times the length of the block. An access by address ends this
  // knowledge.
  struct Held {
    llvm::BasicBlock* block = nullptr;
    Value* pointer = nullptr;
    Value* value = nullptr;  // nullptr: not read or written here yet
    llvm::StoreInst* store = nullptr;
    Values elements;  // of a word; nullptr: as in `value`
  };
  // `number`: of a register or of a word, of this type.
  Held& HeldHere(ir::BufferId fragment, int64_t number, llvm::Type* type);
  void StoreHeld(Held& held);
  // Elements that make a word of a fragment; 1 where each has a register of its own.
  int64_t PerWord(ir::BufferId fragment) const;
  Held& WordHere(ir::BufferId fragment, int64_t reg);
  Value* WordOf(Held& held);
  Value* LoadElement(Held& held, int64_t element, ir::DType dtype);
  void PutElement(Held& held, int64_t element, ir::DType dtype, Value* v);

  const Places& places_;
  std::map<std::pair<uint32_t, int64_t>, Held> held_;  // by fragment and number
  std::set<ir::BufferId> in_products_;                 // fragments whose registers wgmma reads or writes
};

}  // namespace kiln::llvm_ir
