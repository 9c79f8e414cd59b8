// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/reductions.h"

#include <algorithm>
#include <bit>

#include "compiler/accesses/packed.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/llvm/lower/ops/combine.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using ir::DType;
using ir::ReduceKind;

namespace {

// Partial results lie in scratch[element of the result][block of the cluster][group of lanes]. In a cluster, the scratch holds two
// mbarriers, then the results of even and those of odd turns. Two turns are enough: every block waits for all others in each turn, so none
// can be two turns ahead.
constexpr int64_t kTurns = compiler::kExchangeTurns, kMbarrierBytes = compiler::kExchangeBarrierBytes;

}  // namespace

// If order cannot change the result, 16-bit values are combined two at a time: that is half the work, and neighbours already share a
// register.
Value* Reductions::CombineInThread(ReduceKind kind, DType dtype, Values values) const {
  const bool ordered = kind != ReduceKind::kMax && kind != ReduceKind::kMin && kind != ReduceKind::kAbsMax;
  if (ordered || !compiler::HasPairs(target(), dtype) || values.size() % 2 != 0) return CombineAll(b(), kind, dtype, std::move(values));
  Values pairs;
  for (size_t i = 0; i < values.size(); i += 2) {
    Value* pair = llvm::PoisonValue::get(llvm::FixedVectorType::get(values[i]->getType(), 2));
    pairs.push_back(b().CreateInsertElement(b().CreateInsertElement(pair, values[i], uint64_t{0}), values[i + 1], uint64_t{1}));
  }
  Value* pair = CombineAll(b(), kind, dtype, std::move(pairs));
  return Combine(b(), kind, dtype, b().CreateExtractElement(pair, uint64_t{0}), b().CreateExtractElement(pair, uint64_t{1}));
}

int64_t Reductions::Lanes() const { return compiler::LanesOf(threads().range, target().warp_size); }

void Reductions::Lower(std::span<const ir::Stmt> reduces) {
  const Turn turn = BeginExchange(reduces);
  std::vector<Results> partials;
  for (const ir::Stmt& stmt : reduces) {
    context().EnterStmt(stmt);
    partials.push_back(ReduceInWarps(std::get<ir::Reduce>(stmt.op)));
  }
  Exchange(reduces, partials, turn);
  for (size_t i = 0; i < reduces.size(); ++i) {
    const auto& reduce = std::get<ir::Reduce>(reduces[i].op);
    const DType to = module()[reduce.dst.buffer].dtype, dtype = CombinedType(to);
    for (auto& [r, v] : partials[i]) {
      if (!reduce.clear) {
        Value* old = device().Convert(FromMemory(registers_.Load(reduce.dst.buffer, r), to), to, dtype);
        v = Combine(b(), reduce.kind, dtype, old, v);
      }
      registers_.Store(reduce.dst.buffer, r, ToMemory(device().Convert(v, dtype, to), to));
    }
  }
}

// What the lanes of each warp hold, by register of the result.
Reductions::Results Reductions::ReduceInWarps(const ir::Reduce& reduce) {
  const ir::Buffer &src = module()[reduce.src.buffer], &dst = module()[reduce.dst.buffer];
  const ir::Layout &from = *src.layout, &to = *dst.layout;
  const std::vector<int64_t> shape = module().ShapeOf(reduce.src.buffer);
  const bool keep = to.rank() == from.rank();
  const DType dtype = CombinedType(dst.dtype);
  const bool absolute = reduce.kind == ReduceKind::kAbsMax || reduce.kind == ReduceKind::kAbsSum;
  const compiler::ReduceSteps steps = compiler::StepsOf(from, reduce.dim, Lanes());
  const Values thread = ThreadParts(from);

  std::map<int64_t, Values> held;
  for (int64_t r = 0; r < from.Registers(); ++r) {
    ir::Indices index = from.RegisterPart(r);
    Value* v = device().Convert(FromMemory(registers_.Load(reduce.src.buffer, r), src.dtype), src.dtype, dtype);
    if (absolute) {
      v = ir::IsFloat(dtype)    ? b().CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v)
          : ir::IsSigned(dtype) ? b().CreateBinaryIntrinsic(llvm::Intrinsic::abs, v, b().getFalse())
                                : v;
    }
    // Padding takes no part.
    if (const size_t d = size_t(reduce.dim); from.Extent(reduce.dim) > shape[d]) {
      Value* inside = b().CreateICmpULT(b().CreateAdd(thread[d], I32(index[d])), I32(shape[d]));
      v = b().CreateSelect(inside, v, ReduceIdentity(llvm(), reduce.kind, dtype));
    }
    if (keep) {
      index[size_t(reduce.dim)] = 0;
    } else {
      index.erase(index.begin() + reduce.dim);
    }
    held[to.RegisterOf(index)].push_back(v);
  }
  Results partial;
  for (auto& [r, values] : held) partial[r] = CombineInThread(reduce.kind, dtype, std::move(values));
  for (auto& [r, v] : partial)
    for (int mask : steps.masks) v = Combine(b(), reduce.kind, dtype, v, device().ShuffleXor(v, mask));
  return partial;
}

