// SPDX-License-Identifier: Apache-2.0
//
// Reductions of a fragment along one dimension: first what a thread holds, then lanes by butterfly, then warps through shared
// memory. Every thread that holds an element of the result ends up with the same bits: all combine in the same order.
#include <algorithm>
#include <bit>
#include <map>
#include <span>

#include "compiler/accesses/packed.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/llvm/kernel_lowering.h"
#include "compiler/rules/reduce.h"
#include "ir/visit.h"

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

// Combines in a few independent chains: in a single chain each step would wait for the one before it.
Value* KernelLowering::CombineAll(ReduceKind kind, DType dtype, Values values) {
  constexpr size_t kChains = 4;
  for (size_t i = kChains; i < values.size(); ++i) values[i % kChains] = Combine(kind, dtype, values[i % kChains], values[i]);
  for (size_t count = std::min(values.size(), kChains); count > 1; count = (count + 1) / 2) {
    for (size_t i = 0; i < count / 2; ++i) values[i] = Combine(kind, dtype, values[i], values[count - 1 - i]);
  }
  return values[0];
}

// If order cannot change the result, 16-bit values are combined two at a time: that is half the work, and neighbours already share a
// register.
Value* KernelLowering::CombineInThread(ReduceKind kind, DType dtype, Values values) {
  const bool ordered = kind != ReduceKind::kMax && kind != ReduceKind::kMin && kind != ReduceKind::kAbsMax;
  if (ordered || !compiler::HasPairs(*context_.target, dtype) || values.size() % 2 != 0) return CombineAll(kind, dtype, std::move(values));
  Values pairs;
  for (size_t i = 0; i < values.size(); i += 2) {
    Value* pair = llvm::PoisonValue::get(llvm::FixedVectorType::get(values[i]->getType(), 2));
    pairs.push_back(b().CreateInsertElement(b().CreateInsertElement(pair, values[i], uint64_t{0}), values[i + 1], uint64_t{1}));
  }
  Value* pair = CombineAll(kind, dtype, std::move(pairs));
  return Combine(kind, dtype, b().CreateExtractElement(pair, uint64_t{0}), b().CreateExtractElement(pair, uint64_t{1}));
}

// Types without arithmetic of their own are combined in f32.
DType KernelLowering::CombinedType(DType dtype) { return ir::IsFp8(dtype) || dtype == DType::kTF32 ? DType::kF32 : dtype; }

int64_t KernelLowering::Lanes() const { return compiler::LanesOf(threads_, context_.target->warp_size); }

void KernelLowering::LowerReduces(std::span<const ir::Stmt> reduces) {
  const Turn turn = BeginExchange(reduces);
  std::vector<std::map<int64_t, Value*>> partials;
  for (const ir::Stmt& stmt : reduces) {
    EnterStmt(stmt);
    partials.push_back(ReduceInWarps(std::get<ir::Reduce>(stmt.op)));
  }
  Exchange(reduces, partials, turn);
  for (size_t i = 0; i < reduces.size(); ++i) {
    const auto& reduce = std::get<ir::Reduce>(reduces[i].op);
    const DType to = module_[reduce.dst.buffer].dtype, dtype = CombinedType(to);
    for (auto& [r, v] : partials[i]) {
      if (!reduce.clear) {
        Value* old = device_->Convert(FromMemory(LoadRegister(reduce.dst.buffer, r), to), to, dtype);
        v = Combine(reduce.kind, dtype, old, v);
      }
      StoreRegister(reduce.dst.buffer, r, ToMemory(device_->Convert(v, dtype, to), to));
    }
  }
}

