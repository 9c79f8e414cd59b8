// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops: each thread runs the iterations its layout gives it, unrolled over the layout's registers. Stores of loads and
// arithmetic go in runs of neighbouring registers, so that memory is accessed in vectors; bodies with control flow go iteration by
// iteration.
#include <algorithm>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/vector_width.h"
#include "compiler/llvm/kernel_lowering.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using ir::DType;
using ir::ExprId;
using ir::Space;

namespace {

bool IsMemory(Space space) { return space == Space::kGlobal || space == Space::kShared; }

bool OnlyStores(const ir::Block& body) {
  return std::ranges::all_of(body, [](const ir::Stmt& stmt) { return std::holds_alternative<ir::Store>(stmt.op); });
}

// Whether the body is one async copy. The width of such a copy was chosen with its instruction.
bool IsAsync(const ir::Block& body) {
  const auto* store = body.size() == 1 ? std::get_if<ir::Store>(&body[0].op) : nullptr;
  return store != nullptr && store->async;
}

// How many neighbouring registers are neighbours in the last variable.
int64_t RunOf(const ir::Layout& layout, const std::vector<int64_t>& extents) {
  const auto& last = layout.dim(layout.rank() - 1);
  if (last.empty() || last[0].place != ir::Place::kRegister || last[0].stride != 1) return 1;
  return extents.back() % last[0].size == 0 ? last[0].size : 1;
}

}  // namespace

void KernelLowering::LowerParallel(const ir::Stmt& stmt, const ir::For& loop) {
  ElementContext context{.loop = &loop, .layout = *loop.layout, .extents = compiler::ExtentsOf(module_, loop)};
  for (int64_t extent : context.extents)
    if (extent == 0) return;
  const bool claimed = BeginClaim(loop);
  context.thread_part = ThreadParts(context.layout, thread_);
  for (int64_t r = 0; r < context.layout.Registers(); ++r) context.parts.push_back(context.layout.RegisterPart(r));
  for (size_t v = 0; v < context.extents.size(); ++v) context.padded.push_back(context.layout.Extent(int(v)) > context.extents[v]);
  context.run = IsAsync(loop.body) ? loop.coalesced_width : OnlyStores(loop.body) ? RunOf(context.layout, context.extents) : 1;
  context.first_copy = IsFirstCopy(context.layout);
  ir::Walk(loop.body, [&](const ir::Stmt& inner) {
    if (const auto* let = std::get_if<ir::Let>(&inner.op)) context.bound_inside.insert(ir::Index(let->var));
    if (const auto* serial = std::get_if<ir::For>(&inner.op))
      for (ir::VarId var : serial->vars) context.bound_inside.insert(ir::Index(var));
  });
  const std::vector<compiler::Access> accesses = compiler::AccessesOf(module_, stmt);
  for (const compiler::Access& access : accesses)
    if (access.write) context.stored.insert(ir::Index(access.buffer));
  ElementContext* outer = std::exchange(element_, &context);
  // Plans are made here so that all iterations can use the values they share.
  for (const compiler::Access& access : accesses) {
    if (!access.tile && (IsMemory(module_[access.buffer].space) || module_[access.buffer].space == Space::kFragment)) {
      PlanOf(access.buffer, access.indices);
    }
  }
  // If the loop reads what it writes, only the thread with the first copy runs an iteration: the other copies could read what the first has
  // already written.
  When(compiler::ReadsItsWrites(module_, stmt) ? context.first_copy : nullptr, [&] {
    if (OnlyStores(loop.body)) {
      LowerChunks(loop);
    } else {
      LowerElements(loop);
    }
  });
  element_ = outer;
  if (claimed) device_->EndClaim();
}

void KernelLowering::SetIteration(int64_t reg) {
  element_->current = reg;
  element_->loaded.clear();
  for (size_t v = 0; v < element_->extents.size(); ++v) {
    const ir::VarId var = element_->loop->vars[v];
    Value* index = element_->thread_part[v];
    if (const int64_t part = element_->parts[size_t(reg)][v]; part != 0) index = b().CreateAdd(index, I32(part));
    vars_[ir::Index(var)] = b().CreateSExtOrTrunc(index, ValueType(llvm(), module_[var].dtype));
  }
}

