// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/shared_memory.h"

#include "compiler/analysis/threads/thread_loop.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Analysis/ValueTracking.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {

using ir::BufferId;

Value* SharedMemory::Term(BufferId id, int dim, Value* index) const {
  const auto& digits = module()[id].layout->dim(dim);
  Value* sum = nullptr;
  for (size_t i = 0; i < digits.size(); ++i) {
    const int64_t bytes = digits[i].stride * ir::Bits(module()[id].dtype) / 8;
    const bool last = i + 1 == digits.size();
    sum = AddTo(sum, Scaled(last ? index : b().CreateURem(index, I32(digits[i].size)), bytes));
    if (!last) index = b().CreateUDiv(index, I32(digits[i].size));
  }
  return sum;
}

int64_t SharedMemory::SwizzlePeriod(BufferId id) const {
  const ir::Swizzle& swizzle = module()[id].layout->swizzle();
  return swizzle.bits == 0 ? 1 : int64_t{1} << (swizzle.base + swizzle.shift + swizzle.bits);
}

bool SharedMemory::MovesByPeriods(BufferId id, int dim) const {
  const ir::Buffer& buffer = module()[id];
  return !compiler::IsBlocked(buffer, dim) && compiler::SharedStride(buffer, dim) * ir::Bytes(buffer.dtype) % SwizzlePeriod(id) == 0;
}

// The swizzle of an offset as it stands, once for each block of code.
Value* SharedMemory::Swizzled(const ir::Swizzle& swizzle, Value* variable, int64_t constant) {
  Value*& known = swizzled_[{variable, constant, swizzle.bits, swizzle.shift, b().GetInsertBlock()}];
  if (known == nullptr) {
    Value* linear = constant == 0 ? variable : b().CreateAdd(variable, I32(constant));
    const int64_t mask = ((int64_t{1} << swizzle.bits) - 1) << swizzle.base;
    known = b().CreateXor(linear, b().CreateAnd(b().CreateLShr(linear, uint64_t(swizzle.shift)), I32(mask)));
  }
  return known;
}

// Bits of an offset that are 0 whatever the thread. LLVM itself gives up on sums of more than a few terms.
int64_t SharedMemory::KnownZeros(Value* offset) {
  if (const auto it = zeros_.find(offset); it != zeros_.end()) return it->second;
  llvm::KnownBits known;
  if (const auto* sum = llvm::dyn_cast<llvm::BinaryOperator>(offset); sum != nullptr && sum->getOpcode() == llvm::Instruction::Add) {
    const auto zeros = [&](Value* term) {
      llvm::KnownBits bits(offset->getType()->getIntegerBitWidth());
      bits.Zero = llvm::APInt(bits.getBitWidth(), uint64_t(KnownZeros(term)));
      return bits;
    };
    known = llvm::KnownBits::add(zeros(sum->getOperand(0)), zeros(sum->getOperand(1)));
  } else {
    known = llvm::computeKnownBits(offset, context().out().getDataLayout());
  }
  const auto zeros = int64_t(known.Zero.getZExtValue());
  zeros_.emplace(offset, zeros);
  return zeros;
}

// swizzle(v + c) = (c rounded down to the period) + swizzle(v + rest): only the rest takes part, and equal rests share the result. Where
// v has no bit in common with the rest, swizzle(v + rest) = swizzle(v) ^ swizzle(rest), and what lies below the swizzle is a constant.
Value* SharedMemory::Pointer(BufferId id, SplitOffset bytes, Value* after) {
  const ir::Buffer& buffer = module()[id];
  const ir::Swizzle& swizzle = buffer.layout->swizzle();
  int64_t constant = bytes.constant;
  Value* variable = bytes.variable;
  if (swizzle.bits > 0) {
    const int64_t period = SwizzlePeriod(id), rest = constant & (period - 1);
    constant -= rest;
    if (variable == nullptr) {
      constant += swizzle.Apply(rest);
    } else if (rest != 0 && (rest & ~KnownZeros(variable)) == 0) {
      const int64_t below = rest & ((int64_t{1} << swizzle.base) - 1), flipped = swizzle.Apply(rest - below);
      variable = Swizzled(swizzle, variable, 0);
      if (flipped != 0) variable = b().CreateXor(variable, I32(flipped));
      constant += below;
    } else {
      variable = Swizzled(swizzle, variable, rest);
    }
  }
  Value* pointer = places_.Shared();
  if (after != nullptr) pointer = b().CreateGEP(b().getInt8Ty(), pointer, after);
  if (variable != nullptr) pointer = b().CreateGEP(b().getInt8Ty(), pointer, variable);
  return b().CreateConstGEP1_64(b().getInt8Ty(), pointer, uint64_t(constant + *buffer.shared_offset));
}

}  // namespace kiln::llvm_ir
