// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/addresses.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <set>

#include "compiler/analysis/threads/register_map.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {
namespace {

// So many registers compare their constants with less work than their indices.
constexpr size_t kFewestConstants = 4;

}  // namespace

using compiler::SplitAccess;
using ir::BufferId;
using ir::ExprId;
using ir::Space;

const ElementAddress& Addresses::Of(BufferId buffer, std::span<const ExprId> indices, std::optional<ExprId> mask) {
  std::vector<uint32_t> key;
  for (ExprId index : indices) key.push_back(ir::Index(index));
  if (mask) key.push_back(ir::Index(*mask));
  auto [it, added] = addresses_.try_emplace({ir::Index(buffer), std::move(key)});
  if (!added) return it->second;
  compiler::Facts known = facts();
  if (mask) known.Assume(*mask);
  it->second = Make(buffer, indices, known);
  return it->second;
}

ElementAddress Addresses::Make(BufferId id, std::span<const ExprId> indices, const compiler::Facts& known) {
  ElementAddress address;
  address.buffer = id;
  const ir::Buffer& buffer = module()[id];
  if (buffer.space == Space::kFragment) {
    address.registers = RegistersOf(id, indices);
    return address;
  }
  if (buffer.space == Space::kLocal || ir::Bits(buffer.dtype) < 8) return address;
  address.split = loop_.Split(id, indices);
  if (address.split) MakeLinear(address);
  address.indices.assign(indices.begin(), indices.end());
  if (memory_.MayLeave(id, indices, known)) address.unproven.assign(indices.begin(), indices.end());
  if (address.split && buffer.space == Space::kGlobal) MakeChecks(address, indices, known);
  for (size_t d = 0; d < indices.size() && !address.split; ++d) address.may_be_outside |= !known.Inside(indices[d], 1, buffer.shape[d]);
  return address;
}

std::vector<int64_t> Addresses::RegistersOf(BufferId id, std::span<const ExprId> indices) const {
  const ir::Buffer& buffer = module()[id];
  const auto projection = compiler::ProjectionOf(module(), *loop_.loop, indices);
  auto map = projection ? compiler::RegisterMap(loop_.layout, loop_.extents, *buffer.layout, module().ShapeOf(id), *projection) : std::nullopt;
  if (!map) Internal(fmt::format("fragment '{}' does not fit the loop that uses it", buffer.name));
  return map ? *std::move(map) : std::vector<int64_t>(loop_.parts.size(), 0);
}

void Addresses::MakeLinear(ElementAddress& address) {
  const BufferId id = address.buffer;
  const ir::Buffer& buffer = module()[id];
  const bool shared = buffer.space == Space::kShared;
  llvm::Type* type = shared ? b().getInt32Ty() : b().getInt64Ty();
  const int64_t bytes = ir::Bytes(buffer.dtype);
  const Values strides = shared ? Values{} : memory_.StridesOf(id);
  for (size_t d = 0; d < address.split->indices.size(); ++d) {
    const SplitAccess::Index& index = address.split->indices[d];
    auto* fixed = shared ? nullptr : llvm::dyn_cast<llvm::ConstantInt>(strides[d]);
    const bool constant = shared || fixed != nullptr;
    const int64_t stride = (shared ? compiler::SharedStride(buffer, int(d)) : constant ? fixed->getSExtValue() : 1) * bytes;
    const bool blocked = shared && compiler::IsBlocked(buffer, int(d));
    const bool behind = shared && buffer.layout->swizzle().bits > 0 && shared_.MovesByPeriods(id, int(d));
    Value* sum = nullptr;
    for (const auto& [term, coefficient, digits] : index.terms) {
      Value* value = b().CreateSExtOrTrunc(digits.variable >= 0 ? iterations_.ThreadPart(digits) : evaluator_.EvalIndex(term), type);
      if (blocked) {
        sum = AddTo(sum, shared_.Term(id, int(d), Scaled(value, coefficient)));
      } else {
        sum = AddTo(sum, Scaled(value, coefficient * stride));
      }
      if (digits.variable < 0) continue;
      ElementAddress::Step step{.digits = digits, .bytes = constant ? coefficient * stride : 0, .blocked = blocked ? int(d) : -1};
      if (!constant) step.value = Scaled(strides[d], coefficient * stride);
      address.steps.push_back(step);
    }
    if (constant) {
      address.base.constant += blocked ? compiler::SharedTerm(buffer, int(d), index.constant) : index.constant * stride;
      Value*& part = behind ? address.after : address.base.variable;
      part = AddTo(part, sum);
      continue;
    }
    if (index.constant != 0) sum = AddTo(sum, I64(index.constant * stride));
    if (sum != nullptr) address.base.variable = AddTo(address.base.variable, b().CreateMul(sum, strides[d]));
  }
  if (shared) return;
  address.pointer = places_.Of(id);
  if (address.base.variable != nullptr) address.pointer = b().CreateGEP(b().getInt8Ty(), address.pointer, address.base.variable);
}

