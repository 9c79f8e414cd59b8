// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/pair_sum.h"

#include "compiler/llvm/lower/ops/combine.h"

namespace kiln::llvm_ir {

using ir::DType;

namespace {

class PairSums : Part {
 public:
  PairSums(KernelContext& context, Memory& memory) : Part(context), registers_(memory.registers()), shared_(memory.shared()) {}

  void Lower(const ir::PairSum& sum);

 private:
  void LowerHalves(const ir::PairSum& sum);

  Registers& registers_;
  SharedMemory& shared_;
};

// The sum passes through scratch[register][thread] in the first block of the cluster. The first barrier ensures that this block no longer
// uses the scratch.
void PairSums::Lower(const ir::PairSum& sum) {
  if (sum.half) return LowerHalves(sum);
  const DType dtype = module()[sum.sum].dtype;
  const int64_t bytes = ir::Bytes(dtype), registers = module()[sum.sum].layout->Registers();
  llvm::Type* type = MemoryType(llvm(), dtype);
  const llvm::Align align{uint64_t(bytes)};
  const auto place = [&](int64_t r) { return shared_.Pointer(*sum.scratch, {Scaled(thread(), bytes), r * kernel().threads * bytes}); };
  Value* first = b().CreateICmpEQ(device().ClusterRank(), I32(0));
  device().ClusterBarrier();
  When(b().CreateNot(first), [&] {
    for (int64_t r = 0; r < registers; ++r) b().CreateAlignedStore(registers_.Load(sum.sum, r), device().ClusterAddress(place(r), I32(0)), align);
  });
  device().ClusterBarrier();
  When(first, [&] {
    for (int64_t r = 0; r < registers; ++r) {
      Value* other = FromMemory(b().CreateAlignedLoad(type, place(r), align), dtype);
      registers_.Store(sum.sum, r, ToMemory(Combine(b(), ir::ReduceKind::kSum, dtype, FromMemory(registers_.Load(sum.sum, r), dtype), other), dtype));
    }
  });
}

// Each block writes the other's half to the other's scratch[registers / vector][thread][vector].
void PairSums::LowerHalves(const ir::PairSum& sum) {
  const DType dtype = module()[sum.sum].dtype;
  const ir::Layout &whole = *module()[sum.sum].layout, &half = *module()[*sum.half].layout;
  if (whole.Half(sum.dim) != half) return Internal("a half of a sum that lies in other registers than the sum's");
  const int64_t bytes = ir::Bytes(dtype), registers = half.Registers();
  const int64_t width = sum.vector;
  auto* type = llvm::FixedVectorType::get(MemoryType(llvm(), dtype), unsigned(width));
  const llvm::Align align{uint64_t(width * bytes)};
  const auto place = [&](int64_t r) { return shared_.Pointer(*sum.scratch, {Scaled(thread(), width * bytes), r * kernel().threads * bytes}); };
  // The register of the whole sum that corresponds to register `r` of a half.
  const auto part = [&](int64_t r, bool upper) {
    ir::Indices index = half.RegisterPart(r);
    index[size_t(sum.dim)] += upper ? module().ShapeOf(*sum.half)[size_t(sum.dim)] : 0;
    return registers_.Load(sum.sum, whole.RegisterOf(index));
  };
  const auto send = [&](bool upper) {
    for (int64_t r = 0; r < registers; r += width) {
      Value* vector = llvm::PoisonValue::get(type);
      for (int64_t i = 0; i < width; ++i) vector = b().CreateInsertElement(vector, part(r + i, upper), uint64_t(i));
      b().CreateAlignedStore(vector, device().ClusterAddress(place(r), I32(upper ? 1 : 0)), align);
    }
  };
  const auto add = [&](bool upper) {
    for (int64_t r = 0; r < registers; r += width) {
      Value* vector = b().CreateAlignedLoad(type, place(r), align);
      for (int64_t i = 0; i < width; ++i) {
        Value *own = FromMemory(part(r + i, upper), dtype), *other = FromMemory(b().CreateExtractElement(vector, uint64_t(i)), dtype);
        registers_.Store(*sum.half, r + i, ToMemory(Combine(b(), ir::ReduceKind::kSum, dtype, own, other), dtype));
      }
    }
  };
  Value* first = b().CreateICmpEQ(device().ClusterRank(), I32(0));
  device().ClusterBarrier();
  When(first, [&] { send(/*upper=*/true); });
  When(b().CreateNot(first), [&] { send(/*upper=*/false); });
  device().ClusterBarrier();
  When(first, [&] { add(/*upper=*/false); });
  When(b().CreateNot(first), [&] { add(/*upper=*/true); });
}

}  // namespace

void LowerPairSum(KernelContext& context, Memory& memory, const ir::PairSum& sum) { PairSums(context, memory).Lower(sum); }

}  // namespace kiln::llvm_ir
