// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/analysis/threads/vector_width.h"

namespace kiln::llvm_ir {

using ir::BufferId;
using ir::ExprId;
using ir::Space;

namespace {

// The last indices, from `first` on, as digits of a number: of a row-major tensor they say the same as the number does.
struct Digits {
  size_t first;
  ExprId number;
};

// The number whose quotient the expression is; nullopt: it is none by this divisor.
std::optional<ExprId> DividedBy(const ir::ExprPool& pool, ExprId id, int64_t divisor) {
  while (divisor != 1) {
    const ir::ExprNode& node = pool[id];
    const int64_t by = node.op == ir::ExprOp::kFloorDiv ? pool.ConstInt(node.args[1]).value_or(0) : 0;
    if (by <= 0 || divisor % by != 0) return std::nullopt;
    divisor /= by, id = node.args[0];
  }
  return id;
}

// n // 192 // 32, n // 192 mod 32, n mod 192 are what a reshape leaves of one index.
std::optional<Digits> LastDigits(const ir::Module& module, BufferId id, std::span<const ExprId> indices) {
  const ir::ExprPool& pool = module.exprs;
  const ir::Buffer& buffer = module[id];
  if (!buffer.strides.empty() || indices.size() < 2) return std::nullopt;
  std::optional<ExprId> number;
  int64_t weight = 1;
  for (size_t d = indices.size(); d-- > 0;) {
    if (number && DividedBy(pool, indices[d], weight) == number) return Digits{d, *number};
    const ir::ExprNode& node = pool[indices[d]];
    const std::optional<int64_t> extent = pool.ConstInt(buffer.shape[d]);
    if (node.op != ir::ExprOp::kFloorMod || !extent || pool.ConstInt(node.args[1]) != extent || *extent > INT32_MAX / weight) return std::nullopt;
    const std::optional<ExprId> of = DividedBy(pool, node.args[0], weight);
    if (!of || (number && *of != *number)) return std::nullopt;
    number = of, weight *= *extent;
  }
  return std::nullopt;
}

constexpr int64_t kMostChecked = 100'000;  // instructions of the kernel, behind which reads of unwritten elements are not looked for

}  // namespace

Value* Memory::Load(BufferId id, std::span<const ExprId> indices, Value* condition) {
  const ir::Buffer& buffer = module()[id];
  if (ir::Bits(buffer.dtype) < 8) {
    Unsupported(fmt::format("elements of {} one by one ('{}')", ir::Name(buffer.dtype), buffer.name), "load bytes and unpack them");
    return llvm::PoisonValue::get(MemoryType(llvm(), buffer.dtype));
  }
  CheckInside(id, indices, condition, /*write=*/false);
  Value* pointer = ElementPointer(id, indices);
  CheckWritten(id, indices, condition);
  return LoadGuarded(id, MemoryType(llvm(), buffer.dtype), pointer, condition, AlignOf(id, 1), PadValue(buffer), /*once=*/false);
}

void Memory::Store(BufferId id, std::span<const ExprId> indices, Value* v, Value* condition) {
  CheckInside(id, indices, condition, /*write=*/true);
  Value *pointer = ElementPointer(id, indices), *written = WrittenByte(id, indices);
  When(condition, [&] {
    b().CreateAlignedStore(v, pointer, AlignOf(id, 1));
    if (written != nullptr) b().CreateStore(b().getInt8(1), written);
  });
}

void Memory::Update(const ir::Atomic& atomic, Value* condition) {
  constexpr AtomicOp kOps[] = {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin,      AtomicOp::kAnd,
                               AtomicOp::kOr,  AtomicOp::kXor, AtomicOp::kExchange, AtomicOp::kCompareExchange,
                               AtomicOp::kLoad};  // kStore is none
  const ir::Buffer& buffer = module()[atomic.buffer];
  Value* value = atomic.TakesValue() ? evaluator_.Eval(atomic.value) : nullptr;
  Value* compare = atomic.Compares() ? evaluator_.Eval(atomic.compare) : nullptr;
  CheckInside(atomic.buffer, atomic.indices, condition, /*write=*/true);
  Value* pointer = ElementPointer(atomic.buffer, atomic.indices);
  if (atomic.block) pointer = device().ClusterAddress(pointer, b().CreateTrunc(evaluator_.EvalIndex(*atomic.block), b().getInt32Ty()));
  if (atomic.kind == ir::AtomicKind::kStore) {
    return When(condition, [&] { b().CreateAlignedStore(ToMemory(value, buffer.dtype), pointer, AlignOf(atomic.buffer, 1)); });
  }
  llvm::BasicBlock* from = b().GetInsertBlock();
  llvm::BasicBlock* done = from;
  Value* old = nullptr;
  When(condition, [&] {
    const AtomicForm form{kOps[int(atomic.kind) - 1], buffer.dtype, fenced_ ? ir::MemoryOrder::kRelaxed : atomic.order, atomic.old.has_value()};
    old = device().Atomic(form, pointer, value, compare);
    done = b().GetInsertBlock();
  });
  if (!atomic.old) return;
  if (condition != nullptr) {
    llvm::PHINode* either = b().CreatePHI(old->getType(), 2);
    either->addIncoming(old, done);
    either->addIncoming(PadValue(buffer), from);
    old = either;
  }
  const ir::Element& to = *atomic.old;
  Store(to.buffer, to.indices, old, ElementExists(to.buffer, to.indices));
}

Value* Memory::PadValue(const ir::Buffer& buffer) const { return ToMemory(Constant(buffer.dtype, buffer.pad_value.value_or(0)), buffer.dtype); }

Values Memory::StridesOf(BufferId id) {
  const ir::Buffer& buffer = module()[id];
  Values strides(buffer.shape.size());
  Value* stride = I64(1);
  for (size_t d = buffer.shape.size(); d-- > 0;) {
    strides[d] = buffer.strides.empty() ? stride : evaluator_.EvalIndex(buffer.strides[d]);
    if (buffer.strides.empty()) stride = b().CreateMul(stride, evaluator_.EvalIndex(buffer.shape[d]));
  }
  return strides;
}

Value* Memory::FlatOffset(BufferId id, std::span<const ExprId> indices) {
  const Values strides = StridesOf(id);
  Value* offset = nullptr;
  if (const std::optional<Digits> digits = LastDigits(module(), id, indices)) {
    offset = evaluator_.EvalIndex(digits->number);
    indices = indices.first(digits->first);
  }
  for (size_t d = 0; d < indices.size(); ++d) offset = AddTo(offset, b().CreateMul(evaluator_.EvalIndex(indices[d]), strides[d]));
  return offset == nullptr ? I64(0) : offset;
}

// Every thread holds the whole fragment. Which register an access needs may be known only at run time.
Value* Memory::RegisterOf(BufferId id, std::span<const ExprId> indices) {
  Value* number = nullptr;
  for (size_t d = 0; d < indices.size(); ++d) {
    const std::vector<ir::Digit>& digits = module()[id].layout->dim(int(d));
    Value* rest = digits.empty() ? nullptr : evaluator_.EvalIndex(indices[d]);
    for (size_t i = 0; i < digits.size(); ++i) {
      const bool last = i + 1 == digits.size();
      number = AddTo(number, b().CreateMul(last ? rest : b().CreateURem(rest, I64(digits[i].size)), I64(digits[i].stride)));
      if (!last) rest = b().CreateUDiv(rest, I64(digits[i].size));
    }
  }
  return number == nullptr ? I64(0) : number;
}

Value* Memory::ElementPointer(BufferId id, std::span<const ExprId> indices) {
  const ir::Buffer& buffer = module()[id];
  if (buffer.space == Space::kGlobal || buffer.space == Space::kLocal) {
    return b().CreateGEP(MemoryType(llvm(), buffer.dtype), places_.Of(id), FlatOffset(id, indices));
  }
  if (buffer.space == Space::kFragment) {
    registers_.Forget(id);
    return b().CreateGEP(MemoryType(llvm(), buffer.dtype), places_.Of(id), RegisterOf(id, indices));
  }
  SplitOffset offset;
  Value* after = nullptr;
  for (size_t d = 0; d < indices.size(); ++d) {
    Value* index = b().CreateTrunc(evaluator_.EvalIndex(indices[d]), b().getInt32Ty());
    const bool behind = buffer.layout->swizzle().bits > 0 && shared_.MovesByPeriods(id, int(d));
    Value*& part = behind ? after : offset.variable;
    part = AddTo(part, shared_.Term(id, int(d), index));
  }
  return shared_.Pointer(id, offset, after);
}

Value* Memory::InsideOf(BufferId id, std::span<const ExprId> indices) {
  Value* inside = nullptr;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (facts().Inside(indices[d], 1, module()[id].shape[d])) continue;
    // One unsigned comparison: negative indices are large.
    inside = Both(inside, b().CreateICmpULT(evaluator_.EvalIndex(indices[d]), evaluator_.EvalIndex(module()[id].shape[d])));
  }
  return inside;
}

