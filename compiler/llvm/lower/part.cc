// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/part.h"

#include "ir/expr/numeric.h"

namespace kiln::llvm_ir {

void Part::Unsupported(std::string message, std::string hint) const {
  context_.diagnostics().Unsupported(std::move(message), std::move(hint), context_.loc());
}

llvm::BasicBlock* Part::NewBlock(const char* name) const { return llvm::BasicBlock::Create(llvm(), name, context_.function()); }

Value* Part::AddTo(Value* sum, Value* more) const {
  if (more == nullptr) return sum;
  return sum == nullptr ? more : b().CreateAdd(sum, more);
}

Value* Part::Scaled(Value* v, int64_t factor) const {
  if (v == nullptr || factor == 0) return nullptr;
  return factor == 1 ? v : b().CreateMul(v, llvm::ConstantInt::get(v->getType(), uint64_t(factor), true));
}

Value* Part::Both(Value* condition, Value* more) const {
  if (more == nullptr) return condition;
  return condition == nullptr ? more : b().CreateAnd(condition, more);
}

Value* Part::FromMemory(Value* v, ir::DType dtype) const {
  return dtype == ir::DType::kBool ? b().CreateICmpNE(v, llvm::ConstantInt::get(v->getType(), 0)) : v;
}

Value* Part::ToMemory(Value* v, ir::DType dtype) const { return dtype == ir::DType::kBool ? b().CreateZExt(v, b().getInt8Ty()) : v; }

Value* Part::Constant(ir::DType dtype, double value) const {
  llvm::Type* type = ValueType(llvm(), dtype);
  if (ir::IsFp8(dtype)) return device().Convert(llvm::ConstantFP::get(b().getFloatTy(), value), ir::DType::kF32, dtype);
  if (ir::IsFloat(dtype)) return llvm::ConstantFP::get(type, value);
  return llvm::ConstantInt::get(type, uint64_t(ir::SaturateTo(dtype, value)), ir::IsSigned(dtype));
}

Values Part::ThreadParts(const ir::Layout& layout) const {
  Values parts(size_t(layout.rank()), nullptr);
  const int64_t threads = layout.Threads();
  for (int d = 0; d < layout.rank(); ++d) {
    int64_t weight = 1;
    for (const ir::Digit& digit : layout.dim(d)) {
      if (digit.place == ir::Place::kThread && digit.size > 1) {
        Value* v = digit.stride == 1 ? thread() : b().CreateUDiv(thread(), I32(digit.stride));
        if (digit.stride * digit.size < threads) v = b().CreateURem(v, I32(digit.size));
        parts[size_t(d)] = AddTo(parts[size_t(d)], Scaled(v, weight));
      }
      weight *= digit.size;
    }
    if (parts[size_t(d)] == nullptr) parts[size_t(d)] = I32(0);
  }
  return parts;
}

Value* Part::IsFirstCopy(const ir::Layout& layout) const {
  Value* first = nullptr;
  for (const ir::Digit& digit : layout.replicas()) {
    if (digit.size == 1) continue;
    Value* v = b().CreateURem(b().CreateUDiv(thread(), I32(digit.stride)), I32(digit.size));
    first = Both(first, b().CreateICmpEQ(v, I32(0)));
  }
  return first;
}

}  // namespace kiln::llvm_ir
