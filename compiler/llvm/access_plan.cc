// SPDX-License-Identifier: Apache-2.0
//
// Splits each access of a parallel loop into a part that all registers share, which is computed once, and a constant for each register.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "compiler/analysis/vector_width.h"
#include "compiler/llvm/kernel_lowering.h"

namespace kiln::llvm_ir {

using compiler::Linear;
using ir::BufferId;
using ir::ExprId;
using ir::Space;

int KernelLowering::LoopVariable(ExprId id) const {
  const ir::ExprNode& node = pool()[id];
  if (node.op != ir::ExprOp::kVar) return -1;
  const auto it = std::ranges::find(element_->loop->vars, ir::VarId(node.ref));
  return it == element_->loop->vars.end() ? -1 : int(it - element_->loop->vars.begin());
}

AccessPlan::Digits KernelLowering::DigitsOf(ExprId id) const {
  if (const int v = LoopVariable(id); v >= 0) return {v};
  const ir::ExprNode& node = pool()[id];
  if (node.op != ir::ExprOp::kFloorDiv && node.op != ir::ExprOp::kFloorMod) return {};
  const int64_t by = pool().ConstInt(node.args[1]).value_or(0);
  AccessPlan::Digits digits = DigitsOf(node.args[0]);
  if (digits.variable < 0 || by <= 0 || by > INT32_MAX / digits.divisor) return {};
  const int64_t bound = digits.divisor * by;
  if (digits.modulus % bound != 0) return {};
  // Each digit of the layout must lie on one side of the bound, or split at it. Then the values of the thread's part and of the register's
  // part add up.
  int64_t weight = 1;
  for (const ir::Digit& digit : element_->layout.dim(digits.variable)) {
    if (weight % bound != 0 && bound % weight != 0) return {};
    weight *= digit.size;
  }
  (node.op == ir::ExprOp::kFloorDiv ? digits.divisor : digits.modulus) = bound;
  return digits;
}

Value* KernelLowering::ThreadPart(const AccessPlan::Digits& digits) {
  Value* part = element_->thread_part[size_t(digits.variable)];
  if (digits.modulus != 0) part = b().CreateURem(part, I32(digits.modulus));
  return digits.divisor == 1 ? part : b().CreateUDiv(part, I32(digits.divisor));
}

// Bytes from one value of a variable to the next; nullopt where the address uses only some of the variable's digits.
std::optional<int64_t> KernelLowering::StepOf(const AccessPlan& plan, size_t variable) {
  int64_t bytes = 0;
  for (const AccessPlan::Step& step : plan.steps) {
    if (step.digits.variable != int(variable)) continue;
    if (!step.digits.IsWhole() || step.value != nullptr) return std::nullopt;
    bytes += step.bytes;
  }
  return bytes;
}

bool KernelLowering::IsSettled(ExprId id) const {
  std::vector<ExprId> open{id};
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const ExprId next = open.back();
    open.pop_back();
    if (!seen.insert(ir::Index(next)).second) continue;
    const ir::ExprNode& node = pool()[next];
    if (node.op == ir::ExprOp::kLoad) {
      // A load that has one value for all iterations. It may also lie outside of a global buffer, where it reads the pad value.
      const ir::Buffer& buffer = module_[BufferId(node.ref)];
      const auto inside = [&](ExprId index, ExprId extent) { return facts_.Inside(index, 1, extent); };
      const bool exists = buffer.space == Space::kGlobal || (buffer.space == Space::kLocal && std::ranges::equal(node.Args(), buffer.shape, inside));
      if (element_->stored.contains(node.ref) || !exists) return false;
    }
    if (node.op == ir::ExprOp::kVar) {
      if (LoopVariable(next) >= 0 || !vars_.contains(node.ref) || element_->bound_inside.contains(node.ref)) return false;
    }
    for (ExprId arg : node.Args()) open.push_back(arg);
  }
  return true;
}

const AccessPlan& KernelLowering::PlanOf(BufferId buffer, std::span<const ExprId> indices) {
  std::vector<uint32_t> key;
  for (ExprId index : indices) key.push_back(ir::Index(index));
  auto [it, added] = element_->plans.try_emplace({ir::Index(buffer), std::move(key)});
  if (added) it->second = MakePlan(buffer, indices);
  return it->second;
}

