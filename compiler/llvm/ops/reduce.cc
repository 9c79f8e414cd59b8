// SPDX-License-Identifier: Apache-2.0
//
// Reductions of a fragment along one dimension: first what a thread holds, then lanes by butterfly, then warps through shared
// memory. Every thread that holds an element of the result ends up with the same bits: all combine in the same order.
#include <algorithm>
#include <map>

#include "compiler/llvm/kernel_lowering.h"
#include "compiler/rules/reduce.h"

namespace kiln::llvm_ir {

using ir::DType;
using ir::ReduceKind;

Value* KernelLowering::ReduceIdentity(ReduceKind kind, DType dtype) {
  llvm::Type* type = ValueType(llvm(), dtype);
  const bool is_float = ir::IsFloat(dtype);
  const unsigned bits = unsigned(ir::Bits(dtype));
  const auto infinity = [&](bool negative) -> Value* {
    if (is_float) return llvm::ConstantFP::getInfinity(type, negative);
    if (ir::IsUnsigned(dtype) || dtype == DType::kBool) {
      return negative ? llvm::Constant::getNullValue(type) : llvm::Constant::getAllOnesValue(type);
    }
    return llvm::ConstantInt::get(type, negative ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits));
  };
  switch (kind) {
    case ReduceKind::kMax: return infinity(true);
    case ReduceKind::kMin: return infinity(false);
    case ReduceKind::kBitAnd: return llvm::Constant::getAllOnesValue(type);
    default: return llvm::Constant::getNullValue(type);
  }
}

Value* KernelLowering::Combine(ReduceKind kind, DType dtype, Value* a, Value* c) {
  ir::ExprNode node{};
  node.dtype = dtype;
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kAbsSum: node.op = ir::ExprOp::kAdd; break;
    case ReduceKind::kMax:
    case ReduceKind::kAbsMax: node.op = ir::ExprOp::kMax; break;
    case ReduceKind::kMin: node.op = ir::ExprOp::kMin; break;
    case ReduceKind::kBitAnd: node.op = ir::ExprOp::kBitAnd; break;
    case ReduceKind::kBitOr: node.op = ir::ExprOp::kBitOr; break;
    case ReduceKind::kBitXor: node.op = ir::ExprOp::kBitXor; break;
  }
  return EvalBinary(node, a, c);
}

// In a few chains side by side: one alone would wait for each of its steps.
Value* KernelLowering::CombineAll(ReduceKind kind, DType dtype, Values values) {
  constexpr size_t kChains = 4;
  for (size_t i = kChains; i < values.size(); ++i) values[i % kChains] = Combine(kind, dtype, values[i % kChains], values[i]);
  for (size_t count = std::min(values.size(), kChains); count > 1; count = (count + 1) / 2) {
    for (size_t i = 0; i < count / 2; ++i) values[i] = Combine(kind, dtype, values[i], values[count - 1 - i]);
  }
  return values[0];
}

void KernelLowering::LowerReduce(const ir::Reduce& reduce) {
  const ir::Buffer &src = module_[reduce.src.buffer], &dst = module_[reduce.dst.buffer];
  const ir::Layout &from = *src.layout, &to = *dst.layout;
  const std::vector<int64_t> shape = module_.ShapeOf(reduce.src.buffer);
  const bool keep = to.rank() == from.rank();
  // Types without arithmetic of their own are combined in f32.
  const DType dtype = ir::IsFp8(dst.dtype) || dst.dtype == DType::kTF32 ? DType::kF32 : dst.dtype;
  const bool absolute = reduce.kind == ReduceKind::kAbsMax || reduce.kind == ReduceKind::kAbsSum;
  const compiler::ReduceSteps steps = compiler::StepsOf(from, reduce.dim, context_.target->warp_size);
  const std::vector<Value*> thread = ThreadParts(from, thread_);

  std::map<int64_t, Values> held;  // by register of the result
  for (int64_t r = 0; r < from.Registers(); ++r) {
    ir::Indices index = from.RegisterPart(r);
    Value* v = device_->Convert(FromMemory(LoadRegister(reduce.src.buffer, r), src.dtype), src.dtype, dtype);
    if (absolute) {
      v = ir::IsFloat(dtype)  ? b().CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v)
          : ir::IsSigned(dtype) ? b().CreateBinaryIntrinsic(llvm::Intrinsic::abs, v, b().getFalse())
                                : v;
    }
    // Padding takes no part.
    if (const size_t d = size_t(reduce.dim); from.Extent(reduce.dim) > shape[d]) {
      Value* inside = b().CreateICmpULT(b().CreateAdd(thread[d], I32(index[d])), I32(shape[d]));
      v = b().CreateSelect(inside, v, ReduceIdentity(reduce.kind, dtype));
    }
    if (keep) {
      index[size_t(reduce.dim)] = 0;
    } else {
      index.erase(index.begin() + reduce.dim);
    }
    held[to.RegisterOf(index)].push_back(v);
  }
  std::map<int64_t, Value*> partial;
  for (auto& [r, values] : held) partial[r] = CombineAll(reduce.kind, dtype, values);
  for (auto& [r, v] : partial)
    for (int mask : steps.masks) v = Combine(reduce.kind, dtype, v, device_->ShuffleXor(v, mask));
  if (reduce.scratch) Exchange(reduce, dtype, to, partial);
  for (auto& [r, v] : partial) {
    if (!reduce.clear) {
      Value* old = device_->Convert(FromMemory(LoadRegister(reduce.dst.buffer, r), dst.dtype), dst.dtype, dtype);
      v = Combine(reduce.kind, dtype, old, v);
    }
    StoreRegister(reduce.dst.buffer, r, ToMemory(device_->Convert(v, dtype, dst.dtype), dst.dtype));
  }
}

