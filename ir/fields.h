// SPDX-License-Identifier: Apache-2.0
//
// The one description of what each op consists of. The visitors of expressions, operands and buffers (visit.h), the walk through nested
// blocks, accesses (compiler/analysis/access.h), the canonical bytes, the wire form (codec/read_ops.cc, write_ops.cc) and the text form of
// most ops (print_stmt.cc, parse_stmt.cc) are all derived from it.
//
// Fields(op, v) calls, in the order of the text form:
//   v.Evaluates(expr, name)       an expression that the statement evaluates
//   v.Region(region, name, use)   a tile; its offsets are expressions, too
//   v.Element(buffer, indices, use)
//   ElementIfAny(v, element, name)  an optional one that is written
//   EvaluatesIfAny(v, expr, {name, word})  an optional one
//   RegionIfAny(v, region, {name, word})  an optional one that is read
//   v.Whole(buffer, name, use)    all of a buffer
//   v.Names(buffer, name)         one that the op needs in another way: barriers, flags
//   v.Declares(buffer, name)
//   v.Binds(var, name)            a variable that the op gives a value
//   v.Calls(function, name)       a function in another language
//   v.Body(block, name)           statements within it
//   v.Is(value, {name, word})     what else the program says: kinds, flags, numbers
//   v.Decided(value, word)        what passes decide of it
//   v.Uses(buffer)                one that a decision names: scratch
//   v.Says(text)                  what stands there in the text form
//   EvaluatesEach, BindsEach, ArgumentsEach(v, list, name): a list's length, v.Counts, and each item
// `name` is the field's name in the op's message in ir.proto, whose fields these are. The text form begins with the op's name. A value with a
// word stands behind it, and is left out where it is 0, false or not there; of a flag there is only the word.
// A visitor that needs some of these derives from FieldVisitor, which does nothing for the others. One that makes or reads a form of the whole
// op (canonical bytes, message, text) does not derive from it: it names them all, so that a new one does not compile until each form has it.
// `op` may be const or not; so is what the visitor is given.
#pragma once

#include <concepts>
#include <string_view>
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

struct Label {
  std::string_view name;
  std::string_view word = {};
  bool where_false = false;  // a flag that is written where it is false
};

struct FieldVisitor {
  void Evaluates(auto&, std::string_view) {}
  void Region(auto&, std::string_view, Use) {}
  void Element(auto&, auto&, Use) {}
  void Whole(auto&, std::string_view, Use) {}
  void Names(auto&, std::string_view) {}
  void Declares(auto&, std::string_view) {}
  void Binds(auto&, std::string_view) {}
  void Calls(auto&, std::string_view) {}
  void Body(auto&, std::string_view) {}
  void Is(auto&, Label) {}
  void Decided(auto&, std::string_view) {}
  void Uses(auto&) {}
  void Says(std::string_view) {}
  // How long the list is whose items follow.
  void Counts(size_t) {}
};

// A list, for a visitor that takes it whole or one that takes its items.
template <typename V, typename List>
void EvaluatesEach(V& v, List& list, std::string_view name) {
  if constexpr (requires { v.EvaluatesEach(list, name); }) {
    v.EvaluatesEach(list, name);
  } else {
    v.Counts(list.size());
    for (auto& expr : list) v.Evaluates(expr, name);
  }
}
template <typename V, typename List>
void BindsEach(V& v, List& list, std::string_view name) {
  if constexpr (requires { v.BindsEach(list, name); }) {
    v.BindsEach(list, name);
  } else {
    v.Counts(list.size());
    for (auto& var : list) v.Binds(var, name);
  }
}

// For a visitor that takes an optional element as such, or one to which it is a list of none or one.
template <typename V, typename Optional>
void ElementIfAny(V& v, Optional& element, std::string_view name) {
  if constexpr (requires { v.ElementIfAny(element, name); }) {
    v.ElementIfAny(element, name);
  } else {
    v.Counts(element ? 1 : 0);
    if (element) v.Element(element->buffer, element->indices, Use::kWrite);
  }
}

// The same for an optional expression.
template <typename V, typename Optional>
void EvaluatesIfAny(V& v, Optional& expr, Label label) {
  if constexpr (requires { v.EvaluatesIfAny(expr, label); }) {
    v.EvaluatesIfAny(expr, label);
  } else {
    v.Counts(expr ? 1 : 0);
    if (expr) v.Evaluates(*expr, label.name);
  }
}

