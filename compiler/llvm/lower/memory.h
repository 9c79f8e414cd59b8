// SPDX-License-Identifier: Apache-2.0
//
// Elements of buffers by their indices: addresses, bounds, and the accesses themselves. Accesses outside of a tensor do nothing; those
// outside of a tile are mistakes, which the emulator reports.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "compiler/llvm/lower/evaluator.h"
#include "compiler/llvm/lower/places.h"
#include "compiler/llvm/lower/registers.h"
#include "compiler/llvm/lower/shared_memory.h"

namespace kiln::llvm_ir {

class Memory : Part {
 public:
  Memory(KernelContext& context, Evaluator& evaluator)
      : Part(context), evaluator_(evaluator), places_(context), registers_(context, places_), shared_(context, places_) {}

  Places& places() { return places_; }
  Registers& registers() { return registers_; }
  SharedMemory& shared() { return shared_; }

  // One element, accessed where `condition` (i1; nullptr: always) holds. Values are as memory holds them; a load that does not happen gives
  // the buffer's pad value.
  Value* Load(ir::BufferId buffer, std::span<const ir::ExprId> indices, Value* condition);
  void Store(ir::BufferId buffer, std::span<const ir::ExprId> indices, Value* v, Value* condition);
  void Update(const ir::Atomic& atomic, Value* condition);
  // From here on fences around them order changes of global memory.
  void SetFenced(bool fenced) { fenced_ = fenced; }
  Value* ElementPointer(ir::BufferId buffer, std::span<const ir::ExprId> indices);

  // Whether the element exists (i1; nullptr: always). ElementExists: outside of tensors it does not; of other buffers the program sees to it.
  Value* InsideOf(ir::BufferId buffer, std::span<const ir::ExprId> indices);
  Value* ElementExists(ir::BufferId buffer, std::span<const ir::ExprId> indices);
  // Whether the emulator has to check that an access stays in its tile or array; the check, of an access that takes place where `exists`
  // holds.
  bool MayLeave(ir::BufferId buffer, std::span<const ir::ExprId> indices, const compiler::Facts& known) const;
  bool MayLeave(ir::BufferId buffer, std::span<const ir::ExprId> indices) const { return MayLeave(buffer, indices, facts()); }
  void CheckInside(ir::BufferId buffer, std::span<const ir::ExprId> indices, Value* exists, bool write);

  // On the emulator, of a thread's array, elsewhere nothing: notes that a region without strides is written.
  void NoteWritten(const ir::Region& region);

  // `once`: past the first cache.
  Value* LoadGuarded(ir::BufferId buffer, llvm::Type* type, Value* pointer, Value* condition, llvm::Align align, Value* otherwise, bool once);
  // Two aligned vectors of so many i32s, as one: they lie `nearer` and `further` bytes (i64) behind that in which the pointer's byte lies. The
  // emulator would take them for accesses to what lies around the tensor.
  Value* LoadAround(ir::BufferId buffer, unsigned words, Value* pointer, Value* condition, Value* nearer, Value* further);
  llvm::Align AlignOf(ir::BufferId buffer, int64_t elements) const;
  Value* PadValue(const ir::Buffer& buffer) const;
  Values StridesOf(ir::BufferId global);  // i64, elements

  // Byte offset of a region's start in a shared buffer, split for swizzling.
  struct RegionStart {
    Value* before = nullptr;  // to be swizzled together with the element's offset
    Value* after = nullptr;   // multiple of the swizzle's period
  };
  RegionStart StartOf(const ir::Region& region);
  // The emulator's check that the region stays in its tile or array; elsewhere nothing.
  void CheckRegion(const ir::Region& region);

 private:
  Value* Guarded(ir::BufferId buffer, llvm::Type* type, Value* pointer, Value* condition, Value* otherwise,
                 const std::function<Value*(Value* from)>& load);
  Value* FlatOffset(ir::BufferId buffer, std::span<const ir::ExprId> indices);  // in elements
  Value* RegisterOf(ir::BufferId fragment, std::span<const ir::ExprId> indices);
  void StopWhere(Value* outside, ir::BufferId buffer, std::span<Value* const> index, bool write);
  // The byte that says whether the element has been written; nullptr: nothing does.
  Value* WrittenByte(ir::BufferId buffer, std::span<const ir::ExprId> indices);
  // The emulator's check that the element has been written, where `condition` holds.
  void CheckWritten(ir::BufferId buffer, std::span<const ir::ExprId> indices, Value* condition);
  bool MayBeEmpty(ir::BufferId global) const;

  Evaluator& evaluator_;
  bool fenced_ = false;
  Places places_;
  Registers registers_;
  SharedMemory shared_;
};

}  // namespace kiln::llvm_ir
