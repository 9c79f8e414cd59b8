// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ir/grammar/writer.h"
#include "ir/op.h"

namespace kiln::ir::grammar {
namespace {

// Of 16 bits or more, where other threads see it.
std::optional<BufferId> AtomicBuffer(Writer& writer) {
  for (int tries = 0; tries < 8; ++tries) {
    const BufferId id = writer.SomeBuffer();
    const Buffer& buffer = writer.module[id];
    const bool seen = buffer.space == Space::kGlobal || buffer.space == Space::kShared;
    if (seen && Bits(buffer.dtype) >= 16 && writer.HasElements(id)) return id;
  }
  return std::nullopt;
}

bool HasRoom(Writer& writer, BufferId buffer) {
  size_t dim = 0;
  for (const auto& [var, extent] : writer.own) {
    const auto holds = [&](size_t d) { return writer.module[buffer].space == Space::kGlobal || writer.ConstExtent(buffer, d).value_or(0) >= extent; };
    while (dim < writer.module[buffer].shape.size() && !holds(dim)) ++dim;
    if (dim++ >= writer.module[buffer].shape.size()) return false;
  }
  return true;
}

}  // namespace

int Weight(const Writer& writer, Tag<Let>) { return writer.sizes().flat ? 10 : 4; }
Op Write(Writer& writer, Tag<Let>) {
  const bool counts = writer.OneIn(3);
  const DType type = counts ? writer.Pick<DType>({DType::kI32, DType::kI32, DType::kI64}) : writer.AnyType();
  const ExprId value = writer.Value(type);
  const VarId var = writer.module.AddVar({VarKind::kLet, type, 0, writer.Name()});
  if (writer.place.parallel || writer.DiffersByThread(value)) writer.differing.insert(var);
  counts ? void(writer.scope.counts.push_back({writer.module.VarRef(var), 0})) : void(writer.scope.values.push_back(var));
  return Let{var, value};
}

int Weight(const Writer& writer, Tag<Store>) { return writer.sizes().flat ? 30 : writer.place.parallel ? 16 : 5; }
Op Write(Writer& writer, Tag<Store>) {
  BufferId buffer = writer.ElementBuffer();
  for (int tries = 0; tries < 4 && writer.place.parallel && !HasRoom(writer, buffer); ++tries) buffer = writer.ElementBuffer();
  if (writer.place.parallel && !HasRoom(writer, buffer) && !writer.OneIn(10)) buffer = writer.AddTile(Space::kLocal, {1 + writer.Below(6)});
  const bool own = writer.place.parallel && writer.module[buffer].space != Space::kLocal;
  Store store{buffer, own ? writer.OwnIndices(buffer) : writer.Indices(buffer), writer.Value(writer.module[buffer].dtype)};
  store.async = writer.decisions() && writer.Coin();
  return store;
}

int Weight(const Writer&, Tag<Assume>) { return 1; }
Op Write(Writer& writer, Tag<Assume>) { return Assume{writer.Condition(int(writer.Below(3)))}; }

int Weight(const Writer& writer, Tag<Atomic>) { return writer.sizes().flat ? 1 : 3; }
Op Write(Writer& writer, Tag<Atomic>) {
  const std::optional<BufferId> buffer = AtomicBuffer(writer);
  if (!buffer) return Write(writer, Tag<Store>());
  const DType type = writer.module[*buffer].dtype;
  Atomic atomic{.kind = writer.OneIn(2) ? AtomicKind(1 + writer.Below(3)) : AtomicKind(1 + writer.Below(9)),
                .buffer = *buffer,
                .indices = writer.place.parallel && writer.Coin() ? writer.OwnIndices(*buffer) : writer.Indices(*buffer)};
  if (IsFloat(type) && atomic.kind >= AtomicKind::kBitAnd && atomic.kind <= AtomicKind::kBitXor) atomic.kind = AtomicKind::kExchange;
  if (atomic.TakesValue()) atomic.value = writer.Value(type, 1);
  if (atomic.Compares()) atomic.compare = writer.Value(type, 1);
  atomic.each_thread = writer.OneIn(4);
  if (writer.module[*buffer].space == Space::kShared) atomic.block = writer.Rank();
  if (atomic.block && writer.OneIn(2)) {
    atomic.kind = AtomicKind::kStore, atomic.compare = {}, atomic.value = writer.Value(type, 1);
    return atomic;
  }
  if (!atomic.block && writer.OneIn(3)) atomic.order = MemoryOrder(writer.Below(5));
  const bool must = atomic.kind == AtomicKind::kLoad;
  if (must && !atomic.block && atomic.order != MemoryOrder::kSeqCst) atomic.order = MemoryOrder(writer.Below(2));
  if (must || writer.OneIn(3)) {
    atomic.each_thread = true;
    atomic.old = Element{writer.AddTile(Space::kLocal, type, {1}), {writer.module.exprs.Int(0)}};
  }
  return atomic;
}

}  // namespace kiln::ir::grammar
