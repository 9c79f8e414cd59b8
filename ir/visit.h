// SPDX-License-Identifier: Apache-2.0
//
// The expressions and buffers that a statement itself names; of a compound statement, its header's. Works on const statements and,
// to rewrite them, on others.
#pragma once

#include <type_traits>
#include <utility>

#include "ir/module.h"

namespace kiln::ir {

// Calls fn(ExprId&) or fn(const ExprId&) for each, in the order they are written in the text form.
template <typename AnyOp, typename Fn>
void ForEachExpr(AnyOp& op, Fn&& fn) {
  auto list = [&](auto& exprs) {
    for (auto& expr : exprs) fn(expr);
  };
  std::visit([&](auto& o) {
    using T = std::remove_cvref_t<decltype(o)>;
    if constexpr (std::is_same_v<T, For>) list(o.extents);
    if constexpr (std::is_same_v<T, If> || std::is_same_v<T, While> || std::is_same_v<T, Assume>) fn(o.cond);
    if constexpr (std::is_same_v<T, Let>) fn(o.value);
    if constexpr (std::is_same_v<T, Store> || std::is_same_v<T, Atomic>) {
      list(o.indices);
      fn(o.value);
    }
    if constexpr (std::is_same_v<T, Copy> || std::is_same_v<T, Reduce>) {
      list(o.src.offsets);
      list(o.dst.offsets);
    }
    if constexpr (std::is_same_v<T, Gemm>) {
      list(o.a.offsets);
      list(o.b.offsets);
      list(o.c.offsets);
    }
    if constexpr (std::is_same_v<T, Fill>) {
      list(o.dst.offsets);
      fn(o.value);
    }
    if constexpr (std::is_same_v<T, StreamSum>) {
      fn(o.block);
      fn(o.owns);
      fn(o.parts);
    }
  }, op);
}

// Calls fn(BufferId) for each that the statement reads or writes by itself. Loads in expressions and Alloc are not among them.
template <typename Fn>
void ForEachBuffer(const Op& op, Fn&& fn) {
  std::visit(Overloaded{
      [&](const Store& o) { fn(o.buffer); },
      [&](const Atomic& o) { fn(o.buffer); },
      [&](const Copy& o) {
        fn(o.src.buffer);
        fn(o.dst.buffer);
        if (o.plan && o.plan->ring) fn(o.plan->ring->barriers), fn(o.plan->ring->position);
      },
      [&](const Gemm& o) { fn(o.a.buffer); fn(o.b.buffer); fn(o.c.buffer); },
      [&](const Fill& o) { fn(o.dst.buffer); },
      [&](const Reduce& o) {
        fn(o.src.buffer);
        fn(o.dst.buffer);
        if (o.scratch) fn(*o.scratch);
      },
      [&](const AsyncWait& o) {
        if (o.product) fn(*o.product);
      },
      [&](const RingStep& o) { fn(o.ring.barriers); fn(o.ring.position); },
      [&](const PairSum& o) {
        fn(o.sum);
        if (o.half) fn(*o.half);
        if (o.scratch) fn(*o.scratch);
      },
      [&](const StreamSum& o) { fn(o.sum); fn(o.partials); fn(o.flags); },
      [](const auto&) {}}, op);
}

}  // namespace kiln::ir
