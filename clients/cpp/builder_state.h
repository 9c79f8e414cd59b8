// SPDX-License-Identifier: Apache-2.0
//
// The implementation of Builder, Tile and Expr. Not part of the client's interface.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <source_location>
#include <string>
#include <vector>

#include "clients/cpp/builder.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln {

// An operand of a tile operation; `open`: as large as the other one.
struct Operand {
  ir::Region region;
  bool open = false;
};

struct BuilderState {
  using Node = Expr::Node;
  using Broken = Expr::Broken;

  ir::Module module;
  ir::Diagnostics diagnostics;
  std::vector<ir::Block*> blocks;   // innermost last; empty outside a kernel
  std::vector<std::string> broken;  // found in expressions since the last statement
  std::map<std::string, std::uint32_t, std::less<>> files;

  // `a` as an expression of the module; a number becomes one of `wanted`. What is wrong is kept in `broken`, and 0 returned.
  ir::ExprId Take(const Expr& a, ir::DType wanted);
  // Indices, extents, conditions: a number becomes i32, f32 or bool.
  ir::ExprId Take(const Expr& a);
  std::vector<ir::ExprId> TakeAll(const std::vector<Expr>& exprs);
  Expr Give(ir::ExprId id) { return Expr(Node{this, ir::Index(id)}); }

  static Expr Apply(ir::ExprOp op, std::initializer_list<const Expr*> args);
  static Expr Convert(ir::ExprOp op, DType dtype, const Expr& a);
  static std::optional<DType> TypeOf(const Expr& a);

  ir::SourceLoc Place(const std::source_location& where);
  // Appends a statement, and reports at its place the problems of its expressions.
  void Append(ir::Op op, const std::source_location& where);
  void Report(std::string message, std::string hint, const std::source_location& where);
  void ReportBroken(const std::source_location& where);

  Operand Open(const Region& region, const std::source_location& where);
  // The operand of an operation on one tile, which must give its own size.
  ir::Region Closed(const Region& region, const std::source_location& where);
  ir::Element ElementOf(const Element& element);
  // But for its operands.
  ir::Atomic AtomicOf(AtomicKind kind, const Element& to, const AtomicOptions& options);
  // fn(block) with `block` the innermost.
  ir::Block Nested(const std::function<void()>& body);

 private:
  ir::ExprId TakeNumber(const Expr& a, ir::DType wanted);
  static BuilderState* Common(std::initializer_list<const Expr*> args, std::string& problem);
};

}  // namespace kiln