// The same for an optional tile, which is read.
template <typename V, typename Optional>
void RegionIfAny(V& v, Optional& region, Label label) {
  if constexpr (requires { v.RegionIfAny(region, label); }) {
    v.RegionIfAny(region, label);
  } else {
    v.Counts(region ? 1 : 0);
    if (region) v.Region(*region, label.name, Use::kRead);
  }
}

// The same for arguments. Without a visitor's own say an address is the whole buffer, which is changed.
template <typename V, typename List>
void ArgumentsEach(V& v, List& list, std::string_view name) {
  if constexpr (requires { v.ArgumentsEach(list, name); }) {
    v.ArgumentsEach(list, name);
  } else {
    v.Counts(list.size());
    for (auto& argument : list) {
      v.Counts(argument.buffer ? 1 : 0);
      if (argument.buffer) v.Whole(*argument.buffer, "buffer", Use::kUpdate);
      v.Evaluates(argument.value, "value");
    }
  }
}

template <typename T, typename Op>
concept Same = std::same_as<std::remove_const_t<T>, Op>;

void Fields(Same<Alloc> auto& op, auto&& v) { v.Declares(op.buffer, "buffer"); }
void Fields(Same<For> auto& op, auto&& v) {
  v.Is(op.kind, {"kind"});
  BindsEach(v, op.vars, "vars");
  EvaluatesEach(v, op.extents, "extents");
  v.Is(op.num_stages, {"num_stages", "stages"});
  v.Is(op.coalesced_width, {"coalesced_width", "coalesced"});
  v.Decided(op.layout, "layout");
  v.Body(op.body, "body");
}
void Fields(Same<If> auto& op, auto&& v) {
  v.Evaluates(op.cond, "cond");
  v.Decided(op.then_threads, "threads");
  v.Body(op.then_body, "then_body");
  v.Decided(op.else_threads, "threads");
  v.Body(op.else_body, "else_body");
}
void Fields(Same<While> auto& op, auto&& v) {
  v.Evaluates(op.cond, "cond");
  v.Body(op.body, "body");
}
void Fields(Same<Let> auto& op, auto&& v) {
  v.Evaluates(op.value, "value");
  v.Binds(op.var, "var");
}
void Fields(Same<Store> auto& op, auto&& v) {
  v.Element(op.buffer, op.indices, Use::kWrite);
  v.Says("=");
  v.Evaluates(op.value, "value");
  v.Decided(op.async, "async");
  v.Decided(op.plan, "plan");
}
void Fields(Same<Assume> auto& op, auto&& v) { v.Evaluates(op.cond, "cond"); }
void Fields(Same<Copy> auto& op, auto&& v) {
  v.Region(op.src, "src", Use::kRead);
  v.Says("->");
  v.Region(op.dst, "dst", Use::kWrite);
  ElementIfAny(v, op.signals, "signals");
  v.Is(op.coalesced_width, {"coalesced_width", "coalesced"});
  v.Decided(op.plan, "plan");
  if (op.plan && op.plan->ring) v.Uses(op.plan->ring->barriers), v.Uses(op.plan->ring->position);
}
void Fields(Same<Gemm> auto& op, auto&& v) {
  v.Region(op.a, "a", Use::kRead);
  v.Says(",");
  v.Region(op.b, "b", Use::kRead);
  v.Says("->");
  v.Region(op.c, "c", op.clear_accum ? Use::kWrite : Use::kUpdate);
  RegionIfAny(v, op.metadata, {"metadata", "metadata"});
  v.Is(op.transpose_metadata, {"transpose_metadata", "transpose_metadata"});
  v.Is(op.transpose_a, {"transpose_a", "transpose_a"});
  v.Is(op.transpose_b, {"transpose_b", "transpose_b"});
  v.Is(op.policy, {"policy", "policy"});
  v.Is(op.clear_accum, {"clear_accum", "clear"});
  v.Is(op.allow_tf32, {"allow_tf32", "tf32"});
  v.Decided(op.plan, "plan");
}
void Fields(Same<Mma> auto& op, auto&& v) {
  v.Region(op.a, "a", Use::kRead);
  v.Says(",");
  v.Region(op.b, "b", Use::kRead);
  v.Says("->");
  v.Region(op.c, "c", Use::kUpdate);
  v.Is(op.m, {"m", "m"});
  v.Is(op.n, {"n", "n"});
  v.Is(op.k, {"k", "k"});
}
void Fields(Same<Call> auto& op, auto&& v) {
  v.Calls(op.function, "function");
  ArgumentsEach(v, op.arguments, "arguments");
}
void Fields(Same<Fill> auto& op, auto&& v) {
  v.Region(op.dst, "dst", Use::kWrite);
  v.Says("=");
  v.Evaluates(op.value, "value");
}
void Fields(Same<Reduce> auto& op, auto&& v) {
  v.Is(op.kind, {"kind"});
  v.Region(op.src, "src", Use::kRead);
  v.Says("->");
  v.Region(op.dst, "dst", op.clear ? Use::kWrite : Use::kUpdate);
  v.Says("dim");
  v.Is(op.dim, {"dim"});
  v.Is(op.clear, {"clear", "accumulate", /*where_false=*/true});
  v.Decided(op.scratch, "scratch");
  if (op.scratch) v.Uses(*op.scratch);
  v.Decided(op.cluster, "cluster");
}
void Fields(Same<Atomic> auto& op, auto&& v) {
  v.Is(op.kind, {"kind"});
  v.Element(op.buffer, op.indices, Use::kAtomic);
  if (op.TakesValue()) v.Says("="), v.Evaluates(op.value, "value");
  if (op.Compares()) v.Says("where"), v.Evaluates(op.compare, "compare");
  ElementIfAny(v, op.old, "old");
  EvaluatesIfAny(v, op.block, {"block", "block"});
  v.Is(op.order, {"order", "order"});
  v.Is(op.each_thread, {"each_thread", "each_thread"});
}
void Fields(Same<Barrier> auto& op, auto&& v) {
  v.Is(op.grid, {"grid", "grid"});
  v.Is(op.cluster, {"cluster", "cluster"});
  v.Decided(op.by_group, "groups");
  v.Decided(op.shared_only, "shared_only");
  v.Decided(op.counter, "counter");
  if (op.counter) v.Uses(*op.counter);
}
void Fields(Same<Break> auto&, auto&&) {}
void Fields(Same<Continue> auto&, auto&&) {}
void Fields(Same<Arrive> auto& op, auto&& v) {
  v.Element(op.buffer, op.indices, Use::kAtomic);
  EvaluatesIfAny(v, op.block, {"block", "block"});
  v.Decided(op.after_copies, "after_copies");
  v.Decided(op.after_accesses, "after_accesses");
}
void Fields(Same<Await> auto& op, auto&& v) {
  v.Element(op.buffer, op.indices, Use::kAtomic);
  v.Says("parity");
  v.Evaluates(op.parity, "parity");
}
void Fields(Same<Registers> auto& op, auto&& v) {
  v.Is(op.count, {"count"});
  v.Is(op.more, {"more", "more"});
}
void Fields(Same<AsyncCommit> auto&, auto&&) {}
void Fields(Same<AsyncWait> auto& op, auto&& v) {
  v.Is(op.pending, {"pending"});
  v.Is(op.stores, {"stores", "stores"});
  v.Decided(op.product, "product");
  if (op.product) v.Uses(*op.product);
}
void Fields(Same<RingStep> auto& op, auto&& v) {
  v.Is(op.action, {"action"});
  v.Names(op.ring.barriers, "barriers");
  v.Says("at");
  v.Names(op.ring.position, "position");
  v.Is(op.bytes, {"bytes", "bytes"});
  v.Is(op.behind, {"behind", "behind"});
}
void Fields(Same<PairSum> auto& op, auto&& v) {
  v.Whole(op.sum, "sum", op.half ? Use::kRead : Use::kUpdate);
  v.Is(op.half, {"half"});
  if (op.half) v.Whole(*op.half, "half", Use::kWrite);
  v.Is(op.dim, {"dim"});
  v.Decided(op.scratch, "scratch");
  if (op.scratch) v.Uses(*op.scratch);
  v.Is(op.vector, {"vector", "vector"});
}
// Partial sums and flags are internal to the op: they are no accesses of the tile.
void Fields(Same<StreamSum> auto& op, auto&& v) {
  v.Whole(op.sum, "sum", Use::kUpdate);
  v.Says("partials");
  v.Names(op.partials, "partials");
  v.Says("flags");
  v.Names(op.flags, "flags");
  v.Says("block");
  v.Evaluates(op.block, "block");
  v.Says("owns");
  v.Evaluates(op.owns, "owns");
  v.Says("parts");
  v.Evaluates(op.parts, "parts");
  v.Is(op.vector, {"vector", "vector"});
}

// Calls Fields for the op that a statement holds.
template <typename AnyOp, typename V>
  requires Same<AnyOp, Op>
void Fields(AnyOp& op, V&& v) {
  std::visit([&](auto& alternative) { Fields(alternative, v); }, op);
}

}  // namespace kiln::ir