// What the lanes of each warp hold, by register of the result.
std::map<int64_t, Value*> KernelLowering::ReduceInWarps(const ir::Reduce& reduce) {
  const ir::Buffer &src = module_[reduce.src.buffer], &dst = module_[reduce.dst.buffer];
  const ir::Layout &from = *src.layout, &to = *dst.layout;
  const std::vector<int64_t> shape = module_.ShapeOf(reduce.src.buffer);
  const bool keep = to.rank() == from.rank();
  const DType dtype = CombinedType(dst.dtype);
  const bool absolute = reduce.kind == ReduceKind::kAbsMax || reduce.kind == ReduceKind::kAbsSum;
  const compiler::ReduceSteps steps = compiler::StepsOf(from, reduce.dim, Lanes());
  const std::vector<Value*> thread = ThreadParts(from, thread_);

  std::map<int64_t, Values> held;
  for (int64_t r = 0; r < from.Registers(); ++r) {
    ir::Indices index = from.RegisterPart(r);
    Value* v = device_->Convert(FromMemory(LoadRegister(reduce.src.buffer, r), src.dtype), src.dtype, dtype);
    if (absolute) {
      v = ir::IsFloat(dtype)    ? b().CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v)
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
  for (auto& [r, values] : held) partial[r] = CombineInThread(reduce.kind, dtype, std::move(values));
  for (auto& [r, v] : partial)
    for (int mask : steps.masks) v = Combine(reduce.kind, dtype, v, device_->ShuffleXor(v, mask));
  return partial;
}

// Partial results lie in scratch[element of the result][block of the cluster][group of lanes]. In a cluster, the scratch holds two
// mbarriers, then the results of even and those of odd turns. Two turns are enough: every block waits for all others in each turn, so none
// can be two turns ahead.
constexpr int64_t kTurns = compiler::kExchangeTurns, kMbarrierBytes = compiler::kExchangeBarrierBytes;

struct KernelLowering::Partials {
  const ir::Reduce* reduce;
  DType dtype;
  const ir::Layout* to;
  compiler::ReduceSteps steps;
  int64_t count = 1;             // for each element
  std::vector<int64_t> strides;  // of the result's dimensions, in elements of the result
  Value* start = nullptr;        // bytes: the thread's offset in the result plus the turn's
};

KernelLowering::Partials KernelLowering::PartialsOf(const ir::Reduce& reduce, Value* turn) {
  const ir::Layout& to = *module_[reduce.dst.buffer].layout;
  Partials partials{&reduce, CombinedType(module_[reduce.dst.buffer].dtype),
                    &to,     compiler::StepsOf(*module_[reduce.src.buffer].layout, reduce.dim, Lanes()),
                    1,       {}};
  partials.count = partials.steps.Partials() * (reduce.cluster ? kernel_.ClusterBlocks() : 1);
  partials.strides.assign(size_t(to.rank()), 1);
  for (int d = to.rank() - 1; d > 0; --d) partials.strides[size_t(d) - 1] = partials.strides[size_t(d)] * to.Extent(d);
  const std::vector<Value*> thread = ThreadParts(to, thread_);
  for (size_t d = 0; d < thread.size(); ++d) {
    partials.start = AddTo(partials.start, Scaled(thread[d], partials.strides[d] * partials.count * ir::Bytes(partials.dtype)));
  }
  partials.start = AddTo(partials.start, Scaled(turn, PartialBytes(reduce)));
  return partials;
}

Value* KernelLowering::PartialPointer(const Partials& partials, int64_t reg, Value* which, int64_t constant) {
  const ir::Indices part = partials.to->RegisterPart(reg);
  for (size_t d = 0; d < part.size(); ++d) constant += part[d] * partials.strides[d] * partials.count;
  const int64_t bytes = ir::Bytes(partials.dtype), head = partials.reduce->cluster ? kTurns * kMbarrierBytes : 0;
  return SharedPointer(*partials.reduce->scratch, {AddTo(partials.start, Scaled(which, bytes)), head + constant * bytes});
}

// Before anything else.
void KernelLowering::InitExchanges() {
  std::vector<ir::BufferId> scratch;
  ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
    const auto* reduce = std::get_if<ir::Reduce>(&stmt.op);
    if (reduce != nullptr && reduce->cluster) scratch.push_back(*reduce->scratch);
  });
  if (scratch.empty()) return;
  for (ir::BufferId id : scratch) {
    turns_[id] = Alloca(b().getInt32Ty(), 1, "turn");
    b().CreateStore(I32(0), turns_[id]);
  }
  When(b().CreateICmpEQ(thread_, I32(0)), [&] {
    for (ir::BufferId id : scratch)
      for (int64_t turn = 0; turn < kTurns; ++turn) device_->PhaseInit(SharedPointer(id, {nullptr, turn * kMbarrierBytes}), 1);
    device_->PhaseInitFence();
  });
  device_->ClusterBarrier();
}

// What one turn brings.
int64_t KernelLowering::PartialBytes(const ir::Reduce& reduce) const {
  const ir::Layout& to = *module_[reduce.dst.buffer].layout;
  const compiler::ReduceSteps steps = compiler::StepsOf(*module_[reduce.src.buffer].layout, reduce.dim, Lanes());
  int64_t elements = steps.Partials() * (reduce.cluster ? kernel_.ClusterBlocks() : 1);
  for (int d = 0; d < to.rank(); ++d) elements *= to.Extent(d);
  return elements * ir::Bytes(CombinedType(module_[reduce.dst.buffer].dtype));
}

