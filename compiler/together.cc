// SPDX-License-Identifier: Apache-2.0
#include "compiler/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "compiler/analysis/divergence.h"
#include "ir/print.h"

namespace kiln::compiler {
namespace {

// What keeps some threads from the statements at hand; nothing: all threads get there.
using Reason = std::optional<std::string>;

class Checker {
 public:
  Checker(const ir::Module& module, const ir::Kernel& kernel, ir::Diagnostics& diagnostics)
      : module_(module), divergence_(module, kernel.body), diagnostics_(diagnostics) {}

  void Visit(const ir::Block& block, const Reason& reason) {
    for (const ir::Stmt& stmt : block) {
      if (reason && IsOfBlock(stmt)) Refuse(stmt, *reason);
      std::visit(ir::Overloaded{[&](const ir::For& op) { VisitLoop(op, reason); },
                                [&](const ir::While& op) { Visit(op.body, Within(&op, {op.cond}, "while", reason)); },
                                [&](const ir::If& op) {
                                  const Reason inner = Within(nullptr, {op.cond}, "if", reason);
                                  Visit(op.then_body, inner), Visit(op.else_body, inner);
                                },
                                [](const auto&) {}},
                 stmt.op);
    }
  }

 private:
  static bool IsOfBlock(const ir::Stmt& stmt) {
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) return loop->kind == ir::LoopKind::kParallel || loop->kind == ir::LoopKind::kPersistent;
    return std::holds_alternative<ir::Copy>(stmt.op) || std::holds_alternative<ir::Fill>(stmt.op) || std::holds_alternative<ir::Gemm>(stmt.op) ||
           std::holds_alternative<ir::Reduce>(stmt.op);
  }

  void VisitLoop(const ir::For& loop, const Reason& reason) {
    // Iterations of a parallel loop are dealt to the threads; what their conditions say is of the iteration.
    if (loop.kind == ir::LoopKind::kParallel) return;
    Visit(loop.body, Within(&loop, loop.extents, "a loop up to", reason));
  }

  Reason Within(const void* loop, const std::vector<ir::ExprId>& exprs, std::string_view word, const Reason& reason) const {
    for (const ir::ExprId id : exprs) {
      if (divergence_.Differs(id)) return fmt::format("{} {}", word, ir::PrintExpr(module_, id));
    }
    if (loop != nullptr && divergence_.IsLeftEarly(loop)) return "a loop that some threads leave, or go on in, before others";
    return reason;
  }

  void Refuse(const ir::Stmt& stmt, const std::string& reason) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const std::string what = loop != nullptr ? fmt::format("a {} loop", ir::Name(loop->kind)) : fmt::format("a {}", ir::Name(stmt.op));
    diagnostics_.Error(fmt::format("{} that only some threads reach, under {}: all threads of the block do it together", what, reason),
                       "move it out of there; or write each thread's own elements, as A[i] = x, which may stand under any condition", stmt.loc,
                       ir::PrintStmt(module_, stmt));
  }

  const ir::Module& module_;
  const Divergence divergence_;
  ir::Diagnostics& diagnostics_;
};

}  // namespace

ir::Result Together(ir::Module& module, const Context&, ir::Diagnostics& diagnostics) {
  const size_t errors = diagnostics.errors();
  for (const ir::Kernel& kernel : module.kernels) Checker(module, kernel, diagnostics).Visit(kernel.body, std::nullopt);
  if (diagnostics.errors() > errors) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