AccessPlan KernelLowering::MakePlan(BufferId id, std::span<const ExprId> indices) {
  AccessPlan plan;
  plan.buffer = id;
  const ir::Buffer& buffer = module_[id];
  if (buffer.space == Space::kFragment) {
    const auto projection = compiler::ProjectionOf(module_, *element_->loop, indices);
    auto map =
        projection ? compiler::RegisterMap(element_->layout, element_->extents, *buffer.layout, module_.ShapeOf(id), *projection) : std::nullopt;
    if (!map) diagnostics_.Internal(fmt::format("fragment '{}' does not fit the loop that uses it", buffer.name), loc_);
    plan.registers = map ? *std::move(map) : std::vector<int64_t>(element_->parts.size(), 0);
    return plan;
  }
  if (buffer.space == Space::kLocal || ir::Bits(buffer.dtype) < 8) return plan;
  plan.linear = PlanLinear(plan, indices);
  if (MayLeave(id, indices)) plan.unproven.assign(indices.begin(), indices.end());
  if (!plan.linear) return plan;
  plan.width = compiler::VectorWidth(module_, facts_, *element_->loop, id, indices, element_->run, context_.pointer_alignment());
  if (buffer.space == Space::kGlobal) PlanChecks(plan, indices);
  if (plan.width == 1) PlanAcross(plan, indices);
  if (plan.width == 1 && plan.across_width == 1) PlanTogether(plan);
  return plan;
}

void KernelLowering::PlanAcross(AccessPlan& plan, std::span<const ExprId> indices) {
  if (element_->run == 1 || element_->stored.contains(ir::Index(plan.buffer))) return;
  if (std::ranges::any_of(element_->padded, [](bool padded) { return padded; })) return;
  for (size_t v = 0; v + 1 < element_->extents.size(); ++v) {
    const auto& digits = element_->layout.dim(int(v));
    if (digits.empty() || digits[0].place != ir::Place::kRegister) continue;
    const int64_t width =
        compiler::VectorWidthIn(module_, facts_, *element_->loop, v, plan.buffer, indices, digits[0].size, context_.pointer_alignment());
    if (width <= 1 || digits[0].size % width != 0) continue;
    plan.across_width = width;
    for (int64_t reg = 0; reg < int64_t(element_->parts.size()); ++reg) {
      const int64_t place = reg / digits[0].stride % width;
      plan.across.push_back({reg - place * digits[0].stride, place});
    }
    return;
  }
}

// Groups the elements of shared memory that the thread's registers access into vectors, where the thread needs each element of a vector.
// The registers need not be neighbours.
void KernelLowering::PlanTogether(AccessPlan& plan) {
  const ir::Buffer& buffer = module_[plan.buffer];
  if (element_->run == 1 || buffer.space != Space::kShared || element_->stored.contains(ir::Index(plan.buffer))) return;
  if (std::ranges::any_of(element_->padded, [](bool padded) { return padded; })) return;
  const auto aligned = [&](Value* offset) { return offset == nullptr || (KnownZeros(offset) & 15) == 15; };
  const ir::Swizzle& swizzle = buffer.layout->swizzle();
  if (!aligned(plan.base.variable) || !aligned(plan.after) || *buffer.shared_offset % 16 != 0 || (swizzle.bits > 0 && swizzle.base < 4)) return;
  std::map<int64_t, int64_t> first;  // offset → the first register that has it
  std::vector<int64_t> offsets;
  for (int64_t reg = 0; reg < int64_t(element_->parts.size()); ++reg) {
    offsets.push_back(OffsetAt(plan, reg).constant);
    if (offsets.back() < 0 || offsets.back() % ir::Bytes(buffer.dtype) != 0) return;
    first.emplace(offsets.back(), reg);
  }
  int64_t bytes = 16;
  const auto whole = [&](int64_t offset) {
    for (int64_t at = offset / bytes * bytes; at < offset / bytes * bytes + bytes; at += ir::Bytes(buffer.dtype))
      if (!first.contains(at)) return false;
    return true;
  };
  while (bytes > ir::Bytes(buffer.dtype) && !std::ranges::all_of(offsets, whole)) bytes /= 2;
  plan.across_width = bytes / ir::Bytes(buffer.dtype);
  if (plan.across_width > 1)
    for (int64_t offset : offsets) plan.across.push_back({first.at(offset / bytes * bytes), offset % bytes / ir::Bytes(buffer.dtype)});
}

