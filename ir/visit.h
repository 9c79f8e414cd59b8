// SPDX-License-Identifier: Apache-2.0
//
// Visitors of what a statement names (for a compound statement: its header) and of the statements within it. All are derived from
// ir/fields.h. They work on const statements, and on mutable ones to rewrite them.
#pragma once

#include <string_view>
#include <utility>

#include "ir/fields.h"

namespace kiln::ir {
namespace visitors {

template <typename Fn>
struct Exprs : FieldVisitor {
  Fn& fn;
  explicit Exprs(Fn& f) : fn(f) {}
  void Evaluates(auto& expr, std::string_view) { fn(expr); }
  void Region(auto& region, std::string_view, Use) {
    for (auto& offset : region.offsets) fn(offset);
  }
  void Element(auto&, auto& indices, Use) {
    for (auto& index : indices) fn(index);
  }
};

template <typename Fn>
struct Buffers : FieldVisitor {
  Fn& fn;
  explicit Buffers(Fn& f) : fn(f) {}
  void Region(auto& region, std::string_view, Use) { fn(region.buffer); }
  void Element(auto& buffer, auto&, Use) { fn(buffer); }
  void Whole(auto& buffer, std::string_view, Use) { fn(buffer); }
  void Names(auto& buffer, std::string_view) { fn(buffer); }
  void Uses(auto& buffer) { fn(buffer); }
};

template <typename Fn>
struct Regions : FieldVisitor {
  Fn& fn;
  explicit Regions(Fn& f) : fn(f) {}
  void Region(auto& region, std::string_view, Use use) { fn(region, use); }
};

template <typename Fn>
struct Places : FieldVisitor {
  Fn& fn;
  explicit Places(Fn& f) : fn(f) {}
  void Region(auto& region, std::string_view, Use) { fn(region.buffer, region.offsets, &region.extents); }
  void Element(auto& buffer, auto& indices, Use) { fn(buffer, indices, static_cast<std::vector<int64_t>*>(nullptr)); }
};

template <typename Fn>
struct Bodies : FieldVisitor {
  Fn& fn;
  explicit Bodies(Fn& f) : fn(f) {}
  void Body(auto& block, std::string_view) { fn(block); }
};

}  // namespace visitors

// Calls fn(ExprId&) or fn(const ExprId&) for each expression, in the order they are written in the text form.
template <typename AnyOp, typename Fn>
void ForEachExpr(AnyOp& op, Fn&& fn) {
  Fields(op, visitors::Exprs(fn));
}

// Calls fn(BufferId&) or fn(const BufferId&) for each buffer that the statement reads, writes or needs by itself. Loads in expressions and
// Alloc are not among them.
template <typename AnyOp, typename Fn>
void ForEachBuffer(AnyOp& op, Fn&& fn) {
  Fields(op, visitors::Buffers(fn));
}

// Calls fn(region, use) for each tile.
template <typename AnyOp, typename Fn>
void ForEachRegion(AnyOp& op, Fn&& fn) {
  Fields(op, visitors::Regions(fn));
}

// Calls fn(buffer, indices, extents) for each place that the statement reads or writes: a tile (its offsets and its extents) or an element
// (null). Loads in expressions are the caller's.
template <typename AnyOp, typename Fn>
void ForEachPlace(AnyOp& op, Fn&& fn) {
  Fields(op, visitors::Places(fn));
}

// Calls fn(block) for each block of statements within the op.
template <typename AnyOp, typename Fn>
void ForEachBody(AnyOp& op, Fn&& fn) {
  Fields(op, visitors::Bodies(fn));
}

template <typename Statement, typename Fn>
void WalkWithin(Statement& stmt, Fn&& fn);

// Calls fn(stmt) for each statement of a block, preorder, nested blocks included.
template <typename AnyBlock, typename Fn>
void Walk(AnyBlock& block, Fn&& fn) {
  for (auto& stmt : block) WalkWithin(stmt, fn);
}

// The same for one statement and what is within it.
template <typename Statement, typename Fn>
void WalkWithin(Statement& stmt, Fn&& fn) {
  fn(stmt);
  ForEachBody(stmt.op, [&](auto& body) { Walk(body, fn); });
}

}  // namespace kiln::ir
