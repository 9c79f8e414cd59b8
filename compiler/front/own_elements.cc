// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/own_elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <vector>

#include "compiler/analysis/access.h"
#include "ir/op.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

class Own {
 public:
  explicit Own(const ir::Module& module) : module_(module) {}

  void Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) {
        Iterations(*loop);
        continue;
      }
      for (const Access& access : AccessesOf(module_, stmt))
        if (!access.write) read_.insert(access.buffer);
      ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Visit(body); });
    }
  }

  void Warn(ir::Diagnostics& diagnostics) const {
    for (const auto& [buffer, stmt] : set_) {
      if (!read_.contains(buffer)) continue;
      diagnostics.Warning(
          fmt::format("iterations of a parallel loop set elements of %{}, an array of each thread's own, which threads read outside of "
                      "the loop: a thread has set those of its own iterations alone",
                      ir::Names(module_).Of(buffer)),
          "let each thread run all iterations (T.serial, T.unroll or T.vectorized)", stmt->loc);
    }
  }

 private:
  void Iterations(const ir::For& loop) {
    const bool one = std::ranges::all_of(loop.extents, [&](ir::ExprId extent) { return module_.exprs.ConstInt(extent) == 1; });
    if (one) return;
    std::set<ir::VarId> vars(loop.vars.begin(), loop.vars.end());
    ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op); let != nullptr && Names(let->value, vars)) vars.insert(let->var);
      const auto* store = std::get_if<ir::Store>(&stmt.op);
      if (store == nullptr || module_[store->buffer].space != ir::Space::kLocal) return;
      if (std::ranges::any_of(store->indices, [&](ir::ExprId index) { return Names(index, vars); })) set_.emplace(store->buffer, &stmt);
    });
  }

  bool Names(ir::ExprId id, const std::set<ir::VarId>& vars) const {
    std::vector<ir::ExprId> open{id};
    std::unordered_set<uint32_t> seen;
    while (!open.empty()) {
      const ir::ExprNode& node = module_.exprs[open.back()];
      const bool first = seen.insert(ir::Index(open.back())).second;
      open.pop_back();
      if (!first) continue;
      if (node.op == ir::ExprOp::kVar && vars.contains(ir::VarId(node.ref))) return true;
      open.insert(open.end(), node.Args().begin(), node.Args().end());
    }
    return false;
  }

  const ir::Module& module_;
  std::map<ir::BufferId, const ir::Stmt*> set_;  // in iterations, by the first statement that does
  std::set<ir::BufferId> read_;                  // outside of parallel loops
};

}  // namespace

void WarnOfOwnElements(const ir::Module& module, const ir::Kernel& kernel, ir::Diagnostics& diagnostics) {
  if (kernel.threads == 1) return;
  Own own(module);
  own.Visit(kernel.body);
  own.Warn(diagnostics);
}

}  // namespace kiln::compiler