// Whether an index in a dimension of several digits splits into the thread's part and the register's part without a carry into the next
// block. So it does if one variable of the loop moves by steps of 1 and all else is a multiple of the block.
bool KernelLowering::BlocksAreWhole(BufferId id, int dim, const Linear& index) const {
  const int64_t block = module_[id].layout->dim(dim)[0].size;
  if (index.constant % block != 0 || index.constant < 0) return false;
  int variables = 0;
  for (const auto& [term, coefficient] : index.terms) {
    const AccessPlan::Digits by = DigitsOf(ExprId(term));
    if (by.variable < 0) {
      if (facts_.DivisorOf(ExprId(term)) * coefficient % block != 0) return false;
      continue;
    }
    if (coefficient != 1 || by.modulus != 0 || ++variables > 1) return false;
    int64_t weight = 1;
    for (const ir::Digit& digit : element_->layout.dim(by.variable)) {
      const int64_t step = std::max<int64_t>(1, weight / by.divisor);
      if (block % step != 0 && step % block != 0) return false;
      weight *= digit.size;
    }
  }
  return true;
}

bool KernelLowering::PlanLinear(AccessPlan& plan, std::span<const ExprId> indices) {
  const ir::Buffer& buffer = module_[plan.buffer];
  std::vector<Linear> linear;
  for (ExprId index : indices) {
    linear.push_back(compiler::LinearOf(pool(), index));
    for (const auto& [id, coefficient] : linear.back().terms)
      if (DigitsOf(ExprId(id)).variable < 0 && !IsSettled(ExprId(id))) return false;
  }
  const bool shared = buffer.space == Space::kShared;
  llvm::Type* type = shared ? b().getInt32Ty() : b().getInt64Ty();
  const int64_t bytes = ir::Bytes(buffer.dtype);
  for (size_t d = 0; shared && d < indices.size(); ++d)
    if (IsBlocked(plan.buffer, int(d)) && !BlocksAreWhole(plan.buffer, int(d), linear[d])) return false;
  const auto value_of = [&](ExprId id) {
    const AccessPlan::Digits digits = DigitsOf(id);
    return b().CreateSExtOrTrunc(digits.variable >= 0 ? ThreadPart(digits) : EvalIndex(id), type);
  };
  const std::vector<Value*> strides = shared ? std::vector<Value*>{} : StridesOf(plan.buffer);
  for (size_t d = 0; d < indices.size(); ++d) {
    auto* fixed = shared ? nullptr : llvm::dyn_cast<llvm::ConstantInt>(strides[d]);
    const bool constant = shared || fixed != nullptr;
    const int64_t stride = (shared ? SharedStride(plan.buffer, int(d)) : constant ? fixed->getSExtValue() : 1) * bytes;
    // An index that moves by whole periods of the swizzle, as versions of a buffer do, is added after the swizzle.
    const bool blocked = shared && IsBlocked(plan.buffer, int(d));
    const bool behind = shared && !blocked && stride % SwizzlePeriod(plan.buffer) == 0 && module_[plan.buffer].layout->swizzle().bits > 0;
    Value* sum = nullptr;
    for (const auto& [term, coefficient] : linear[d].terms) {
      if (blocked) {
        sum = AddTo(sum, SharedTerm(plan.buffer, int(d), Scaled(value_of(ExprId(term)), coefficient)));
      } else {
        sum = AddTo(sum, Scaled(value_of(ExprId(term)), coefficient * stride));
      }
      AccessPlan::Step step{.digits = DigitsOf(ExprId(term)), .bytes = constant ? coefficient * stride : 0, .blocked = blocked ? int(d) : -1};
      if (step.digits.variable < 0) continue;
      if (!constant) step.value = Scaled(strides[d], coefficient * stride);
      plan.steps.push_back(step);
    }
    if (constant) {
      plan.base.constant += blocked ? SharedTerm(plan.buffer, int(d), linear[d].constant) : linear[d].constant * stride;
      Value*& part = behind ? plan.after : plan.base.variable;
      part = AddTo(part, sum);
      continue;
    }
    if (linear[d].constant != 0) sum = AddTo(sum, I64(linear[d].constant * stride));
    if (sum != nullptr) plan.base.variable = AddTo(plan.base.variable, b().CreateMul(sum, strides[d]));
  }
  if (!shared) {
    plan.pointer = memory_.at(ir::Index(plan.buffer));
    if (plan.base.variable != nullptr) plan.pointer = b().CreateGEP(b().getInt8Ty(), plan.pointer, plan.base.variable);
  }
  return true;
}