// In a cluster: tells the mbarrier early how many bytes will arrive, so that no thread waits for that later.
KernelLowering::Turn KernelLowering::BeginExchange(std::span<const ir::Stmt> reduces) {
  const auto& first = std::get<ir::Reduce>(reduces[0].op);
  if (!first.cluster) return {};
  Turn turn;
  EnterStmt(reduces[0]);
  turn.count = b().CreateLoad(b().getInt32Ty(), turns_.at(*first.scratch));
  turn.parity = b().CreateURem(turn.count, I32(kTurns));
  turn.mbarrier = SharedPointer(*first.scratch, {Scaled(turn.parity, kMbarrierBytes), 0});
  int64_t bytes = 0;
  for (const ir::Stmt& stmt : reduces) bytes += PartialBytes(std::get<ir::Reduce>(stmt.op));
  When(b().CreateICmpEQ(thread_, I32(0)), [&] { device_->PhaseExpect(turn.mbarrier, I32(bytes)); });
  return turn;
}

// The synchronize pass inserted the barrier before this statement; the one between writes and reads is inserted here.
void KernelLowering::Exchange(std::span<const ir::Stmt> reduces, std::span<std::map<int64_t, Value*>> values, const Turn& turn) {
  const auto& first = std::get<ir::Reduce>(reduces[0].op);
  if (!first.scratch) return;
  std::vector<Partials> partials;
  for (size_t i = 0; i < reduces.size(); ++i) {
    EnterStmt(reduces[i]);
    partials.push_back(PartialsOf(std::get<ir::Reduce>(reduces[i].op), turn.parity));
    for (const auto& [r, v] : values[i]) StorePartial(partials[i], r, v, turn.mbarrier);
  }
  if (first.cluster) {
    device_->PhaseWait(turn.mbarrier, b().CreateURem(b().CreateUDiv(turn.count, I32(kTurns)), I32(2)));
    b().CreateStore(b().CreateAdd(turn.count, I32(1)), turns_.at(*first.scratch));
  } else {
    BlockBarrier();
  }
  for (size_t i = 0; i < partials.size(); ++i) {
    EnterStmt(reduces[i]);
    for (auto& [r, v] : values[i]) v = JoinPartials(partials[i], r);
  }
}

void KernelLowering::StorePartial(const Partials& partials, int64_t reg, Value* v, Value* mbarrier) {
  Value* mine = nullptr;
  int64_t weight = 1;
  for (const ir::Digit& digit : partials.steps.exchange) {
    mine = AddTo(mine, Scaled(b().CreateURem(b().CreateUDiv(thread_, I32(digit.stride)), I32(digit.size)), weight));
    weight *= digit.size;
  }
  Value* stored = ToMemory(v, partials.dtype);
  if (!partials.reduce->cluster) {
    b().CreateAlignedStore(stored, PartialPointer(partials, reg, mine, 0), llvm::Align(uint64_t(ir::Bytes(partials.dtype))));
    return;
  }
  // Lanes that hold copies of one result send them to different blocks: each byte must arrive once, since the mbarrier counts it.
  Value* pointer = PartialPointer(partials, reg, AddTo(mine, Scaled(device_->ClusterRank(), weight)), 0);
  Value* copy = I32(0);
  int64_t copies = 1;
  for (int mask : partials.steps.masks) {
    copy = b().CreateAdd(copy, b().CreateMul(b().CreateURem(b().CreateUDiv(thread_, I32(mask)), I32(2)), I32(copies)));
    copies *= 2;
  }
  const int64_t blocks = kernel_.ClusterBlocks();
  for (int64_t first = 0; first < blocks; first += copies) {
    Value* block = b().CreateAdd(copy, I32(first));
    Value* takes = IsFirstCopy(*module_[partials.reduce->src.buffer].layout);
    if (first + copies > blocks) {
      Value* exists = b().CreateICmpULT(block, I32(blocks));
      takes = takes == nullptr ? exists : b().CreateAnd(takes, exists);
    }
    When(takes, [&] { device_->StoreAsyncAt(pointer, block, stored, mbarrier); });
  }
}

