// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/vectors.h"

#include "compiler/llvm/lower/loop/around.h"

namespace kiln::llvm_ir {

Values Vectors::Load(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count, std::span<Value* const> masks,
                     Value* otherwise) {
  if (ir::IsScattered(plan.form)) return LoadScattered(plan, address, first, count);
  const bool same = plan.form == ir::LoadForm::kSame;
  Values values;
  for (int64_t i = 0; i < count; i += plan.width) {
    Value* mask = masks.empty() ? nullptr : masks[size_t(i)];
    const bool same_mask = i == 0 || masks.empty() || mask == masks[size_t(i - 1)];
    if (i > 0 && same_mask && (same || (plan.width == 1 && addresses_.IsSamePlace(address, first + i, first + i - 1)))) {
      values.push_back(values.back());
      continue;
    }
    const Values loaded = plan.form == ir::LoadForm::kAround    ? LoadAround(plan, address, first + i)
                          : plan.form == ir::LoadForm::kClipped ? LoadClipped(plan, address, first + i)
                                                                : LoadNeighbours(plan, address, first + i, nullptr, mask, otherwise);
    values.insert(values.end(), loaded.begin(), loaded.end());
  }
  return values;
}

// Takes each element from the vector that contains it. The first of a vector's elements loads the vector.
Values Vectors::LoadScattered(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count) {
  Scattered& vectors = scattered_[{&address, plan.form, plan.width}];
  if (vectors.places.empty()) {
    vectors.places = plan.form == ir::LoadForm::kAcross ? compiler::PlacesAcross(loop_, plan.across, plan.width)
                                                        : compiler::PlacesGathered(loop_, module(), plan.buffer, *address.split, plan.width).value();
  }
  Values values;
  for (int64_t reg = first; reg < first + count; ++reg) {
    const compiler::VectorPlace at = vectors.places[size_t(reg)];
    Values& vector = vectors.loaded[at.first];
    if (vector.empty()) vector = LoadNeighbours(plan, address, at.first, &vectors, nullptr, nullptr);
    values.push_back(vector[size_t(at.place)]);
  }
  return values;
}

// Loads neighbours in memory, the first of which belongs to register `reg`.
Values Vectors::LoadNeighbours(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg, const Scattered* vectors, Value* mask,
                               Value* otherwise) {
  const ir::Buffer& buffer = module()[plan.buffer];
  const unsigned width = unsigned(plan.width);
  llvm::Type* element = MemoryType(llvm(), buffer.dtype);
  llvm::Type* type = width == 1 ? element : llvm::FixedVectorType::get(element, width);
  Value *pad = memory_.PadValue(buffer), *exists = addresses_.ConditionAt(address, reg);
  if (otherwise == nullptr) otherwise = pad;
  // Chosen before the load: a choice behind it would wait for what it brings.
  if (mask != nullptr && exists != nullptr && otherwise != pad) otherwise = b().CreateSelect(mask, pad, otherwise);
  if (width > 1) otherwise = b().CreateVectorSplat(width, otherwise);
  Value* condition = Both(exists, mask);
  CheckNeighbours(address, reg, plan.width, vectors, condition, /*write=*/false);
  Value* pointer = addresses_.PointerAt(address, reg);
  Value* loaded = memory_.LoadGuarded(plan.buffer, type, pointer, condition, memory_.AlignOf(plan.buffer, plan.width), otherwise, plan.once);
  Values values;
  for (unsigned j = 0; j < width; ++j) {
    Value* v = width == 1 ? loaded : b().CreateExtractElement(loaded, uint64_t(j));
    values.push_back(FromMemory(v, buffer.dtype));
  }
  return values;
}

// Each of the vectors around the neighbours is loaded only where it has elements that are inside, else the other in its place. So either is in memory
// that is there, whatever lies around the tensor.
Values Vectors::LoadAround(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg) {
  const ir::Buffer& buffer = module()[plan.buffer];
  const int64_t element = ir::Bytes(buffer.dtype), bytes = plan.width * element;
  Value* pointer = addresses_.PointerAt(address, reg);
  const auto [before, condition] = addresses_.BeginAt(address, reg, plan.width);
  Value *counted = addresses_.CountAt(address, reg, plan.width), *count = counted == nullptr ? I32(plan.width) : counted;
  if (condition != nullptr) count = b().CreateSelect(condition, count, I32(0));
  Value* phase = b().CreateAnd(b().CreateTrunc(b().CreatePtrToInt(pointer, b().getInt64Ty()), b().getInt32Ty()), uint64_t(bytes - 1));
  Value* leaves = b().CreateICmpUGT(b().CreateAdd(phase, Scaled(count, element)), I32(bytes));
  Value *nearer = I64(0), *further = b().CreateSelect(leaves, I64(bytes), I64(0));
  if (before != nullptr) {
    Value* comes = b().CreateICmpUGE(b().CreateAdd(phase, Scaled(before, element)), I32(bytes));
    nearer = b().CreateSelect(Both(condition, comes), I64(bytes), I64(0));
  }
  Value* loaded = memory_.LoadAround(plan.buffer, unsigned(bytes / 4), pointer, condition, nearer, further);
  Values words;
  for (int64_t i = 0; i < bytes / 2; ++i) words.push_back(b().CreateExtractElement(loaded, uint64_t(i)));
  words = WordsFrom(b(), std::move(words), phase);
  Value* together = llvm::PoisonValue::get(llvm::FixedVectorType::get(b().getInt32Ty(), unsigned(words.size())));
  for (size_t i = 0; i < words.size(); ++i) together = b().CreateInsertElement(together, words[i], uint64_t(i));
  together = b().CreateBitCast(together, llvm::FixedVectorType::get(MemoryType(llvm(), buffer.dtype), unsigned(plan.width)));
  Values values;
  for (int64_t i = 0; i < plan.width; ++i) {
    Value* inside = counted == nullptr ? condition : b().CreateICmpUGT(count, I32(i));
    if (before != nullptr) inside = Both(inside, b().CreateICmpULE(before, I32(i)));
    Value* value = b().CreateExtractElement(together, uint64_t(i));
    if (inside != nullptr) value = b().CreateSelect(inside, value, memory_.PadValue(buffer));
    values.push_back(FromMemory(value, buffer.dtype));
  }
  return values;
}

// An aligned vector is in memory that is there if its first element is, whatever lies behind the tensor.
Values Vectors::LoadClipped(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg) {
  const ir::Buffer& buffer = module()[plan.buffer];
  Values values = LoadNeighbours(plan, address, reg, nullptr, nullptr, nullptr);
  Value* count = addresses_.CountAt(address, reg, plan.width);
  for (int64_t i = 1; count != nullptr && i < plan.width; ++i) {
    values[size_t(i)] = b().CreateSelect(b().CreateICmpUGT(count, I32(i)), values[size_t(i)], FromMemory(memory_.PadValue(buffer), buffer.dtype));
  }
  return values;
}

// Neighbours as one value. Two bytes are a 16-bit number: st.v2.b8, which LLVM makes of them else, is stored wrong by ptxas 13.0 and the
// driver's compiler where the bytes come from words loaded whole (the second was one of another word).
Value* Vectors::Join(std::span<Value* const> values) const {
  if (values.size() == 1) return values[0];
  if (values.size() == 2 && values[0]->getType()->isIntegerTy(8)) {
    Value* low = b().CreateZExt(values[0], b().getInt16Ty());
    return b().CreateOr(low, b().CreateShl(b().CreateZExt(values[1], b().getInt16Ty()), uint64_t{8}));
  }
  Value* vector = llvm::PoisonValue::get(llvm::FixedVectorType::get(values[0]->getType(), unsigned(values.size())));
  for (size_t i = 0; i < values.size(); ++i) vector = b().CreateInsertElement(vector, values[i], uint64_t(i));
  return vector;
}

void Vectors::Store(const ir::StorePlan& plan, const ElementAddress& address, int64_t first, std::span<Value* const> values) {
  const int64_t count = int64_t(values.size()), width = plan.width;
  for (int64_t i = 0; i < count; i += width) {
    Value* condition = Both(addresses_.ConditionAt(address, first + i), iterations_.first_copy());
    CheckStore(address, first + i, width, condition);
    Value* value = Join(values.subspan(size_t(i), size_t(width)));
    When(condition, [&] { StoreAt(plan, address, first + i, value); });
  }
}

void Vectors::StoreParted(const ir::StorePlan& plan, const ElementAddress& address, int64_t first, std::span<Value* const> values,
                          const std::function<Value*(int64_t)>& met) {
  const int64_t width = plan.width;
  const auto stored = [&](int64_t i) { return Both(Both(addresses_.ConditionAt(address, first + i), iterations_.first_copy()), met(first + i)); };
  for (int64_t i = 0; i < int64_t(values.size()); i += width) {
    Value* all = Both(stored(i), stored(i + width - 1));
    if (all == nullptr) all = b().getTrue();
    Value* together = Join(values.subspan(size_t(i), size_t(width)));
    When(all, [&] { StoreAt(plan, address, first + i, together); });
    When(b().CreateNot(all), [&] {
      const ir::StorePlan single{.form = ir::StoreForm::kVector, .loads = {}};
      for (int64_t j = 0; j < width; ++j) When(stored(i + j), [&] { StoreAt(single, address, first + i + j, values[size_t(i + j)]); });
    });
  }
}

void Vectors::StoreAt(const ir::StorePlan& plan, const ElementAddress& address, int64_t reg, Value* value) {
  Value* pointer = addresses_.PointerAt(address, reg);
  plan.kept ? device().StoreKept(value, pointer) : void(b().CreateAlignedStore(value, pointer, memory_.AlignOf(address.buffer, plan.width)));
}

// Checks the elements of one vector: if the first and the last are inside, so are those between.
void Vectors::CheckNeighbours(const ElementAddress& address, int64_t reg, int64_t width, const Scattered* vectors, Value* exists, bool write) {
  if (address.unproven.empty()) return;
  const auto check = [&](int64_t at) {
    iterations_.Enter(at);
    memory_.CheckInside(address.buffer, address.unproven, exists, write);
  };
  if (vectors == nullptr) {
    check(reg);
    if (width > 1) check(reg + width - 1);
    return;
  }
  for (size_t other = 0; other < vectors->places.size(); ++other)
    if (vectors->places[other].first == reg) check(int64_t(other));
}

void Vectors::CheckStore(const ElementAddress& address, int64_t reg, int64_t width, Value* exists) {
  CheckNeighbours(address, reg, width, nullptr, exists, /*write=*/true);
}

}  // namespace kiln::llvm_ir
