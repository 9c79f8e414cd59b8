// SPDX-License-Identifier: Apache-2.0
//
// Addresses, registers of fragments, and layouts as arithmetic on the thread index.
#include <algorithm>

#include "compiler/analysis/threads/vector_width.h"
#include "compiler/llvm/kernel_lowering.h"
#include "ir/op.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Analysis/ValueTracking.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {

using ir::BufferId;
using ir::ExprId;
using ir::Place;
using ir::Space;

Value* KernelLowering::Alloca(llvm::Type* type, int64_t count, const char* name) {
  llvm::IRBuilderBase::InsertPointGuard guard(b());
  llvm::BasicBlock& entry = function_->getEntryBlock();
  b().SetInsertPoint(&entry, entry.begin());
  auto* array = llvm::ArrayType::get(type, uint64_t(std::max<int64_t>(count, 1)));
  const unsigned space = out_.getDataLayout().getAllocaAddrSpace();
  return b().CreateAlloca(array, space, nullptr, name);
}

KernelLowering::HeldRegister& KernelLowering::Held(BufferId fragment, int64_t reg) {
  HeldRegister& held = registers_[{ir::Index(fragment), reg}];
  llvm::BasicBlock* here = b().GetInsertBlock();
  if (held.block != here) {
    llvm::Type* type = MemoryType(llvm(), module_[fragment].dtype);
    held = {.block = here, .pointer = b().CreateConstInBoundsGEP1_64(type, memory_.at(ir::Index(fragment)), uint64_t(reg))};
  }
  return held;
}

Value* KernelLowering::LoadRegister(BufferId fragment, int64_t reg) {
  HeldRegister& held = Held(fragment, reg);
  if (held.value == nullptr) held.value = b().CreateLoad(MemoryType(llvm(), module_[fragment].dtype), held.pointer);
  return held.value;
}

void KernelLowering::StoreRegister(BufferId fragment, int64_t reg, Value* v) {
  if (in_products_.contains(fragment)) device_->AssignRegister(ir::Index(fragment), reg, v);
  PutRegister(fragment, reg, v);
}

void KernelLowering::PutRegister(BufferId fragment, int64_t reg, Value* v) {
  HeldRegister& held = Held(fragment, reg);
  held.value = v;
  if (held.store == nullptr) {
    held.store = b().CreateStore(v, held.pointer);
  } else {
    held.store->setOperand(0, v);
    held.store->moveBefore(*held.block, held.block->end());
  }
}

void KernelLowering::UseRegisters(BufferId fragment, int64_t first, int64_t count) { device_->UseRegisters(ir::Index(fragment), first, count); }

Value* KernelLowering::AddTo(Value* sum, Value* more) {
  if (more == nullptr) return sum;
  return sum == nullptr ? more : b().CreateAdd(sum, more);
}

Value* KernelLowering::Scaled(Value* v, int64_t factor) {
  if (v == nullptr || factor == 0) return nullptr;
  return factor == 1 ? v : b().CreateMul(v, llvm::ConstantInt::get(v->getType(), uint64_t(factor), true));
}

std::vector<Value*> KernelLowering::StridesOf(BufferId id) {
  const ir::Buffer& buffer = module_[id];
  std::vector<Value*> strides(buffer.shape.size());
  Value* stride = I64(1);
  for (size_t d = buffer.shape.size(); d-- > 0;) {
    strides[d] = buffer.strides.empty() ? stride : EvalIndex(buffer.strides[d]);
    if (buffer.strides.empty()) stride = b().CreateMul(stride, EvalIndex(buffer.shape[d]));
  }
  return strides;
}

Value* KernelLowering::FlatOffset(BufferId id, std::span<const ExprId> indices) {
  const std::vector<Value*> strides = StridesOf(id);
  Value* offset = nullptr;
  for (size_t d = 0; d < indices.size(); ++d) offset = AddTo(offset, b().CreateMul(EvalIndex(indices[d]), strides[d]));
  return offset == nullptr ? I64(0) : offset;
}

Value* KernelLowering::SharedTerm(BufferId id, int dim, Value* index) {
  const auto& digits = module_[id].layout->dim(dim);
  Value* sum = nullptr;
  for (size_t i = 0; i < digits.size(); ++i) {
    const int64_t bytes = digits[i].stride * ir::Bits(module_[id].dtype) / 8;
    const bool last = i + 1 == digits.size();
    sum = AddTo(sum, Scaled(last ? index : b().CreateURem(index, I32(digits[i].size)), bytes));
    if (!last) index = b().CreateUDiv(index, I32(digits[i].size));
  }
  return sum;
}

int64_t KernelLowering::SwizzlePeriod(BufferId id) const {
  const ir::Swizzle& swizzle = module_[id].layout->swizzle();
  return swizzle.bits == 0 ? 1 : int64_t{1} << (swizzle.base + swizzle.shift + swizzle.bits);
}