Value* Memory::ElementExists(BufferId id, std::span<const ExprId> indices) {
  return module()[id].space == Space::kGlobal ? InsideOf(id, indices) : nullptr;
}

bool Memory::MayLeave(BufferId id, std::span<const ExprId> indices, const compiler::Facts& known) const {
  return target().emulated && module()[id].space != Space::kGlobal && !compiler::ProvablyInside(module(), known, id, indices);
}

void Memory::CheckInside(BufferId id, std::span<const ExprId> indices, Value* exists, bool write) {
  if (!MayLeave(id, indices)) return;
  Values index;
  for (ExprId i : indices) index.push_back(evaluator_.EvalIndex(i));
  Value* outside = b().CreateNot(InsideOf(id, indices));
  StopWhere(exists == nullptr ? outside : b().CreateAnd(exists, outside), id, index, write);
}

void Memory::StopWhere(Value* outside, BufferId id, std::span<Value* const> index, bool write) {
  llvm::BasicBlock *stop = NewBlock("outside"), *inside = NewBlock("inside");
  b().CreateCondBr(outside, stop, inside);
  b().SetInsertPoint(stop);
  device().StopOutside({ir::Index(id), index, module().ShapeOf(id), ir::Bytes(module()[id].dtype), write});
  b().SetInsertPoint(inside);
}