void Addresses::MakeChecks(ElementAddress& address, std::span<const ExprId> indices, const compiler::Facts& known) {
  const ir::Buffer& buffer = module()[address.buffer];
  for (size_t d = 0; d < indices.size(); ++d) {
    if (known.Inside(indices[d], 1, buffer.shape[d])) continue;
    // 32 bits are enough only if neither side of the comparison can exceed them. (The range of an expression that may exceed its type is
    // the whole type.) This does not narrow the address.
    const auto fits = [&](const compiler::Range& range) { return range.min > INT32_MIN && range.max <= INT32_MAX; };
    const bool narrow = fits(facts().RangeOf(indices[d])) && fits(facts().RangeOf(buffer.shape[d]));
    llvm::Type* type = narrow ? b().getInt32Ty() : b().getInt64Ty();
    const SplitAccess::Index& index = address.split->indices[d];
    ElementAddress::Check check{llvm::ConstantInt::get(type, uint64_t(index.constant), true), {}, nullptr, facts().RangeOf(indices[d]).min < 0};
    for (const auto& [term, coefficient, digits] : index.terms) {
      Value* value = b().CreateSExtOrTrunc(digits.variable >= 0 ? iterations_.ThreadPart(digits) : evaluator_.EvalIndex(term), type);
      check.index = b().CreateAdd(check.index, Scaled(value, coefficient));
      if (digits.variable >= 0) check.coefficients.emplace_back(digits, coefficient);
    }
    check.limit = b().CreateSExtOrTrunc(evaluator_.EvalIndex(buffer.shape[d]), type);
    if (!narrow) MakeRoom(check, address.buffer);
    address.checks.push_back(std::move(check));
  }
}

// A comparison of 64 bits is a pair of 32. Where registers add constants to one index, the bound of the constants is computed once, and each is
// compared with that. (An index that may be negative would have two bounds, and nothing gained.)
void Addresses::MakeRoom(ElementAddress::Check& check, BufferId buffer) const {
  if (check.may_be_negative) return;
  std::set<int64_t> constants;
  const int64_t width = WidthOf(buffer);
  for (int64_t reg = 0; reg < loop_.Registers(); reg += width) constants.insert(check.ConstantAt(loop_.parts[size_t(reg)]));
  if (constants.size() < kFewestConstants || *constants.begin() < 0 || *constants.rbegin() >= INT32_MAX) return;
  Value* room = b().CreateSub(check.limit, check.index);
  Value* high = b().CreateTrunc(b().CreateAShr(room, uint64_t{32}), b().getInt32Ty());
  Value* bound = b().CreateNot(b().CreateAShr(high, uint64_t{31}));  // what does not fit: nothing, or everything
  check.room = b().CreateSelect(b().CreateICmpEQ(high, I32(0)), b().CreateTrunc(room, b().getInt32Ty()), bound);
}

// How many registers one access of the loop to the buffer takes, at the most.
int64_t Addresses::WidthOf(BufferId buffer) const {
  int64_t width = 1;
  ir::Walk(loop_.loop->body, [&](const ir::Stmt& stmt) {
    const auto* store = std::get_if<ir::Store>(&stmt.op);
    if (store == nullptr || !store->plan) return;
    if (store->buffer == buffer) width = std::max<int64_t>(width, store->plan->width);
    for (const ir::LoadPlan& load : store->plan->loads)
      if (load.buffer == buffer) width = std::max<int64_t>(width, load.width);
  });
  return width;
}

int64_t ElementAddress::Check::ConstantAt(const ir::Indices& part) const {
  int64_t constant = 0;
  for (const auto& [digits, coefficient] : coefficients) constant += coefficient * digits.Of(part[size_t(digits.variable)]);
  return constant;
}

SplitOffset Addresses::OffsetAt(const ElementAddress& address, int64_t reg) const {
  const ir::Indices& part = loop_.parts[size_t(reg)];
  SplitOffset offset = address.base;
  if (address.pointer != nullptr) offset.variable = nullptr;
  for (const ElementAddress::Step& step : address.steps) {
    const int64_t count = step.digits.Of(part[size_t(step.digits.variable)]);
    offset.constant += step.blocked >= 0 ? compiler::SharedTerm(module()[address.buffer], step.blocked, count) : step.bytes * count;
    offset.variable = AddTo(offset.variable, Scaled(step.value, count));
  }
  return offset;
}