// The swizzle of an offset as it stands, once for each block of code.
Value* KernelLowering::Swizzled(const ir::Swizzle& swizzle, Value* variable, int64_t constant) {
  Value*& known = swizzled_[{variable, constant, swizzle.bits, swizzle.shift, b().GetInsertBlock()}];
  if (known == nullptr) {
    Value* linear = constant == 0 ? variable : b().CreateAdd(variable, I32(constant));
    const int64_t mask = ((int64_t{1} << swizzle.bits) - 1) << swizzle.base;
    known = b().CreateXor(linear, b().CreateAnd(b().CreateLShr(linear, uint64_t(swizzle.shift)), I32(mask)));
  }
  return known;
}

// Bits of an offset that are 0 whatever the thread. LLVM itself gives up on sums of more than a few terms.
int64_t KernelLowering::KnownZeros(Value* offset) {
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
    known = llvm::computeKnownBits(offset, out_.getDataLayout());
  }
  const auto zeros = int64_t(known.Zero.getZExtValue());
  zeros_.emplace(offset, zeros);
  return zeros;
}

// swizzle(v + c) = (c rounded down to the period) + swizzle(v + rest): only the rest takes part, and equal rests share the result. Where
// v has no bit in common with the rest, swizzle(v + rest) = swizzle(v) ^ swizzle(rest), and what lies below the swizzle is a constant.
Value* KernelLowering::SharedPointer(BufferId id, SplitOffset bytes, Value* after) {
  const ir::Buffer& buffer = module_[id];
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
  Value* pointer = shared_;
  if (after != nullptr) pointer = b().CreateGEP(b().getInt8Ty(), pointer, after);
  if (variable != nullptr) pointer = b().CreateGEP(b().getInt8Ty(), pointer, variable);
  return b().CreateConstGEP1_64(b().getInt8Ty(), pointer, uint64_t(constant + *buffer.shared_offset));
}

Value* KernelLowering::ElementPointer(BufferId id, std::span<const ExprId> indices) {
  const ir::Buffer& buffer = module_[id];
  if (buffer.space == Space::kGlobal || buffer.space == Space::kLocal) {
    return b().CreateGEP(MemoryType(llvm(), buffer.dtype), memory_.at(ir::Index(id)), FlatOffset(id, indices));
  }
  if (buffer.space == Space::kFragment) {
    // Every thread holds the whole fragment, with registers numbered row by row. Which register an access needs may be known only at run
    // time.
    registers_.erase(registers_.lower_bound({ir::Index(id), 0}), registers_.lower_bound({ir::Index(id) + 1, 0}));
    return b().CreateGEP(MemoryType(llvm(), buffer.dtype), memory_.at(ir::Index(id)), FlatOffset(id, indices));
  }
  SplitOffset offset;
  Value* after = nullptr;
  for (size_t d = 0; d < indices.size(); ++d) {
    Value* index = b().CreateTrunc(EvalIndex(indices[d]), b().getInt32Ty());
    // An index that moves by whole periods of the swizzle, as versions of a buffer do, is added after the swizzle.
    const bool whole = !compiler::IsBlocked(buffer, int(d)) && buffer.layout->swizzle().bits > 0 &&
                       compiler::SharedStride(buffer, int(d)) * ir::Bytes(buffer.dtype) % SwizzlePeriod(id) == 0;
    Value*& part = whole ? after : offset.variable;
    part = AddTo(part, SharedTerm(id, int(d), index));
  }
  return SharedPointer(id, offset, after);
}

Value* KernelLowering::InsideOf(BufferId id, std::span<const ExprId> indices) {
  Value* inside = nullptr;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (facts_.Inside(indices[d], 1, module_[id].shape[d])) continue;
    // One unsigned comparison: negative indices are large.
    Value* check = b().CreateICmpULT(EvalIndex(indices[d]), EvalIndex(module_[id].shape[d]));
    inside = inside == nullptr ? check : b().CreateAnd(inside, check);
  }
  return inside;
}

// The program must not access elements outside of a tile or a local array; the emulator checks that it does not. `exists` (i1, nullptr:
// always): whether the access takes place.
bool KernelLowering::MayLeave(BufferId id, std::span<const ExprId> indices) const {
  return context_.target->emulated && module_[id].space != Space::kGlobal && !compiler::ProvablyInside(module_, facts_, id, indices);
}

void KernelLowering::CheckInside(BufferId id, std::span<const ExprId> indices, Value* exists, bool write) {
  if (!MayLeave(id, indices)) return;
  Values index;
  for (ExprId i : indices) index.push_back(EvalIndex(i));
  Value* outside = b().CreateNot(InsideOf(id, indices));
  StopWhere(exists == nullptr ? outside : b().CreateAnd(exists, outside), id, index, write);
}

// Checks the elements of one vector: if the first and the last are inside, so are those between.
void KernelLowering::CheckNeighbours(const ElementAddress& address, int64_t reg, int64_t width, const ElementContext::Scattered* vectors,
                                     Value* exists, bool write) {
  if (address.unproven.empty()) return;
  const auto check = [&](int64_t at) {
    SetIteration(at);
    CheckInside(address.buffer, address.unproven, exists, write);
  };
  if (vectors == nullptr) {
    check(reg);
    if (width > 1) check(reg + width - 1);
    return;
  }
  for (size_t other = 0; other < vectors->places.size(); ++other)
    if (vectors->places[other].first == reg) check(int64_t(other));
}