Value* Memory::WrittenByte(BufferId id, std::span<const ExprId> indices) {
  Value* written = places_.Written(id);
  return written == nullptr ? nullptr : b().CreateGEP(b().getInt8Ty(), written, FlatOffset(id, indices));
}

void Memory::NoteWritten(const ir::Region& region) {
  Value* written = WrittenByte(region.buffer, region.offsets);
  if (written == nullptr) return;
  b().CreateMemSet(written, b().getInt8(1), uint64_t(region.extents.empty() ? 1 : region.extents.back()), llvm::MaybeAlign());
}

void Memory::CheckWritten(BufferId id, std::span<const ExprId> indices, Value* condition) {
  if (places_.Written(id) == nullptr || context().Code() > kMostChecked) return;
  Value* written = WrittenByte(id, indices);
  Values index;
  for (ExprId i : indices) index.push_back(evaluator_.EvalIndex(i));
  When(condition, [&] {
    When(b().CreateICmpEQ(b().CreateLoad(b().getInt8Ty(), written), b().getInt8(0)),
         [&] { device().ReportUnwritten({ir::Index(id), index, module().ShapeOf(id), ir::Bytes(module()[id].dtype), /*write=*/false}); });
  });
}

bool Memory::MayBeEmpty(BufferId id) const {
  return std::ranges::any_of(module()[id].shape, [&](ExprId extent) { return facts().RangeOf(extent).min <= 0; });
}

