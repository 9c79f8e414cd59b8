// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/range_barriers.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "compiler/analysis/definitions.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/rules/roles.h"
#include "ir/op.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"

namespace kiln::compiler {
namespace {

bool Meets(const ir::Stmt& stmt) {
  const auto* reduce = std::get_if<ir::Reduce>(&stmt.op);
  return std::holds_alternative<ir::Barrier>(stmt.op) || (reduce != nullptr && reduce->scratch);
}

class Binder {
 public:
  Binder(const ir::Module& module, ir::Kernel& kernel, const target::Target& target, ir::Diagnostics& diagnostics)
      : module_(module), kernel_(kernel), target_(target), diagnostics_(diagnostics), divergence_(module, kernel), scope_{AllThreads(kernel), ""} {}

  // Visits the block; true if all threads of the scope meet in it, not only those of a branch within.
  bool Visit(ir::Block& block, bool differs) {
    bool meet = false;
    for (size_t i = 0; i < block.size(); ++i) {
      ir::Stmt& stmt = block[i];
      if (Meets(stmt)) {
        meet = true;
        // A barrier stands before the statement that needs it.
        const bool before = std::holds_alternative<ir::Barrier>(stmt.op) && i + 1 < block.size();
        Check(before ? block[i + 1] : stmt, differs);
      }
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && !IsOneStatement(*loop)) meet |= Visit(loop->body, IsApart(differs, loop->extents.front(), loop));
      if (auto* repeat = std::get_if<ir::While>(&stmt.op)) meet |= Visit(repeat->body, IsApart(differs, repeat->cond, repeat));
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
        const std::string condition = branch->IsNarrowed() ? ir::PrintExpr(module_, branch->cond) : "";
        const bool apart = differs || divergence_.Differs(branch->cond, scope_.threads);
        meet |= VisitBranch(stmt, branch->then_body, branch->then_threads, apart, "if " + condition);
        meet |= VisitBranch(stmt, branch->else_body, branch->else_threads, apart, "the else of if " + condition);
      }
    }
    return meet;
  }

 private:
  struct Scope {
    ir::ThreadRange threads;
    std::string condition;  // under which just they come; "": all threads do
  };

  // The threads may be in different iterations of the loop, too.
  bool IsApart(bool differs, ir::ExprId header, const void* loop) const {
    return differs || divergence_.Differs(header, scope_.threads) || divergence_.IsLeftEarly(loop);
  }

  bool VisitBranch(const ir::Stmt& stmt, ir::Block& body, std::optional<ir::ThreadRange>& range, bool differs, std::string condition) {
    if (!range) return Visit(body, differs);
    if (range->IsSame(scope_.threads)) return Visit(body, false);
    Scope outer = std::exchange(scope_, {*range, std::move(condition)});
    const bool meet = Visit(body, false);
    scope_ = std::move(outer);
    if (meet && !IsWithinOneWarp(*range, target_.warp_size)) range->barrier = Number(stmt, *range);
    return false;
  }

  void Check(const ir::Stmt& stmt, bool differs) {
    std::string where;
    if (differs) {
      where = "under a condition that differs between threads";
    } else if (const std::string why = WhyNoBarrier(scope_.threads, target_); !scope_.condition.empty() && !why.empty()) {
      where = fmt::format("under {}, which only threads {} to {} enter, and they have no barrier of their own: {}", scope_.condition,
                          scope_.threads.begin, scope_.threads.end - 1, why);
    }
    if (where.empty()) return;
    diagnostics_.Error(
        "threads exchange data here through memory, " + where,
        "move the exchange out of the condition, so that all threads of the block take part, or let the condition name threads that can "
        "wait for each other",
        stmt.loc, ir::PrintStmt(module_, stmt));
  }

  // Numbers are given out from the last one down: warp roles and their groups use the first ones.
  uint32_t Number(const ir::Stmt& stmt, const ir::ThreadRange& range) {
    const auto [it, added] = numbers_.try_emplace({range.begin, range.end}, next_);
    if (!added) return it->second;
    const uint32_t taken = kernel_.producers != 0 ? 1 + kernel_.threads / kGroupThreads : 0;
    if (next_ <= taken) {
      diagnostics_.Error(fmt::format("threads {} to {} meet here, and other ranges of threads have taken the {} barriers of a block", range.begin,
                                     range.end - 1, ir::kMaxNamedBarriers - taken),
                         "let fewer different ranges of threads exchange data", stmt.loc);
      return next_;
    }
    kernel_.decisions.push_back({"synchronize", std::nullopt, fmt::format("barrier {} joins threads {} to {}", next_, range.begin, range.end - 1),
                                 "no other threads enter", stmt.loc});
    return next_--;
  }

  const ir::Module& module_;
  ir::Kernel& kernel_;
  const target::Target& target_;
  ir::Diagnostics& diagnostics_;
  const Divergence divergence_;
  Scope scope_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> numbers_;
  uint32_t next_ = ir::kMaxNamedBarriers;
};

}  // namespace

void BindBarriers(const ir::Module& module, ir::Kernel& kernel, const target::Target& target, ir::Diagnostics& diagnostics) {
  Binder(module, kernel, target, diagnostics).Visit(kernel.body, /*differs=*/false);
}

}  // namespace kiln::compiler