Reductions::Partials Reductions::PartialsOf(const ir::Reduce& reduce, Value* turn) const {
  const ir::Layout& to = *module()[reduce.dst.buffer].layout;
  Partials partials{&reduce, CombinedType(module()[reduce.dst.buffer].dtype),
                    &to,     compiler::StepsOf(*module()[reduce.src.buffer].layout, reduce.dim, Lanes()),
                    1,       {}};
  partials.count = partials.steps.Partials() * (reduce.cluster ? kernel().ClusterBlocks() : 1);
  partials.strides.assign(size_t(to.rank()), 1);
  for (int d = to.rank() - 1; d > 0; --d) partials.strides[size_t(d) - 1] = partials.strides[size_t(d)] * to.Extent(d);
  const Values thread = ThreadParts(to);
  for (size_t d = 0; d < thread.size(); ++d) {
    partials.start = AddTo(partials.start, Scaled(thread[d], partials.strides[d] * partials.count * ir::Bytes(partials.dtype)));
  }
  partials.start = AddTo(partials.start, Scaled(turn, PartialBytes(reduce)));
  return partials;
}

Value* Reductions::PartialPointer(const Partials& partials, int64_t reg, Value* which, int64_t constant) {
  const ir::Indices part = partials.to->RegisterPart(reg);
  for (size_t d = 0; d < part.size(); ++d) constant += part[d] * partials.strides[d] * partials.count;
  const int64_t bytes = ir::Bytes(partials.dtype), head = partials.reduce->cluster ? kTurns * kMbarrierBytes : 0;
  return shared_.Pointer(*partials.reduce->scratch, {AddTo(partials.start, Scaled(which, bytes)), head + constant * bytes});
}

// Before anything else.
void Reductions::Init() {
  std::vector<ir::BufferId> scratch;
  ir::Walk(kernel().body, [&](const ir::Stmt& stmt) {
    const auto* reduce = std::get_if<ir::Reduce>(&stmt.op);
    if (reduce != nullptr && reduce->cluster) scratch.push_back(*reduce->scratch);
  });
  if (scratch.empty()) return;
  for (ir::BufferId id : scratch) {
    turns_[id] = places_.Alloca(b().getInt32Ty(), 1, "turn");
    b().CreateStore(I32(0), turns_[id]);
  }
  When(b().CreateICmpEQ(thread(), I32(0)), [&] {
    for (ir::BufferId id : scratch)
      for (int64_t turn = 0; turn < kTurns; ++turn) device().PhaseInit(shared_.Pointer(id, {nullptr, turn * kMbarrierBytes}), 1);
    device().PhaseInitFence();
  });
  device().ClusterBarrier();
}

// What one turn brings.
int64_t Reductions::PartialBytes(const ir::Reduce& reduce) const {
  const ir::Layout& to = *module()[reduce.dst.buffer].layout;
  const compiler::ReduceSteps steps = compiler::StepsOf(*module()[reduce.src.buffer].layout, reduce.dim, Lanes());
  int64_t elements = steps.Partials() * (reduce.cluster ? kernel().ClusterBlocks() : 1);
  for (int d = 0; d < to.rank(); ++d) elements *= to.Extent(d);
  return elements * ir::Bytes(CombinedType(module()[reduce.dst.buffer].dtype));
}

// In a cluster: tells the mbarrier early how many bytes will arrive, so that no thread waits for that later.
Reductions::Turn Reductions::BeginExchange(std::span<const ir::Stmt> reduces) {
  const auto& first = std::get<ir::Reduce>(reduces[0].op);
  if (!first.cluster) return {};
  Turn turn;
  context().EnterStmt(reduces[0]);
  turn.count = b().CreateLoad(b().getInt32Ty(), turns_.at(*first.scratch));
  turn.parity = b().CreateURem(turn.count, I32(kTurns));
  turn.mbarrier = shared_.Pointer(*first.scratch, {Scaled(turn.parity, kMbarrierBytes), 0});
  int64_t bytes = 0;
  for (const ir::Stmt& stmt : reduces) bytes += PartialBytes(std::get<ir::Reduce>(stmt.op));
  When(b().CreateICmpEQ(thread(), I32(0)), [&] { device().PhaseExpect(turn.mbarrier, I32(bytes)); });
  return turn;
}