// Where the condition is false, loads element 0 and ignores it. Not if there may be no element 0, nor on the emulator, which takes this load
// for an access like any other, so that it could race.
Value* Memory::Guarded(BufferId id, llvm::Type* type, Value* pointer, Value* condition, Value* otherwise, const std::function<Value*(Value*)>& load) {
  if (condition == nullptr) return load(pointer);
  const ir::Buffer& buffer = module()[id];
  if (!target().emulated && (buffer.space == Space::kShared || (!MayBeEmpty(id) && !compiler::HasGaps(module(), id)))) {
    Value* start = buffer.space == Space::kShared ? shared_.Pointer(id, {}) : places_.Of(id);
    Value* safe = b().CreateSelect(condition, pointer, start);
    return b().CreateSelect(condition, load(safe), otherwise);
  }
  llvm::BasicBlock *from = b().GetInsertBlock(), *then = NewBlock("load"), *end = NewBlock("load.end");
  b().CreateCondBr(condition, then, end);
  b().SetInsertPoint(then);
  Value* loaded = load(pointer);
  b().CreateBr(end);
  b().SetInsertPoint(end);
  llvm::PHINode* result = b().CreatePHI(type, 2);
  result->addIncoming(loaded, then);
  result->addIncoming(otherwise, from);
  return result;
}

Value* Memory::LoadGuarded(BufferId id, llvm::Type* type, Value* pointer, Value* condition, llvm::Align align, Value* otherwise, bool once) {
  return Guarded(id, type, pointer, condition, otherwise,
                 [&](Value* from) -> Value* { return once ? device().LoadOnce(type, from) : b().CreateAlignedLoad(type, from, align); });
}

Value* Memory::LoadAround(BufferId id, unsigned words, Value* pointer, Value* condition, Value* nearer, Value* further) {
  auto* vector = llvm::FixedVectorType::get(b().getInt32Ty(), words);
  auto* both = llvm::FixedVectorType::get(b().getInt32Ty(), 2 * words);
  const llvm::Align align(uint64_t(words) * 4);
  return Guarded(id, both, pointer, condition, llvm::PoisonValue::get(both), [&](Value* from) {
    Value* mask = llvm::ConstantInt::getSigned(b().getInt64Ty(), -int64_t(align.value()));
    Value* first = b().CreateIntrinsic(llvm::Intrinsic::ptrmask, {from->getType(), mask->getType()}, {from, mask});
    Value* low = b().CreateAlignedLoad(vector, b().CreateGEP(b().getInt8Ty(), first, nearer), align);
    Value* high = b().CreateAlignedLoad(vector, b().CreateGEP(b().getInt8Ty(), first, further), align);
    llvm::SmallVector<int> all(size_t{2} * words);
    std::iota(all.begin(), all.end(), 0);
    return b().CreateShuffleVector(low, high, all);
  });
}

llvm::Align Memory::AlignOf(BufferId id, int64_t elements) const {
  const int64_t bytes = ir::Bytes(module()[id].dtype) * elements;
  return llvm::Align(uint64_t(bytes & -bytes));
}

void Memory::CheckRegion(const ir::Region& region) {
  if (!target().emulated) return;
  const ir::Buffer& buffer = module()[region.buffer];
  Value* outside = nullptr;
  Values corner;  // the one that is furthest out
  for (size_t d = 0; d < region.offsets.size(); ++d) {
    Value *first = evaluator_.EvalIndex(region.offsets[d]), *last = b().CreateAdd(first, I64(region.extents[d] - 1));
    corner.push_back(b().CreateSelect(b().CreateICmpSLT(first, I64(0)), first, last));
    if (facts().Inside(region.offsets[d], region.extents[d], buffer.shape[d])) continue;
    Value* leaves = b().CreateICmpUGE(corner.back(), evaluator_.EvalIndex(buffer.shape[d]));
    outside = outside == nullptr ? leaves : b().CreateOr(outside, leaves);
  }
  if (outside != nullptr) StopWhere(outside, region.buffer, corner, /*write=*/false);
}

Memory::RegionStart Memory::StartOf(const ir::Region& region) {
  CheckRegion(region);
  RegionStart start;
  for (size_t d = 0; d < region.offsets.size(); ++d) {
    if (pool().IsConst(region.offsets[d], 0)) continue;
    Value* bytes = shared_.Term(region.buffer, int(d), b().CreateTrunc(evaluator_.EvalIndex(region.offsets[d]), b().getInt32Ty()));
    Value*& part = shared_.MovesByPeriods(region.buffer, int(d)) ? start.after : start.before;
    part = AddTo(part, bytes);
  }
  return start;
}

}  // namespace kiln::llvm_ir
