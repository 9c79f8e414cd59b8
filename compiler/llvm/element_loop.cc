// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops: each thread runs the iterations its layout gives it, unrolled over the layout's registers. Stores of loads and
// arithmetic go in runs of neighbouring registers, so that memory is accessed in vectors; bodies with control flow go iteration by
// iteration.
#include <algorithm>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/llvm/kernel_lowering.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using ir::ExprId;
using ir::Space;

namespace {

bool IsMemory(Space space) { return space == Space::kGlobal || space == Space::kShared; }

}  // namespace

void KernelLowering::LowerParallel(const ir::Stmt& stmt, const ir::For& loop) {
  ElementContext context(module_, facts_, stmt);
  if (context.IsEmpty()) return;
  const bool claimed = BeginClaim(loop);
  context.thread_part = ThreadParts(context.layout, thread_);
  context.first_copy = IsFirstCopy(context.layout);
  ElementContext* outer = std::exchange(element_, &context);
  // Addresses are made here so that all iterations can use the values they share.
  for (const compiler::Access& access : compiler::AccessesOf(module_, stmt)) {
    if (!access.tile && (IsMemory(module_[access.buffer].space) || module_[access.buffer].space == Space::kFragment)) {
      AddressOf(access.buffer, access.indices);
    }
  }
  // If the loop reads what it writes, only the thread with the first copy runs an iteration: the other copies could read what the first has
  // already written.
  When(compiler::ReadsItsWrites(module_, stmt) ? context.first_copy : nullptr, [&] {
    if (context.only_stores) {
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
  const auto* only = loop.body.size() == 1 ? std::get_if<ir::Store>(&loop.body[0].op) : nullptr;
  if (only != nullptr && only->plan && only->plan->form >= ir::StoreForm::kMatrix) return StoreByMatrix(*only);
  const int64_t run = element_->run;
  for (int64_t first = 0; first < element_->Registers(); first += run) {
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
  if (!store.plan) {
    for (int64_t i = 0; i < count; ++i) {
      SetIteration(first + i);
      LowerStore(store);
    }
    return;
  }
  const ir::Buffer& buffer = module_[store.buffer];
  const ElementAddress& address = AddressOf(store.buffer, store.indices);
  Values values = EvalChunk(store, first, count);
  if (store.plan->form == ir::StoreForm::kRegisters) {
    for (int64_t i = 0; i < count; ++i) {
      StoreElement(store, address.registers[size_t(first + i)], ToMemory(values[size_t(i)], buffer.dtype));
    }
    return;
  }
  for (Value*& value : values) value = ToMemory(value, buffer.dtype);
  StoreVector(*store.plan, address, first, values);
}

void KernelLowering::LowerAsyncChunk(const ir::Store& store, int64_t first, int64_t count) {
  const ir::ExprNode& load = pool()[store.value];
  const ElementAddress& from = AddressOf(ir::BufferId(load.ref), load.Args());
  const ElementAddress& to = AddressOf(store.buffer, store.indices);
  Value* here = std::exchange(element_->guard, nullptr);
  if (element_->first_copy != nullptr) here = here == nullptr ? element_->first_copy : b().CreateAnd(here, element_->first_copy);
  When(here, [&] {
    CheckNeighbours(to, first, count, nullptr, nullptr, /*write=*/true);
    device_->CopyAsync(PointerAt(to, first), PointerAt(from, first), int(count) * ir::Bytes(load.dtype), ConditionAt(from, first));
  });
}

Values KernelLowering::EvalChunk(const ir::Store& store, int64_t first, int64_t count) {
  Loads loads;
  auto plan = store.plan->loads.begin();
  for (ExprId id : ir::LoadsOf(pool(), store.value)) {
    const ir::ExprNode& load = pool()[id];
    if (!IsMemory(module_[ir::BufferId(load.ref)].space)) continue;
    if (plan->form != ir::LoadForm::kEach) loads[ir::Index(id)] = LoadVector(*plan, AddressOf(plan->buffer, load.Args()), first, count);
    ++plan;
  }
  return EvalPacked(store.value, store.plan->packed, first, count, loads);
}

Values KernelLowering::EvalElements(ExprId value, int64_t first, int64_t count, const Loads& loads) {
  Values result;
  for (int64_t i = 0; i < count; ++i) {
    SetIteration(first + i);
    for (const auto& [load, values] : loads) element_->loaded[load] = values[size_t(i)];
    result.push_back(Eval(value));
  }
  element_->loaded.clear();
  return result;
}

// Whether two registers access the same place, as where several elements are packed into one.
bool KernelLowering::IsSamePlace(const ElementAddress& address, int64_t reg, int64_t other) {
  const ir::Indices &a = element_->parts[size_t(reg)], &c = element_->parts[size_t(other)];
  if (!address.checks.empty()) return a == c;
  return std::ranges::all_of(address.steps, [&](const ElementAddress::Step& step) {
    const size_t v = size_t(step.digits.variable);
    return step.digits.Of(a[v]) == step.digits.Of(c[v]);
  });
}

Values KernelLowering::LoadVector(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count) {
  if (plan.form >= ir::LoadForm::kAcross) return LoadScattered(plan, address, first, count);
  const bool same = plan.form == ir::LoadForm::kSame;
  Values values;
  for (int64_t i = 0; i < count; i += plan.width) {
    if (i > 0 && (same || (plan.width == 1 && IsSamePlace(address, first + i, first + i - 1)))) {
      values.push_back(values.back());
      continue;
    }
    for (Value* value : LoadNeighbours(plan, address, first + i, nullptr)) values.push_back(value);
  }
  return values;
}

// Takes each element from the vector that contains it. The first of a vector's elements loads the vector.
Values KernelLowering::LoadScattered(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count) {
  ElementContext::Scattered& vectors = element_->scattered[{&address, plan.form, plan.width}];
  if (vectors.places.empty()) {
    vectors.places = plan.form == ir::LoadForm::kAcross
                         ? compiler::PlacesAcross(*element_, plan.across, plan.width)
                         : compiler::PlacesGathered(*element_, module_, plan.buffer, *address.split, plan.width).value();
  }
  Values values;
  for (int64_t reg = first; reg < first + count; ++reg) {
    const compiler::VectorPlace at = vectors.places[size_t(reg)];
    Values& vector = vectors.loaded[at.first];
    if (vector.empty()) vector = LoadNeighbours(plan, address, at.first, &vectors);
    values.push_back(vector[size_t(at.place)]);
  }
  return values;
}

// Loads neighbours in memory, the first of which belongs to register `reg`.
Values KernelLowering::LoadNeighbours(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg,
                                      const ElementContext::Scattered* vectors) {
  const ir::Buffer& buffer = module_[plan.buffer];
  const unsigned width = unsigned(plan.width);
  llvm::Type* element = MemoryType(llvm(), buffer.dtype);
  llvm::Type* type = width == 1 ? element : llvm::FixedVectorType::get(element, width);
  Value* pad = PadValue(buffer);
  Value* otherwise = width == 1 ? pad : b().CreateVectorSplat(width, pad);
  Value* condition = ConditionAt(address, reg);
  CheckNeighbours(address, reg, plan.width, vectors, condition, /*write=*/false);
  Value* pointer = PointerAt(address, reg);
  Value* loaded = LoadGuarded(plan.buffer, type, pointer, condition, AlignOf(plan.buffer, plan.width), otherwise, plan.once);
  Values values;
  for (unsigned j = 0; j < width; ++j) {
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

void KernelLowering::StoreVector(const ir::StorePlan& plan, const ElementAddress& address, int64_t first, std::span<Value* const> values) {
  const int64_t count = int64_t(values.size()), width = plan.width;
  for (int64_t i = 0; i < count; i += width) {
    Value* condition = ConditionAt(address, first + i);
    if (element_->first_copy != nullptr) {
      condition = condition == nullptr ? element_->first_copy : b().CreateAnd(condition, element_->first_copy);
    }
    CheckNeighbours(address, first + i, width, nullptr, condition, /*write=*/true);
    Value* value = JoinNeighbours(values.subspan(size_t(i), size_t(width)));
    When(condition, [&] {
      Value* pointer = PointerAt(address, first + i);
      plan.kept ? device_->StoreKept(value, pointer) : void(b().CreateAlignedStore(value, pointer, AlignOf(address.buffer, width)));
    });
  }
}

}  // namespace kiln::llvm_ir