Value* KernelLowering::GuardAt(int64_t reg) {
  Value* guard = nullptr;
  for (size_t v = 0; v < element_->extents.size(); ++v) {
    if (!element_->padded[v]) continue;
    Value* index = b().CreateAdd(element_->thread_part[v], I32(element_->parts[size_t(reg)][v]));
    Value* inside = b().CreateICmpULT(index, I32(element_->extents[v]));
    guard = guard == nullptr ? inside : b().CreateAnd(guard, inside);
  }
  return guard;
}

// Whether the indices use a variable that runs beyond its extent; iterations beyond it would touch other elements than those within.
bool KernelLowering::IsOfPadding(std::span<const ExprId> indices) const {
  const auto is_padded = [&](ExprId id) {
    if (pool()[id].op != ir::ExprOp::kVar) return false;
    const auto var = std::ranges::find(element_->loop->vars, ir::VarId(pool()[id].ref));
    return var != element_->loop->vars.end() && element_->padded[size_t(var - element_->loop->vars.begin())];
  };
  return std::ranges::any_of(indices, [&](ExprId index) { return compiler::Contains(pool(), index, is_padded); });
}

// Whether iterations beyond the loop's extents fall on padding of the fragment: along each padded variable the loop and the fragment must
// end together.
bool KernelLowering::PaddingIsTheSame(const ir::Store& store) const {
  const ir::Buffer& fragment = module_[store.buffer];
  for (size_t v = 0; v < element_->extents.size(); ++v) {
    if (!element_->padded[v]) continue;
    const auto index = std::ranges::find_if(
        store.indices, [&](ExprId id) { return pool()[id].op == ir::ExprOp::kVar && ir::VarId(pool()[id].ref) == element_->loop->vars[v]; });
    if (index == store.indices.end()) return false;
    const int dim = int(index - store.indices.begin());
    if (pool().ConstInt(fragment.shape[size_t(dim)]) != element_->extents[v]) return false;
    if (fragment.layout->Extent(dim) < element_->layout.Extent(int(v))) return false;
  }
  return true;
}

// Stores an element of a fragment if the iteration exists. A thread without this iteration may hold another element in the same register.
void KernelLowering::StoreElement(const ir::Store& store, int64_t reg, Value* v) {
  if (element_->guard != nullptr && !PaddingIsTheSame(store)) v = b().CreateSelect(element_->guard, v, LoadRegister(store.buffer, reg));
  StoreRegister(store.buffer, reg, v);
}

void KernelLowering::LowerElements(const ir::For& loop) {
  for (int64_t r = 0; r < int64_t(element_->parts.size()) && !too_long_; ++r) {
    When(GuardAt(r), [&] {
      SetIteration(r);
      LowerBlock(loop.body);
    });
  }
}

void KernelLowering::LowerChunks(const ir::For& loop) {
  if (StoreByMatrix(loop)) return;
  const int64_t run = element_->run;
  for (int64_t first = 0; first < int64_t(element_->parts.size()); first += run) {
    element_->guard = GuardAt(first);
    for (const ir::Stmt& stmt : loop.body) {
      EnterStmt(stmt);
      const auto& store = std::get<ir::Store>(stmt.op);
      if (store.async) {
        LowerAsyncChunk(store, first, run);
      } else {
        LowerChunk(store, first, run);
      }
      if (IsTooLong()) break;
    }
    element_->guard = nullptr;
    if (too_long_) return;
  }
}