void KernelLowering::StopWhere(Value* outside, BufferId id, std::span<Value* const> index, bool write) {
  llvm::BasicBlock *stop = NewBlock("outside"), *inside = NewBlock("inside");
  b().CreateCondBr(outside, stop, inside);
  b().SetInsertPoint(stop);
  device_->StopOutside({ir::Index(id), index, module_.ShapeOf(id), ir::Bytes(module_[id].dtype), write});
  b().SetInsertPoint(inside);
}

bool KernelLowering::MayBeEmpty(BufferId id) const {
  return std::ranges::any_of(module_[id].shape, [&](ExprId extent) { return facts_.RangeOf(extent).min <= 0; });
}

// Where the condition is false, loads element 0 and ignores it. Not if the buffer may be empty, nor on the emulator, which takes this load
// for an access like any other, so that it could race.
Value* KernelLowering::LoadGuarded(BufferId id, llvm::Type* type, Value* pointer, Value* condition, llvm::Align align, Value* otherwise, bool once) {
  const auto load = [&](Value* from) -> Value* { return once ? device_->LoadOnce(type, from) : b().CreateAlignedLoad(type, from, align); };
  if (condition == nullptr) return load(pointer);
  const ir::Buffer& buffer = module_[id];
  if (!context_.target->emulated && (buffer.space == Space::kShared || !MayBeEmpty(id))) {
    Value* start = buffer.space == Space::kShared ? SharedPointer(id, {}) : memory_.at(ir::Index(id));
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

llvm::Align KernelLowering::AlignOf(BufferId id, int64_t elements) const {
  const int64_t bytes = ir::Bytes(module_[id].dtype) * elements;
  return llvm::Align(uint64_t(bytes & -bytes));
}

KernelLowering::RegionStart KernelLowering::StartOf(const ir::Region& region) {
  const ir::Buffer& buffer = module_[region.buffer];
  Value* outside = nullptr;
  Values corner;  // the one that is furthest out
  for (size_t d = 0; context_.target->emulated && d < region.offsets.size(); ++d) {
    Value *first = EvalIndex(region.offsets[d]), *last = b().CreateAdd(first, I64(region.extents[d] - 1));
    corner.push_back(b().CreateSelect(b().CreateICmpSLT(first, I64(0)), first, last));
    if (facts_.Inside(region.offsets[d], region.extents[d], buffer.shape[d])) continue;
    Value* leaves = b().CreateICmpUGE(corner.back(), EvalIndex(buffer.shape[d]));
    outside = outside == nullptr ? leaves : b().CreateOr(outside, leaves);
  }
  if (outside != nullptr) StopWhere(outside, region.buffer, corner, /*write=*/false);
  RegionStart start;
  const int64_t period = SwizzlePeriod(region.buffer);
  for (size_t d = 0; d < region.offsets.size(); ++d) {
    if (pool().IsConst(region.offsets[d], 0)) continue;
    const int64_t step = compiler::SharedStride(buffer, int(d)) * ir::Bits(buffer.dtype) / 8;
    Value* bytes = SharedTerm(region.buffer, int(d), b().CreateTrunc(EvalIndex(region.offsets[d]), b().getInt32Ty()));
    Value*& part = step % period == 0 && !compiler::IsBlocked(buffer, int(d)) ? start.after : start.before;
    part = AddTo(part, bytes);
  }
  return start;
}

std::vector<Value*> KernelLowering::ThreadParts(const ir::Layout& layout, Value* thread) {
  std::vector<Value*> parts(size_t(layout.rank()), nullptr);
  const int64_t threads = layout.Threads();
  for (int d = 0; d < layout.rank(); ++d) {
    int64_t weight = 1;
    for (const ir::Digit& digit : layout.dim(d)) {
      if (digit.place == Place::kThread && digit.size > 1) {
        Value* v = digit.stride == 1 ? thread : b().CreateUDiv(thread, I32(digit.stride));
        if (digit.stride * digit.size < threads) v = b().CreateURem(v, I32(digit.size));
        parts[size_t(d)] = AddTo(parts[size_t(d)], Scaled(v, weight));
      }
      weight *= digit.size;
    }
    if (parts[size_t(d)] == nullptr) parts[size_t(d)] = I32(0);
  }
  return parts;
}

Value* KernelLowering::IsFirstCopy(const ir::Layout& layout) {
  Value* first = nullptr;
  for (const ir::Digit& digit : layout.replicas()) {
    if (digit.size == 1) continue;
    Value* v = b().CreateURem(b().CreateUDiv(thread_, I32(digit.stride)), I32(digit.size));
    Value* zero = b().CreateICmpEQ(v, I32(0));
    first = first == nullptr ? zero : b().CreateAnd(first, zero);
  }
  return first;
}

}  // namespace kiln::llvm_ir