// The synchronize pass inserted the barrier before this statement; the one between writes and reads is inserted here.
void Reductions::Exchange(std::span<const ir::Stmt> reduces, std::span<Results> values, const Turn& turn) {
  const auto& first = std::get<ir::Reduce>(reduces[0].op);
  if (!first.scratch) return;
  std::vector<Partials> partials;
  for (size_t i = 0; i < reduces.size(); ++i) {
    context().EnterStmt(reduces[i]);
    partials.push_back(PartialsOf(std::get<ir::Reduce>(reduces[i].op), turn.parity));
    for (const auto& [r, v] : values[i]) StorePartial(partials[i], r, v, turn.mbarrier);
  }
  if (first.cluster) {
    device().PhaseWait(turn.mbarrier, b().CreateURem(b().CreateUDiv(turn.count, I32(kTurns)), I32(2)));
    b().CreateStore(b().CreateAdd(turn.count, I32(1)), turns_.at(*first.scratch));
  } else {
    barriers_.WaitForScratch(reduces);
  }
  for (size_t i = 0; i < partials.size(); ++i) {
    context().EnterStmt(reduces[i]);
    for (auto& [r, v] : values[i]) v = JoinPartials(partials[i], r);
  }
}

void Reductions::StorePartial(const Partials& partials, int64_t reg, Value* v, Value* mbarrier) {
  Value* mine = nullptr;
  int64_t weight = 1;
  for (const ir::Digit& digit : partials.steps.exchange) {
    mine = AddTo(mine, Scaled(b().CreateURem(b().CreateUDiv(thread(), I32(digit.stride)), I32(digit.size)), weight));
    weight *= digit.size;
  }
  Value* stored = ToMemory(v, partials.dtype);
  if (!partials.reduce->cluster) {
    b().CreateAlignedStore(stored, PartialPointer(partials, reg, mine, 0), llvm::Align(uint64_t(ir::Bytes(partials.dtype))));
    return;
  }
  // Lanes that hold copies of one result send them to different blocks: each byte must arrive once, since the mbarrier counts it.
  Value* pointer = PartialPointer(partials, reg, AddTo(mine, Scaled(device().ClusterRank(), weight)), 0);
  Value* copy = I32(0);
  int64_t copies = 1;
  for (int mask : partials.steps.masks) {
    copy = b().CreateAdd(copy, b().CreateMul(b().CreateURem(b().CreateUDiv(thread(), I32(mask)), I32(2)), I32(copies)));
    copies *= 2;
  }
  const int64_t blocks = kernel().ClusterBlocks();
  for (int64_t first = 0; first < blocks; first += copies) {
    Value* block = b().CreateAdd(copy, I32(first));
    Value* takes = IsFirstCopy(*module()[partials.reduce->src.buffer].layout);
    if (first + copies > blocks) {
      Value* exists = b().CreateICmpULT(block, I32(blocks));
      takes = Both(takes, exists);
    }
    When(takes, [&] { device().StoreAsyncAt(pointer, block, stored, mbarrier); });
  }
}

// If all lanes of a warp need the same partial results, each lane reads some and the warp combines them; otherwise every thread reads all.
Value* Reductions::JoinPartials(const Partials& partials, int64_t reg) {
  constexpr int64_t kFew = 4;
  const int64_t lanes = target().warp_size, count = partials.count;
  llvm::Type* type = MemoryType(llvm(), partials.dtype);
  const auto load = [&](Value* which, int64_t constant) {
    Value* pointer = PartialPointer(partials, reg, which, constant);
    return FromMemory(b().CreateAlignedLoad(type, pointer, llvm::Align(uint64_t(ir::Bytes(partials.dtype)))), partials.dtype);
  };
  const bool shared = int64_t{1} << partials.steps.masks.size() == lanes;
  const bool spread = shared && count > kFew;
  const int64_t step = spread ? std::min(int64_t(std::bit_ceil(uint64_t(count))), lanes) : 1;
  Value* which = spread ? b().CreateURem(thread(), I32(step)) : nullptr;
  // Lanes beyond the last partial result read the first one and drop it.
  const auto load_inside = [&](int64_t p) {
    if (p + step <= count) return load(which, p);
    Value* inside = b().CreateICmpULT(which, I32(count - p));
    Value* read = load(b().CreateSelect(inside, b().CreateAdd(which, I32(p)), I32(0)), 0);
    return b().CreateSelect(inside, read, ReduceIdentity(llvm(), partials.reduce->kind, partials.dtype));
  };
  Value* v = load_inside(0);
  for (int64_t p = step; p < count; p += step) v = Combine(b(), partials.reduce->kind, partials.dtype, v, load_inside(p));
  for (int64_t mask = 1; mask < step; mask *= 2) v = Combine(b(), partials.reduce->kind, partials.dtype, v, device().ShuffleXor(v, int(mask)));
  return v;
}

}  // namespace kiln::llvm_ir