Value* Addresses::PointerAt(const ElementAddress& address, int64_t reg) const {
  if (!address.split) {
    iterations_.Enter(reg);
    return memory_.ElementPointer(address.buffer, address.indices);
  }
  const SplitOffset offset = OffsetAt(address, reg);
  if (module()[address.buffer].space == Space::kShared) return shared_.Pointer(address.buffer, offset, address.after);
  Value* pointer = address.pointer;
  if (offset.variable != nullptr) pointer = b().CreateGEP(b().getInt8Ty(), pointer, offset.variable);
  return b().CreateConstGEP1_64(b().getInt8Ty(), pointer, uint64_t(offset.constant));
}

Value* Addresses::ConditionAt(const ElementAddress& address, int64_t reg) const {
  if (!address.split) {
    iterations_.Enter(reg);
    return Both(iterations_.guard(), address.may_be_outside ? memory_.ElementExists(address.buffer, address.indices) : nullptr);
  }
  Value* condition = iterations_.guard();
  for (const ElementAddress::Check& check : address.checks) condition = Both(condition, IsInside(check, reg));
  return condition;
}

Value* Addresses::IsInside(const ElementAddress::Check& check, int64_t reg) const {
  if (check.room == nullptr) return b().CreateICmpULT(IndexAt(check, reg), check.limit);
  return b().CreateICmpULT(I32(check.ConstantAt(loop_.parts[size_t(reg)])), check.room);
}

Value* Addresses::CountAt(const ElementAddress& address, int64_t reg, int64_t width) const {
  const auto at = [&](const ElementAddress::Check& check, int64_t r) { return check.ConstantAt(loop_.parts[size_t(r)]); };
  for (const ElementAddress::Check& check : address.checks) {
    if (at(check, reg + width - 1) == at(check, reg)) continue;
    Value* all = llvm::ConstantInt::get(check.limit->getType(), uint64_t(width));
    Value* rest = b().CreateSub(check.limit, IndexAt(check, reg));
    return b().CreateTrunc(b().CreateBinaryIntrinsic(llvm::Intrinsic::umin, rest, all), b().getInt32Ty());
  }
  return nullptr;
}

Addresses::Begin Addresses::BeginAt(const ElementAddress& address, int64_t reg, int64_t width) const {
  Begin begin{nullptr, iterations_.guard()};
  for (const ElementAddress::Check& check : address.checks) {
    const auto at = [&](int64_t r) { return check.ConstantAt(loop_.parts[size_t(r)]); };
    Value* index = IndexAt(check, reg);
    const auto number = [&](int64_t value) { return llvm::ConstantInt::get(index->getType(), uint64_t(value), true); };
    if (!check.may_be_negative || at(reg + width - 1) == at(reg)) {
      begin.any = Both(begin.any, b().CreateICmpULT(index, check.limit));
      continue;
    }
    Value* first = b().CreateBinaryIntrinsic(llvm::Intrinsic::smax, index, number(0));  // of those that are not before the row
    begin.any = Both(begin.any, b().CreateAnd(b().CreateICmpSGT(index, number(-width)), b().CreateICmpSLT(first, check.limit)));
    begin.before = b().CreateTrunc(b().CreateSub(first, index), b().getInt32Ty());
  }
  return begin;
}

Value* Addresses::AllInside(const ElementAddress& address) const {
  if (iterations_.guard() != nullptr || loop_.IsPadded()) return nullptr;
  Value* all = b().getTrue();
  for (const ElementAddress::Check& check : address.checks) {
    const auto constant = [&](int64_t reg) { return check.ConstantAt(loop_.parts[size_t(reg)]); };
    const auto [least, most] = std::ranges::minmax(std::views::iota(int64_t{0}, loop_.Registers()), {}, constant);
    for (const int64_t reg : {least, most}) all = b().CreateAnd(all, b().CreateICmpULT(IndexAt(check, reg), check.limit));
  }
  return all;
}

Value* Addresses::IndexAt(const ElementAddress::Check& check, int64_t reg) const {
  const int64_t constant = check.ConstantAt(loop_.parts[size_t(reg)]);
  if (constant == 0) return check.index;
  return b().CreateAdd(check.index, llvm::ConstantInt::get(check.index->getType(), uint64_t(constant), true));
}

bool Addresses::IsSamePlace(const ElementAddress& address, int64_t reg, int64_t other) const {
  const ir::Indices &a = loop_.parts[size_t(reg)], &c = loop_.parts[size_t(other)];
  if (!address.split) return a == c;
  const auto same = [&](const compiler::LoopDigits& digits) {
    const size_t v = size_t(digits.variable);
    return digits.Of(a[v]) == digits.Of(c[v]);
  };
  const auto same_check = [&](const ElementAddress::Check& check) {
    return std::ranges::all_of(check.coefficients, [&](const auto& coefficient) { return same(coefficient.first); });
  };
  return std::ranges::all_of(address.steps, [&](const ElementAddress::Step& step) { return same(step.digits); }) &&
         std::ranges::all_of(address.checks, same_check);
}

}  // namespace kiln::llvm_ir
