// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/registers.h"

#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using ir::BufferId;

Registers::Registers(KernelContext& context, const Places& places) : Part(context), places_(places) {
  ir::Walk(kernel().body, [&](const ir::Stmt& stmt) {
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    if (gemm != nullptr && RowOf(*gemm, target()).in_flight) in_products_.insert({gemm->a.buffer, gemm->b.buffer, gemm->c.buffer});
  });
}

Registers::Held& Registers::HeldHere(BufferId fragment, int64_t number, llvm::Type* type) {
  Held& held = held_[{ir::Index(fragment), number}];
  llvm::BasicBlock* here = b().GetInsertBlock();
  if (held.block != here) held = {.block = here, .pointer = b().CreateConstInBoundsGEP1_64(type, places_.Of(fragment), uint64_t(number))};
  return held;
}

int64_t Registers::PerWord(BufferId fragment) const {
  const ir::Buffer& buffer = module()[fragment];
  if (!target().Has(target::Feature::kWordRegisters) || buffer.space != ir::Space::kFragment || !buffer.layout) return 1;
  const int64_t bits = ir::Bits(buffer.dtype), each = bits < 8 || bits >= 32 ? 1 : 32 / bits;
  return buffer.layout->Registers() % each == 0 ? each : 1;
}

Registers::Held& Registers::WordHere(BufferId fragment, int64_t reg) {
  const int64_t each = PerWord(fragment);
  Held& held = HeldHere(fragment, reg / each, b().getInt32Ty());
  held.elements.resize(size_t(each));
  return held;
}

Value* Registers::WordOf(Held& held) {
  if (held.value == nullptr) held.value = b().CreateLoad(b().getInt32Ty(), held.pointer);
  return held.value;
}

Value* Registers::LoadElement(Held& held, int64_t element, ir::DType dtype) {
  Value*& known = held.elements[size_t(element)];
  if (known == nullptr) {
    auto* type = llvm::FixedVectorType::get(MemoryType(llvm(), dtype), unsigned(held.elements.size()));
    known = b().CreateExtractElement(b().CreateBitCast(WordOf(held), type), uint64_t(element));
  }
  return known;
}

void Registers::PutElement(Held& held, int64_t element, ir::DType dtype, Value* v) {
  for (int64_t i = 0; i < int64_t(held.elements.size()); ++i)
    if (i != element) LoadElement(held, i, dtype);
  held.elements[size_t(element)] = v;
  held.value = Word(held.elements, dtype);
  StoreHeld(held);
}

Value* Registers::Load(BufferId fragment, int64_t reg) {
  const ir::DType dtype = module()[fragment].dtype;
  if (const int64_t each = PerWord(fragment); each > 1) return LoadElement(WordHere(fragment, reg), reg % each, dtype);
  Held& held = HeldHere(fragment, reg, MemoryType(llvm(), dtype));
  if (held.value == nullptr) held.value = b().CreateLoad(MemoryType(llvm(), dtype), held.pointer);
  return held.value;
}

void Registers::Store(BufferId fragment, int64_t reg, Value* v) {
  if (in_products_.contains(fragment)) device().AssignRegister(ir::Index(fragment), reg, v);
  Put(fragment, reg, v);
}

void Registers::Put(BufferId fragment, int64_t reg, Value* v) {
  const ir::DType dtype = module()[fragment].dtype;
  if (const int64_t each = PerWord(fragment); each > 1) return PutElement(WordHere(fragment, reg), reg % each, dtype, v);
  Held& held = HeldHere(fragment, reg, MemoryType(llvm(), dtype));
  held.value = v;
  StoreHeld(held);
}

void Registers::StoreHeld(Held& held) {
  if (held.store == nullptr) {
    held.store = b().CreateStore(held.value, held.pointer);
  } else {
    held.store->setOperand(0, held.value);
    held.store->moveBefore(*held.block, held.block->end());
  }
}

void Registers::Use(BufferId fragment, int64_t first, int64_t count) { device().UseRegisters(ir::Index(fragment), first, count); }

void Registers::Forget(BufferId fragment) {
  held_.erase(held_.lower_bound({ir::Index(fragment), 0}), held_.lower_bound({ir::Index(fragment) + 1, 0}));
}

Values Registers::Words(BufferId fragment, int64_t first, int64_t count) {
  const ir::DType dtype = module()[fragment].dtype;
  const int64_t each = 32 / ir::Bits(dtype);
  Values words;
  const bool whole = PerWord(fragment) == each && first % each == 0;
  for (int64_t r = first; r < first + count; r += each) {
    if (whole && each > 1) {
      words.push_back(WordOf(WordHere(fragment, r)));
      continue;
    }
    Values elements;
    for (int64_t i = 0; i < each; ++i) elements.push_back(Load(fragment, r + i));
    words.push_back(Word(elements, dtype));
  }
  return words;
}

Value* Registers::Word(std::span<Value* const> elements, ir::DType dtype) const {
  if (elements.size() == 1) return b().CreateBitCast(elements[0], b().getInt32Ty());
  Value* vector = llvm::PoisonValue::get(llvm::FixedVectorType::get(MemoryType(llvm(), dtype), unsigned(elements.size())));
  for (size_t i = 0; i < elements.size(); ++i) vector = b().CreateInsertElement(vector, elements[i], uint64_t(i));
  return b().CreateBitCast(vector, b().getInt32Ty());
}

}  // namespace kiln::llvm_ir
