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

Registers::Held& Registers::HeldHere(BufferId fragment, int64_t reg) {
  Held& held = held_[{ir::Index(fragment), reg}];
  llvm::BasicBlock* here = b().GetInsertBlock();
  if (held.block != here) {
    llvm::Type* type = MemoryType(llvm(), module()[fragment].dtype);
    held = {.block = here, .pointer = b().CreateConstInBoundsGEP1_64(type, places_.Of(fragment), uint64_t(reg))};
  }
  return held;
}

Value* Registers::Load(BufferId fragment, int64_t reg) {
  Held& held = HeldHere(fragment, reg);
  if (held.value == nullptr) held.value = b().CreateLoad(MemoryType(llvm(), module()[fragment].dtype), held.pointer);
  return held.value;
}

void Registers::Store(BufferId fragment, int64_t reg, Value* v) {
  if (in_products_.contains(fragment)) device().AssignRegister(ir::Index(fragment), reg, v);
  Put(fragment, reg, v);
}

void Registers::Put(BufferId fragment, int64_t reg, Value* v) {
  Held& held = HeldHere(fragment, reg);
  held.value = v;
  if (held.store == nullptr) {
    held.store = b().CreateStore(v, held.pointer);
  } else {
    held.store->setOperand(0, v);
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
  for (int64_t r = first; r < first + count; r += each) {
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