void KernelLowering::PlanChecks(AccessPlan& plan, std::span<const ExprId> indices) {
  const ir::Buffer& buffer = module_[plan.buffer];
  for (size_t d = 0; d < indices.size(); ++d) {
    if (facts_.Inside(indices[d], 1, buffer.shape[d])) continue;
    // 32 bits are enough only if neither side of the comparison can exceed them. (The range of an expression that may exceed its type is
    // the whole type.) This does not narrow the address.
    const auto fits = [&](const compiler::Range& range) { return range.min > INT32_MIN && range.max <= INT32_MAX; };
    const bool narrow = fits(facts_.RangeOf(indices[d])) && fits(facts_.RangeOf(buffer.shape[d]));
    llvm::Type* type = narrow ? b().getInt32Ty() : b().getInt64Ty();
    const Linear linear = compiler::LinearOf(pool(), indices[d]);
    AccessPlan::Check check{llvm::ConstantInt::get(type, uint64_t(linear.constant), true), {}, nullptr};
    for (const auto& [term, coefficient] : linear.terms) {
      const AccessPlan::Digits by = DigitsOf(ExprId(term));
      Value* value = b().CreateSExtOrTrunc(by.variable >= 0 ? ThreadPart(by) : EvalIndex(ExprId(term)), type);
      check.index = b().CreateAdd(check.index, Scaled(value, coefficient));
      if (by.variable >= 0) check.coefficients.emplace_back(by, coefficient);
    }
    check.limit = b().CreateSExtOrTrunc(EvalIndex(buffer.shape[d]), type);
    plan.checks.push_back(std::move(check));
  }
}

SplitOffset KernelLowering::OffsetAt(const AccessPlan& plan, int64_t reg) {
  const ir::Indices& part = element_->parts[size_t(reg)];
  SplitOffset offset = plan.base;
  if (plan.pointer != nullptr) offset.variable = nullptr;
  for (const AccessPlan::Step& step : plan.steps) {
    const int64_t count = step.digits.Of(part[size_t(step.digits.variable)]);
    offset.constant += step.blocked >= 0 ? SharedTerm(plan.buffer, step.blocked, count) : step.bytes * count;
    offset.variable = AddTo(offset.variable, Scaled(step.value, count));
  }
  return offset;
}

Value* KernelLowering::PointerAt(const AccessPlan& plan, int64_t reg) {
  const SplitOffset offset = OffsetAt(plan, reg);
  if (module_[plan.buffer].space == Space::kShared) return SharedPointer(plan.buffer, offset, plan.after);
  Value* pointer = plan.pointer;
  if (offset.variable != nullptr) pointer = b().CreateGEP(b().getInt8Ty(), pointer, offset.variable);
  return b().CreateConstGEP1_64(b().getInt8Ty(), pointer, uint64_t(offset.constant));
}

Value* KernelLowering::ConditionAt(const AccessPlan& plan, int64_t reg) {
  Value* condition = element_->guard;
  const ir::Indices& part = element_->parts[size_t(reg)];
  for (const AccessPlan::Check& check : plan.checks) {
    int64_t constant = 0;
    for (const auto& [digits, coefficient] : check.coefficients) constant += coefficient * digits.Of(part[size_t(digits.variable)]);
    Value* index = check.index;
    if (constant != 0) index = b().CreateAdd(index, llvm::ConstantInt::get(index->getType(), uint64_t(constant), true));
    Value* inside = b().CreateICmpULT(index, check.limit);
    condition = condition == nullptr ? inside : b().CreateAnd(condition, inside);
  }
  return condition;
}

}  // namespace kiln::llvm_ir
