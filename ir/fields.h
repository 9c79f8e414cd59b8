// SPDX-License-Identifier: Apache-2.0
//
// The one description of what each op consists of. The visitors of expressions, operands and buffers (visit.h), the walk through nested
// blocks, accesses (compiler/analysis/access.h) and the canonical bytes are all derived from it.
//
// Fields(op, v) calls, in the order of the text form:
//   v.Evaluates(expr)             an expression that the statement evaluates
//   v.Region(region, use)         a tile; its offsets are expressions, too
//   v.Element(buffer, indices, use)
//   v.Whole(buffer, use)          all of a buffer
//   v.Names(buffer)               one that the op needs in another way: barriers, flags, scratch
//   v.Declares(buffer)
//   v.Binds(var)                  a variable that the op gives a value
//   v.Body(block)                 statements within it
//   v.Is(value)                   what else the program says: kinds, flags, numbers
//   v.Decided(value)              what passes decide of it
// A visitor derives from FieldVisitor and has those of these that it needs. `op` may be const or not; so is what the visitor is given.
#pragma once

#include <concepts>
#include <type_traits>
#include <variant>

#include "ir/op.h"

namespace kiln::ir {

enum class Use : uint8_t {
  kRead,
  kWrite,
  kUpdate,  // read and written
  kAtomic,  // read and written in one step: no other thread sees a state in between
};

struct FieldVisitor {
  void Evaluates(auto&) {}
  void Region(auto&, Use) {}
  void Element(auto&, auto&, Use) {}
  void Whole(auto&, Use) {}
  void Names(auto&) {}
  void Declares(auto&) {}
  void Binds(auto&) {}
  void Body(auto&) {}
  void Is(const auto&) {}
  void Decided(auto&) {}
};

template <typename T, typename Op>
concept Same = std::same_as<std::remove_const_t<T>, Op>;

void Fields(Same<Alloc> auto& op, auto&& v) { v.Declares(op.buffer); }
void Fields(Same<For> auto& op, auto&& v) {
  v.Is(op.kind);
  v.Is(op.vars.size());
  for (auto& var : op.vars) v.Binds(var);
  v.Is(op.extents.size());
  for (auto& extent : op.extents) v.Evaluates(extent);
  v.Is(op.num_stages);
  v.Is(op.coalesced_width);
  v.Decided(op.layout);
  v.Body(op.body);
}
void Fields(Same<If> auto& op, auto&& v) {
  v.Evaluates(op.cond);
  v.Decided(op.then_threads);
  v.Body(op.then_body);
  v.Decided(op.else_threads);
  v.Body(op.else_body);
}
void Fields(Same<While> auto& op, auto&& v) {
  v.Evaluates(op.cond);
  v.Body(op.body);
}
void Fields(Same<Let> auto& op, auto&& v) {
  v.Evaluates(op.value);
  v.Binds(op.var);
}
void Fields(Same<Store> auto& op, auto&& v) {
  v.Element(op.buffer, op.indices, Use::kWrite);
  v.Evaluates(op.value);
  v.Decided(op.async);
  v.Decided(op.plan);
}
void Fields(Same<Assume> auto& op, auto&& v) { v.Evaluates(op.cond); }
void Fields(Same<Copy> auto& op, auto&& v) {
  v.Region(op.src, Use::kRead);
  v.Region(op.dst, Use::kWrite);
  v.Is(op.coalesced_width);
  v.Decided(op.plan);
  if (op.plan && op.plan->ring) v.Names(op.plan->ring->barriers), v.Names(op.plan->ring->position);
}
void Fields(Same<Gemm> auto& op, auto&& v) {
  v.Region(op.a, Use::kRead);
  v.Region(op.b, Use::kRead);
  v.Region(op.c, op.clear_accum ? Use::kWrite : Use::kUpdate);
  v.Is(op.transpose_a);
  v.Is(op.transpose_b);
  v.Is(op.policy);
  v.Is(op.clear_accum);
  v.Decided(op.plan);
}
void Fields(Same<Fill> auto& op, auto&& v) {
  v.Region(op.dst, Use::kWrite);
  v.Evaluates(op.value);
}
void Fields(Same<Reduce> auto& op, auto&& v) {
  v.Is(op.kind);
  v.Region(op.src, Use::kRead);
  v.Region(op.dst, op.clear ? Use::kWrite : Use::kUpdate);
  v.Is(op.dim);
  v.Is(op.clear);
  v.Decided(op.scratch);
  if (op.scratch) v.Names(*op.scratch);
  v.Decided(op.cluster);
}
void Fields(Same<Atomic> auto& op, auto&& v) {
  v.Is(op.kind);
  v.Element(op.buffer, op.indices, Use::kAtomic);
  v.Evaluates(op.value);
}
void Fields(Same<Barrier> auto& op, auto&& v) { v.Decided(op.by_group); }
void Fields(Same<Break> auto&, auto&&) {}
void Fields(Same<Continue> auto&, auto&&) {}
void Fields(Same<AsyncCommit> auto&, auto&&) {}
void Fields(Same<AsyncWait> auto& op, auto&& v) {
  v.Is(op.pending);
  v.Is(op.stores);
  v.Decided(op.product);
  if (op.product) v.Names(*op.product);
}
void Fields(Same<RingStep> auto& op, auto&& v) {
  v.Is(op.action);
  v.Names(op.ring.barriers);
  v.Names(op.ring.position);
  v.Is(op.bytes);
  v.Is(op.behind);
}
void Fields(Same<PairSum> auto& op, auto&& v) {
  v.Whole(op.sum, op.half ? Use::kRead : Use::kUpdate);
  v.Is(op.half);
  if (op.half) v.Whole(*op.half, Use::kWrite);
  v.Is(op.dim);
  v.Decided(op.scratch);
  if (op.scratch) v.Names(*op.scratch);
}
// Partial sums and flags are internal to the op: they are no accesses of the tile.
void Fields(Same<StreamSum> auto& op, auto&& v) {
  v.Whole(op.sum, Use::kUpdate);
  v.Names(op.partials);
  v.Names(op.flags);
  v.Evaluates(op.block);
  v.Evaluates(op.owns);
  v.Evaluates(op.parts);
}

// Calls Fields for the op that a statement holds.
template <typename AnyOp, typename V>
  requires Same<AnyOp, Op>
void Fields(AnyOp& op, V&& v) {
  std::visit([&](auto& alternative) { Fields(alternative, v); }, op);
}

}  // namespace kiln::ir