// If all lanes of a warp need the same partial results, each lane reads some and the warp combines them; otherwise every thread reads all.
Value* KernelLowering::JoinPartials(const Partials& partials, int64_t reg) {
  constexpr int64_t kFew = 4;
  const int64_t lanes = context_.target->warp_size, count = partials.count;
  llvm::Type* type = MemoryType(llvm(), partials.dtype);
  const auto load = [&](Value* which, int64_t constant) {
    Value* pointer = PartialPointer(partials, reg, which, constant);
    return FromMemory(b().CreateAlignedLoad(type, pointer, llvm::Align(uint64_t(ir::Bytes(partials.dtype)))), partials.dtype);
  };
  const bool shared = int64_t{1} << partials.steps.masks.size() == lanes;
  const bool even = count % lanes == 0 || (lanes % count == 0 && std::has_single_bit(uint64_t(count)));
  const bool spread = shared && even && count > kFew;
  const int64_t step = spread ? std::min(count, lanes) : 1;
  Value* which = spread ? b().CreateURem(thread_, I32(step)) : nullptr;
  Value* v = load(which, 0);
  for (int64_t p = step; p < count; p += step) v = Combine(partials.reduce->kind, partials.dtype, v, load(which, p));
  for (int64_t mask = 1; mask < step; mask *= 2) v = Combine(partials.reduce->kind, partials.dtype, v, device_->ShuffleXor(v, int(mask)));
  return v;
}

// The sum passes through scratch[register][thread] in the first block of the cluster. The first barrier ensures that this block no longer
// uses the scratch.
void KernelLowering::LowerPairSum(const ir::PairSum& sum) {
  if (sum.half) return LowerHalves(sum);
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

// Each block writes the other's half to the other's scratch[registers / vector][thread][vector].
void KernelLowering::LowerHalves(const ir::PairSum& sum) {
  constexpr int64_t kVectorBytes = 16;
  const DType dtype = module_[sum.sum].dtype;
  const ir::Layout &whole = *module_[sum.sum].layout, &half = *module_[*sum.half].layout;
  if (whole.Half(sum.dim) != half) return diagnostics_.Internal("a half of a sum that lies in other registers than the sum's", loc_);
  const int64_t bytes = ir::Bytes(dtype), registers = half.Registers();
  const int64_t width = registers % (kVectorBytes / bytes) == 0 ? kVectorBytes / bytes : 1;
  auto* type = llvm::FixedVectorType::get(MemoryType(llvm(), dtype), unsigned(width));
  const llvm::Align align{uint64_t(width * bytes)};
  const auto place = [&](int64_t r) { return SharedPointer(*sum.scratch, {Scaled(thread_, width * bytes), r * kernel_.threads * bytes}); };
  // The register of the whole sum that corresponds to register `r` of a half.
  const auto part = [&](int64_t r, bool upper) {
    ir::Indices index = half.RegisterPart(r);
    index[size_t(sum.dim)] += upper ? module_.ShapeOf(*sum.half)[size_t(sum.dim)] : 0;
    return LoadRegister(sum.sum, whole.RegisterOf(index));
  };
  const auto send = [&](bool upper) {
    for (int64_t r = 0; r < registers; r += width) {
      Value* vector = llvm::PoisonValue::get(type);
      for (int64_t i = 0; i < width; ++i) vector = b().CreateInsertElement(vector, part(r + i, upper), uint64_t(i));
      b().CreateAlignedStore(vector, device_->ClusterAddress(place(r), I32(upper ? 1 : 0)), align);
    }
  };
  const auto add = [&](bool upper) {
    for (int64_t r = 0; r < registers; r += width) {
      Value* vector = b().CreateAlignedLoad(type, place(r), align);
      for (int64_t i = 0; i < width; ++i) {
        Value *own = FromMemory(part(r + i, upper), dtype), *other = FromMemory(b().CreateExtractElement(vector, uint64_t(i)), dtype);
        StoreRegister(*sum.half, r + i, ToMemory(Combine(ReduceKind::kSum, dtype, own, other), dtype));
      }
    }
  };
  Value* first = b().CreateICmpEQ(device_->ClusterRank(), I32(0));
  device_->ClusterBarrier();
  When(first, [&] { send(/*upper=*/true); });
  When(b().CreateNot(first), [&] { send(/*upper=*/false); });
  device_->ClusterBarrier();
  When(first, [&] { add(/*upper=*/false); });
  When(b().CreateNot(first), [&] { add(/*upper=*/true); });
}

}  // namespace kiln::llvm_ir
