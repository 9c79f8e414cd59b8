// SPDX-License-Identifier: Apache-2.0
//
// What the two families' devices share: math and conversions through the family's hooks, values cut into 32-bit words,
// plain arithmetic where the hardware has no instruction.
#pragma once

#include "compiler/llvm/device/convert.h"
#include "compiler/llvm/device/device.h"
#include "compiler/llvm/math/math.h"

namespace kiln::llvm_ir {

class DeviceBase : public Device, protected NativeMath, protected NativeConvert {
 public:
  llvm::Value* SharedMemory(uint64_t bytes, std::string_view name) override;
  llvm::Value* ShuffleXor(llvm::Value* v, int mask) override;
  llvm::Value* Math(ir::ExprOp op, ir::DType dtype, std::span<llvm::Value* const> args, bool fast) override;
  llvm::Value* Convert(llvm::Value* v, ir::DType from, ir::DType to) override;
  llvm::Value* ConvertPacked(std::span<llvm::Value* const> v, ir::DType from, ir::DType to) override;
  std::vector<llvm::Value*> Mma(const target::MmaInstruction& instruction, std::span<llvm::Value* const> a, std::span<llvm::Value* const> b,
                                std::span<llvm::Value* const> c, const SparseMetadata& metadata) override;
  llvm::Value* Atomic(const AtomicForm& form, llvm::Value* ptr, llvm::Value* v, llvm::Value* compare) override;
  bool FenceAtomics(ir::MemoryOrder order, bool behind) override;

 protected:
  using Device::Device;

  virtual llvm::Value* ShuffleXorWord(llvm::Value* word, int mask) = 0;
  // The call of a row's intrinsic with its operands as the family passes them, and the result's elements.
  virtual std::vector<llvm::Value*> CallMma(const target::MmaInstruction& instruction, llvm::Intrinsic::ID id, std::span<llvm::Value* const> a,
                                            std::span<llvm::Value* const> b, std::span<llvm::Value* const> c, const SparseMetadata& metadata) = 0;
  // Null: each value is converted alone.
  virtual llvm::Value* NativePacked(std::span<llvm::Value* const>, ir::DType, ir::DType) { return nullptr; }
  virtual std::string_view DeviceScope() const = 0;
  virtual void MarkAtomic(llvm::AtomicRMWInst&) {}
  // Whether LLVM leaves out what an atomic change orders, so that fences stand around it.
  virtual bool NeedsFences() const { return false; }

  // A call of an intrinsic that may be overloaded on `types`.
  llvm::CallInst* Call(llvm::Intrinsic::ID id, std::span<llvm::Value* const> args, std::span<llvm::Type* const> types = {});
  llvm::CallInst* Call(llvm::Intrinsic::ID id, std::initializer_list<llvm::Value*> args, std::initializer_list<llvm::Type*> types = {});
  // Applies `f` to each 32-bit word of `v` (8 to 64 bits, any first-class scalar or vector type).
  template <typename F>
  llvm::Value* ByWords(llvm::Value* v, F&& f);
  // 32-bit words as one value of `type`.
  llvm::Value* FromWords(std::span<llvm::Value* const> words, llvm::Type* type);
  llvm::Value* VectorOf(std::span<llvm::Value* const> elements);
  std::vector<llvm::Value*> ElementsOf(llvm::Value* vector);
  llvm::Value* PlainDp4a(llvm::Value* a, llvm::Value* b, llvm::Value* c, bool a_signed, bool b_signed);
};

template <typename F>
llvm::Value* DeviceBase::ByWords(llvm::Value* v, F&& f) {
  llvm::IRBuilderBase& b = builder();
  llvm::Type* type = v->getType();
  if (type->isPointerTy()) return b.CreateIntToPtr(ByWords(b.CreatePtrToInt(v, b.getInt64Ty()), f), type);
  const unsigned bits = unsigned(type->getPrimitiveSizeInBits().getFixedValue());
  llvm::Value* integer = b.CreateBitCast(v, b.getIntNTy(bits));
  if (bits <= 32) return b.CreateBitCast(b.CreateTrunc(f(b.CreateZExt(integer, b.getInt32Ty())), b.getIntNTy(bits)), type);
  llvm::Type* pair = llvm::FixedVectorType::get(b.getInt32Ty(), 2);
  llvm::Value* words = b.CreateBitCast(b.CreateZExt(integer, b.getInt64Ty()), pair);
  llvm::Value* result = llvm::PoisonValue::get(pair);
  for (uint64_t i : {0, 1}) result = b.CreateInsertElement(result, f(b.CreateExtractElement(words, i)), i);
  return b.CreateBitCast(b.CreateTrunc(b.CreateBitCast(result, b.getInt64Ty()), b.getIntNTy(bits)), type);
}

}  // namespace kiln::llvm_ir