// scratch[element of the result][partial]; the barrier before was the synchronize pass's, the one between is ours.
void KernelLowering::Exchange(const ir::Reduce& reduce, DType dtype, const ir::Layout& to, std::map<int64_t, Value*>& partial) {
  const compiler::ReduceSteps steps =
      compiler::StepsOf(*module_[reduce.src.buffer].layout, reduce.dim, context_.target->warp_size);
  const int64_t partials = steps.Partials();
  llvm::Type* type = MemoryType(llvm(), dtype);
  const int64_t bytes = ir::Bytes(dtype);
  const std::vector<Value*> thread = ThreadParts(to, thread_);
  Value* mine = nullptr;  // which partial this thread holds
  int64_t weight = 1;
  for (const ir::Digit& digit : steps.exchange) {
    Value* v = b().CreateURem(b().CreateUDiv(thread_, I32(digit.stride)), I32(digit.size));
    mine = AddTo(mine, Scaled(v, weight));
    weight *= digit.size;
  }
  Value* element = nullptr;  // linear index of the thread's part of the result
  std::vector<int64_t> strides(size_t(to.rank()), 1);
  for (int d = to.rank() - 1; d > 0; --d) strides[size_t(d) - 1] = strides[size_t(d)] * to.Extent(d);
  for (int d = 0; d < to.rank(); ++d) element = AddTo(element, Scaled(thread[size_t(d)], strides[size_t(d)] * partials));
  const auto pointer = [&](int64_t reg, Value* which, int64_t constant) {
    const ir::Indices part = to.RegisterPart(reg);
    for (size_t d = 0; d < part.size(); ++d) constant += part[d] * strides[d] * partials;
    Value* variable = AddTo(element, which);
    return SharedPointer(*reduce.scratch, {Scaled(variable, bytes), constant * bytes});
  };
  for (auto& [r, v] : partial) b().CreateAlignedStore(ToMemory(v, dtype), pointer(r, mine, 0), llvm::Align(uint64_t(bytes)));
  BlockBarrier();
  for (auto& [r, v] : partial) {
    for (int64_t p = 0; p < partials; ++p) {
      Value* other = FromMemory(b().CreateAlignedLoad(type, pointer(r, nullptr, p), llvm::Align(uint64_t(bytes))), dtype);
      v = p == 0 ? other : Combine(reduce.kind, dtype, v, other);
    }
  }
}

// scratch[register][thread], in the first block of the cluster. The first barrier: it is done with what was there before.
void KernelLowering::LowerPairSum(const ir::PairSum& sum) {
  const DType dtype = module_[sum.sum].dtype;
  const int64_t bytes = ir::Bytes(dtype), registers = module_[sum.sum].layout->Registers();
  llvm::Type* type = MemoryType(llvm(), dtype);
  const llvm::Align align{uint64_t(bytes)};
  const auto place = [&](int64_t r) { return SharedPointer(*sum.scratch, {Scaled(thread_, bytes), r * kernel_.threads * bytes}); };
  Value* first = b().CreateICmpEQ(device_->ClusterRank(), I32(0));
  device_->ClusterBarrier();
  When(b().CreateNot(first), [&] {
    for (int64_t r = 0; r < registers; ++r) b().CreateAlignedStore(LoadRegister(sum.sum, r), device_->ClusterAddress(place(r), I32(0)), align);
  });
  device_->ClusterBarrier();
  When(first, [&] {
    for (int64_t r = 0; r < registers; ++r) {
      Value* other = FromMemory(b().CreateAlignedLoad(type, place(r), align), dtype);
      StoreRegister(sum.sum, r, ToMemory(Combine(ReduceKind::kSum, dtype, FromMemory(LoadRegister(sum.sum, r), dtype), other), dtype));
    }
  });
}

}  // namespace kiln::llvm_ir