void KernelLowering::LowerChunk(const ir::Store& store, int64_t first, int64_t count) {
  const ir::Buffer& buffer = module_[store.buffer];
  if (buffer.space == Space::kFragment) {
    const AccessPlan& plan = PlanOf(store.buffer, store.indices);
    const Values values = EvalChunk(store.value, first, count);
    for (int64_t i = 0; i < count; ++i) {
      StoreElement(store, plan.registers[size_t(first + i)], ToMemory(values[size_t(i)], buffer.dtype));
    }
    return;
  }
  if (IsMemory(buffer.space)) {
    const AccessPlan& plan = PlanOf(store.buffer, store.indices);
    if (plan.linear && plan.width != 0) {
      Values values = EvalChunk(store.value, first, count);
      for (Value*& value : values) value = ToMemory(value, buffer.dtype);
      StoreVector(plan, first, values);
      return;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    SetIteration(first + i);
    LowerStore(store);
  }
}

void KernelLowering::LowerAsyncChunk(const ir::Store& store, int64_t first, int64_t count) {
  const ir::ExprNode& load = pool()[store.value];
  const AccessPlan& from = PlanOf(ir::BufferId(load.ref), load.Args());
  const AccessPlan& to = PlanOf(store.buffer, store.indices);
  if (!from.linear || !to.linear) return LowerChunk(store, first, count);
  Value* here = std::exchange(element_->guard, nullptr);
  if (element_->first_copy != nullptr) here = here == nullptr ? element_->first_copy : b().CreateAnd(here, element_->first_copy);
  When(here, [&] {
    CheckNeighbours(to, first, count, nullptr, /*write=*/true);
    device_->CopyAsync(PointerAt(to, first), PointerAt(from, first), int(count) * ir::Bytes(load.dtype), ConditionAt(from, first));
  });
}

// Whether the expression has a select, "and" or "or" that may skip a load in it.
bool KernelLowering::SelectsLoads(ExprId id) const {
  const auto loads = [&](ExprId part) { return pool()[part].op == ir::ExprOp::kLoad; };
  return compiler::Contains(pool(), id, [&](ExprId part) {
    const ir::ExprNode& node = pool()[part];
    if (node.op == ir::ExprOp::kAnd || node.op == ir::ExprOp::kOr) return compiler::Contains(pool(), node.args[1], loads);
    return node.op == ir::ExprOp::kSelect && (compiler::Contains(pool(), node.args[1], loads) || compiler::Contains(pool(), node.args[2], loads));
  });
}

Values KernelLowering::EvalChunk(ExprId value, int64_t first, int64_t count) {
  std::vector<compiler::Access> accesses;
  compiler::CollectLoads(pool(), value, accesses);
  std::map<uint32_t, Values> loads;
  for (const compiler::Access& access : accesses) {
    if (!IsMemory(module_[access.buffer].space)) continue;
    // A load that only a select keeps inside its tile is done element by element, under the select's condition.
    const bool inside = module_[access.buffer].space == Space::kGlobal || compiler::ProvablyInside(module_, facts_, access.buffer, access.indices);
    if (!inside && SelectsLoads(value)) continue;
    const AccessPlan& plan = PlanOf(access.buffer, access.indices);
    if (plan.linear) loads[ir::Index(access.load)] = LoadVector(plan, first, count);
  }
  return EvalElements(value, first, count, loads);
}

Values KernelLowering::EvalElements(ExprId value, int64_t first, int64_t count, const std::map<uint32_t, Values>& loads) {
  const ir::ExprNode& node = pool()[value];
  Values result;
  if (node.op == ir::ExprOp::kCast && pool().Type(node.args[0]) == DType::kF32 && ir::IsFloat(node.dtype) && ir::Bits(node.dtype) < 32) {
    // Neighbours convert together.
    const int64_t group = 32 / ir::Bits(node.dtype);
    if (count % group == 0) {
      const Values wide = EvalElements(node.args[0], first, count, loads);
      auto* packed = llvm::FixedVectorType::get(ValueType(llvm(), node.dtype), unsigned(group));
      for (int64_t i = 0; i < count; i += group) {
        Value* word = device_->ConvertPacked({wide.data() + i, size_t(group)}, DType::kF32, node.dtype);
        Value* vector = b().CreateBitCast(word, packed);
        for (int64_t j = 0; j < group; ++j) result.push_back(b().CreateExtractElement(vector, uint64_t(j)));
      }
      return result;
    }
  }
  if (count % 2 == 0 && IsPair(value)) {
    for (int64_t i = 0; i < count; i += 2) {
      std::map<uint32_t, Values> here;
      for (const auto& [load, values] : loads) here[load] = {values[size_t(i)], values[size_t(i + 1)]};
      std::unordered_map<uint32_t, Value*> outer;
      outer.swap(pairs_);
      Value* pair = EvalPair(value, first + i, here);
      outer.swap(pairs_);
      for (uint64_t j : {0, 1}) result.push_back(b().CreateExtractElement(pair, j));
    }
    return result;
  }
  for (int64_t i = 0; i < count; ++i) {
    SetIteration(first + i);
    for (const auto& [load, values] : loads) element_->loaded[load] = values[size_t(i)];
    result.push_back(Eval(value));
  }
  element_->loaded.clear();
  return result;
}

// Whether two registers access the same place, as where several elements are packed into one.
bool KernelLowering::IsSamePlace(const AccessPlan& plan, int64_t reg, int64_t other) {
  const ir::Indices &a = element_->parts[size_t(reg)], &c = element_->parts[size_t(other)];
  if (!plan.checks.empty()) return a == c;
  return std::ranges::all_of(plan.steps, [&](const AccessPlan::Step& step) {
    const size_t v = size_t(step.digits.variable);
    return step.digits.Of(a[v]) == step.digits.Of(c[v]);
  });
}

Values KernelLowering::LoadVector(const AccessPlan& plan, int64_t first, int64_t count) {
  if (plan.across_width > 1) return LoadAcross(plan, first, count);
  const int64_t width = plan.width == 0 ? 1 : std::min(plan.width, count);
  Values values;
  for (int64_t i = 0; i < count; i += width) {
    if (i > 0 && (plan.width == 0 || (width == 1 && IsSamePlace(plan, first + i, first + i - 1)))) {
      values.push_back(values.back());
      continue;
    }
    for (Value* value : LoadNeighbours(plan, first + i, width)) values.push_back(value);
  }
  return values;
}

// Takes each element from the vector across registers that contains it. The first of a vector's elements loads the vector.
Values KernelLowering::LoadAcross(const AccessPlan& plan, int64_t first, int64_t count) {
  Values values;
  for (int64_t reg = first; reg < first + count; ++reg) {
    const AccessPlan::Across& at = plan.across[size_t(reg)];
    Values& vector = element_->across[{&plan, at.first}];
    if (vector.empty()) vector = LoadNeighbours(plan, at.first, plan.across_width);
    values.push_back(vector[size_t(at.place)]);
  }
  return values;
}

// Loads `width` neighbours in memory, the first of which belongs to register `reg`.
Values KernelLowering::LoadNeighbours(const AccessPlan& plan, int64_t reg, int64_t width) {
  const ir::Buffer& buffer = module_[plan.buffer];
  llvm::Type* element = MemoryType(llvm(), buffer.dtype);
  llvm::Type* type = width == 1 ? element : llvm::FixedVectorType::get(element, unsigned(width));
  Value* pad = PadValue(buffer);
  Value* otherwise = width == 1 ? pad : b().CreateVectorSplat(unsigned(width), pad);
  Value* condition = ConditionAt(plan, reg);
  CheckNeighbours(plan, reg, width, condition, /*write=*/false);
  Value* pointer = PointerAt(plan, reg);
  Value* loaded = LoadGuarded(plan.buffer, type, pointer, condition, AlignOf(plan.buffer, width), otherwise);
  Values values;
  for (int64_t j = 0; j < width; ++j) {
    Value* v = width == 1 ? loaded : b().CreateExtractElement(loaded, uint64_t(j));
    values.push_back(FromMemory(v, buffer.dtype));
  }
  return values;
}

// Neighbours as one value. Two bytes are a 16-bit number: st.v2.b8, which LLVM makes of them else, is stored wrong by ptxas 13.0 and the
// driver's compiler where the bytes come from words loaded whole (the second was one of another word).
Value* KernelLowering::JoinNeighbours(std::span<Value* const> values) {
  if (values.size() == 1) return values[0];
  if (values.size() == 2 && values[0]->getType()->isIntegerTy(8)) {
    Value* low = b().CreateZExt(values[0], b().getInt16Ty());
    return b().CreateOr(low, b().CreateShl(b().CreateZExt(values[1], b().getInt16Ty()), uint64_t{8}));
  }
  Value* vector = llvm::PoisonValue::get(llvm::FixedVectorType::get(values[0]->getType(), unsigned(values.size())));
  for (size_t i = 0; i < values.size(); ++i) vector = b().CreateInsertElement(vector, values[i], uint64_t(i));
  return vector;
}

void KernelLowering::StoreVector(const AccessPlan& plan, int64_t first, std::span<Value* const> values) {
  const int64_t count = int64_t(values.size()), width = std::min(plan.width, count);
  for (int64_t i = 0; i < count; i += width) {
    Value* condition = ConditionAt(plan, first + i);
    if (element_->first_copy != nullptr) {
      condition = condition == nullptr ? element_->first_copy : b().CreateAnd(condition, element_->first_copy);
    }
    CheckNeighbours(plan, first + i, width, condition, /*write=*/true);
    Value* value = JoinNeighbours(values.subspan(size_t(i), size_t(width)));
    const bool keep = keep_.contains(plan.buffer) && ir::Bits(module_[plan.buffer].dtype) * width == 128;
    if (keep) kept_.insert(plan.buffer);
    When(condition, [&] {
      Value* pointer = PointerAt(plan, first + i);
      keep ? device_->StoreKept(value, pointer) : void(b().CreateAlignedStore(value, pointer, AlignOf(plan.buffer, width)));
    });
  }
}

}  // namespace kiln::llvm_ir
