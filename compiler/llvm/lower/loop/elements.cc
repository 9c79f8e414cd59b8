// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/elements.h"

#include "compiler/analysis/access.h"

namespace kiln::llvm_ir {

using ir::ExprId;
using ir::Space;

Loads Slice(const Loads& loads, int64_t first, int64_t count) {
  Loads slice;
  for (const auto& [load, values] : loads) slice[load] = {values.begin() + first, values.begin() + first + count};
  return slice;
}

Values Elements::Eval(ExprId value, int64_t first, int64_t count, const Loads& loads) {
  Values result;
  for (int64_t i = 0; i < count; ++i) {
    iterations_.Enter(first + i);
    for (const auto& [load, values] : loads) loaded_[load] = values[size_t(i)];
    result.push_back(evaluator_.Eval(value));
  }
  loaded_.clear();
  return result;
}

Value* Elements::Loaded(ExprId id) const {
  const auto it = loaded_.find(ir::Index(id));
  return it == loaded_.end() ? nullptr : it->second;
}

Value* Elements::Load(ExprId load, Value* arm, Value* mask) {
  if (Value* loaded = Loaded(load); loaded != nullptr) return loaded;
  const ir::ExprNode& node = pool()[load];
  const ir::BufferId id{node.ref};
  const ir::Buffer& buffer = module()[id];
  if (buffer.space == Space::kFragment) {
    const ElementAddress& address = addresses_.Of(id, node.Args());
    return FromMemory(memory_.registers().Load(id, address.registers[size_t(iterations_.current())]), buffer.dtype);
  }
  return FromMemory(memory_.Load(id, node.Args(), Both(WhereLoaded(id, node.Args(), arm), mask)), buffer.dtype);
}

// Where the load takes place (i1; nullptr: always).
Value* Elements::WhereLoaded(ir::BufferId id, std::span<const ExprId> indices, Value* arm) {
  const Space space = module()[id].space;
  Value* condition = memory_.ElementExists(id, indices);
  const bool may_leave = WatchesReads(id) || memory_.MayLeave(id, indices);
  if (space != Space::kLocal) condition = Both(condition, iterations_.guard());
  if (space == Space::kLocal && (may_leave || iterations_.IsOfPadding(indices))) condition = iterations_.guard();
  return space == Space::kShared || compiler::HasGaps(module(), id) || may_leave ? Both(condition, arm) : condition;
}

}  // namespace kiln::llvm_ir
