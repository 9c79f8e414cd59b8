// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/iterations.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/analysis/threads/thread_sets.h"
#include "compiler/front/of_thread.h"
#include "compiler/front/own_elements.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// Of the accesses to one buffer in one branch that are compared in pairs. Threads that exchange elements do it in a few statements.
constexpr size_t kMostCompared = 64;

// A condition that keeps some threads from the current statements. The text is made only when it is reported: the names of a long program
// take time.
struct Barring {
  std::string_view words;
  std::optional<ir::ExprId> expr = std::nullopt;
};

// The threads that come to the current statements.
struct Scope {
  ir::ThreadRange threads;                       // all of these, or none
  std::optional<Barring> reason = std::nullopt;  // nullopt: they come together
};

// What works on a tile, whatever it is, is shared out among the threads.
struct Tiles : ir::FieldVisitor {
  bool any = false;
  void Region(const ir::Region&, std::string_view, ir::Use) { any = true; }
  void Whole(ir::BufferId, std::string_view, ir::Use) { any = true; }
};

// The expressions that a tile operation evaluates, and which they are, in words.
struct Operands : ir::FieldVisitor {
  struct Operand {
    ir::ExprId expr;
    std::string_view words, name;
  };
  explicit Operands(const ir::Op& op) : of(std::holds_alternative<ir::Gemm>(op) ? "an offset of operand " : "an offset of the ") {}
  std::string_view of;
  std::vector<Operand> all;

  void Evaluates(ir::ExprId expr, std::string_view name) { all.push_back({expr, "the ", name}); }
  void Region(const ir::Region& region, std::string_view name, ir::Use) {
    for (const ir::ExprId offset : region.offsets) all.push_back({offset, of, name});
  }
};

bool IsOfBlock(const ir::Stmt& stmt) {
  if (const auto* loop = std::get_if<ir::For>(&stmt.op)) return loop->kind == ir::LoopKind::kParallel || loop->kind == ir::LoopKind::kPersistent;
  Tiles tiles;
  ir::Fields(stmt.op, tiles);
  return tiles.any || std::holds_alternative<ir::Barrier>(stmt.op) || IsCall(stmt);
}

bool HoldsOneOfBlock(const ir::Block& block) {
  bool holds = false;
  ir::Walk(block, [&](const ir::Stmt& stmt) { holds |= IsOfBlock(stmt); });
  return holds;
}

// Whether threads write shared memory in a loop of the block, each its own elements: one that reads what another wrote waits for it, among those
// that come.
bool HoldsAnExchange(const ir::Module& module, const ir::Block& block) {
  bool holds = false;
  ir::Walk(block, [&](const ir::Stmt& stmt) {
    const ir::Block* body = std::holds_alternative<ir::For>(stmt.op)     ? &std::get<ir::For>(stmt.op).body
                            : std::holds_alternative<ir::While>(stmt.op) ? &std::get<ir::While>(stmt.op).body
                                                                         : nullptr;
    if (body == nullptr) return;
    ir::Walk(*body, [&](const ir::Stmt& inner) {
      const auto* store = std::get_if<ir::Store>(&inner.op);
      holds |= store != nullptr && module[store->buffer].space == ir::Space::kShared;
    });
  });
  return holds;
}

// Whether threads of the block read elements of a buffer that others of them may have written: those that come wait for each other.
bool HoldsOthersElements(const ir::Module& module, const IndexSteps& indices, const ir::Block& block) {
  std::map<ir::BufferId, std::vector<Access>> written, read;
  std::set<std::tuple<ir::BufferId, bool, std::vector<ir::ExprId>>> seen;
  ir::Walk(block, [&](const ir::Stmt& stmt) {
    if (IsOfBlock(stmt)) return;
    for (Access& access : AccessesOf(module, stmt)) {
      const ir::Space space = module[access.buffer].space;
      if (space != ir::Space::kShared && space != ir::Space::kFragment) continue;
      if (seen.emplace(access.buffer, access.write, access.indices).second) (access.write ? written : read)[access.buffer].push_back(access);
    }
  });
  for (const auto& [buffer, writes] : written)
    for (const Access& write : std::span(writes).first(std::min(writes.size(), kMostCompared)))
      for (const Access& other : std::span(read[buffer]).first(std::min(read[buffer].size(), kMostCompared)))
        if (write.indices != other.indices && !NeverMeet(indices, write, other)) return true;
  return false;
}

// Goes over a kernel with what is known of its threads so far. Ranges may make more known: what a range's threads count up together is one
// number to them, so a loop up to it is theirs, and may hold further ranges.
class Round {
 public:
  Round(ir::Module& module, ir::Kernel& kernel, const target::Target& target)
      : module_(module),
        kernel_(kernel),
        target_(target),
        divergence_(module, kernel),
        sets_(module, divergence_),
        indices_(module.exprs),
        has_signals_(HasSignals(kernel)) {}

  // Gives branches their ranges; whether one got another than it had.
  bool Assign() {
    Visit(kernel_.body, {{0, kernel_.threads}});
    return changed_;
  }

  // Tells which ranges there are, removes branches that no thread enters, and refuses what only some threads reach otherwise.
  void Report(ir::Diagnostics& diagnostics) {
    diagnostics_ = &diagnostics;
    Visit(kernel_.body, {{0, kernel_.threads}});
  }

 private:
  void Visit(ir::Block& block, const Scope& scope) {
    for (ir::Stmt& stmt : block) {
      if (diagnostics_ != nullptr) Check(stmt, scope);
      std::visit(
          ir::Overloaded{[&](ir::For& op) { VisitLoop(op, scope); }, [&](ir::While& op) { Visit(op.body, Within(&op, {op.cond}, "while", scope)); },
                         [&](ir::If& op) {
                           if (diagnostics_ != nullptr && !has_signals_ && divergence_.Differs(op.cond, scope.threads)) {
                             WarnOfBranches(module_, op, sets_, scope.threads, *diagnostics_);
                           }
                           VisitBranch(stmt, op, true, scope);
                           VisitBranch(stmt, op, false, scope);
                         },
                         ir::Ignored<ir::Alloc, ir::Let, ir::Store, ir::Assume, ir::Copy, ir::Gemm, ir::Mma, ir::Call, ir::AnyElementwise, ir::Reduce,
                                     ir::Atomic, ir::Barrier, ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit,
                                     ir::AsyncWait, ir::RingStep, ir::PairSum, ir::StreamSum>{}},
          stmt.op);
    }
  }

  void Check(const ir::Stmt& stmt, const Scope& scope) {
    if (!IsOfBlock(stmt)) return WarnOfCopies(module_, stmt, divergence_, sets_, scope.threads, scope.reason.has_value(), *diagnostics_);
    if (IsCall(stmt) && !scope.threads.IsSame(AllThreads(kernel_))) {
      return diagnostics_->Error(fmt::format("a call that only threads {} to {} reach: the function counts all threads of the block",
                                             scope.threads.begin, scope.threads.end - 1),
                                 "move it out of the condition: all threads come to it", stmt.loc, ir::PrintStmt(module_, stmt));
    }
    if ((IsGridBarrier(stmt) || IsClusterBarrier(stmt)) && !scope.threads.IsSame(AllThreads(kernel_))) {
      const std::string_view whose = IsGridBarrier(stmt) ? "all blocks" : "the cluster's blocks";
      return diagnostics_->Error(fmt::format("a barrier of {} that only threads {} to {} reach", whose, scope.threads.begin, scope.threads.end - 1),
                                 fmt::format("move it out of the condition: all threads of {} come to it", whose), stmt.loc,
                                 ir::PrintStmt(module_, stmt));
    }
    if (scope.reason) return Refuse(stmt, *scope.reason);
    if (!IsCall(stmt)) CheckOperands(stmt, scope.threads);  // each thread gives the function its own values
  }

  void VisitLoop(ir::For& loop, const Scope& scope) {
    // The iterations of a parallel loop are distributed over the threads, so conditions in it apply to an iteration, not to a thread.
    if (loop.kind == ir::LoopKind::kParallel) return;
    Visit(loop.body, Within(&loop, loop.extents, "a loop up to", scope));
  }

  Scope Within(const void* loop, const std::vector<ir::ExprId>& exprs, std::string_view word, const Scope& scope) const {
    for (const ir::ExprId id : exprs) {
      if (divergence_.Differs(id, scope.threads)) return {scope.threads, Barring{word, id}};
    }
    if (loop != nullptr && divergence_.IsLeftEarly(loop)) return {scope.threads, Barring{"a loop that some threads leave or continue before others"}};
    return scope;
  }

  void VisitBranch(const ir::Stmt& stmt, ir::If& branch, bool value, const Scope& scope) {
    ir::Block& body = value ? branch.then_body : branch.else_body;
    std::optional<ir::ThreadRange>& threads = value ? branch.then_threads : branch.else_threads;
    const std::optional<ir::ThreadRange> range = RangeOf(branch.cond, value, body, scope);
    changed_ |= range.has_value() != threads.has_value() || (range && !range->IsSame(*threads));
    threads = range;
    if (!range) return Visit(body, Within(nullptr, {branch.cond}, value ? "if" : "the else of if", scope));
    if (range->Count() > 0) {
      if (diagnostics_ != nullptr) Tell(stmt, branch.cond, value, *range);
      Visit(body, {*range});
    } else if (diagnostics_ != nullptr) {
      body.clear();
      threads.reset();
    }
  }

  // The threads that come to a branch with statements that they do together, or in which they may wait for each other. nullopt: as many as come
  // to the If, or it is not known.
  std::optional<ir::ThreadRange> RangeOf(ir::ExprId cond, bool value, const ir::Block& body, const Scope& scope) const {
    if (scope.reason || !divergence_.Differs(cond, scope.threads)) return std::nullopt;
    const bool together = HoldsOneOfBlock(body) || HoldsAnExchange(module_, body) || HasSignals(body);
    if (!together && !HoldsOthersElements(module_, indices_, body)) return std::nullopt;
    const std::optional<ir::ThreadRange> range = sets_.Where(cond, value, scope.threads);
    // They may each keep to elements of their own, and then need not wait: only where they can does it help to be a range.
    return together || !range || WhyNoBarrier(*range, target_).empty() ? range : std::nullopt;
  }

  void Tell(const ir::Stmt& stmt, ir::ExprId cond, bool value, const ir::ThreadRange& range) {
    kernel_.decisions.push_back({"together", std::nullopt,
                                 fmt::format("threads {} to {} run the statements under {}if {}", range.begin, range.end - 1,
                                             value ? "" : "the else of ", ir::PrintExpr(module_, cond)),
                                 "no other threads enter", stmt.loc});
  }

  void Refuse(const ir::Stmt& stmt, const Barring& barring) {
    const std::string reason = barring.expr ? fmt::format("{} {}", barring.words, ir::PrintExpr(module_, *barring.expr)) : std::string(barring.words);
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const std::string what = loop != nullptr ? fmt::format("a {} loop", ir::Name(loop->kind)) : fmt::format("a {}", ir::Name(stmt.op));
    diagnostics_->Error(fmt::format("{} that only some threads reach, under {}: the threads of a block do it together, and those that come are "
                                    "not known to be a range",
                                    what, reason),
                        "write the condition as first <= thread < last with constants, move the statement out of the condition, or write each "
                        "thread's own elements, as A[i] = x, which may stand under any condition",
                        stmt.loc, ir::PrintStmt(module_, stmt));
  }

  void CheckOperands(const ir::Stmt& stmt, const ir::ThreadRange& threads) {
    if (threads.Count() == 1) return;
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) {
      if (loop->kind == ir::LoopKind::kParallel) WarnOfThread(module_, *loop, sets_, threads, *diagnostics_);
      return;
    }
    if (IsOfEachThread(stmt)) return CheckPlace(stmt, threads);
    Operands operands(stmt.op);
    ir::Fields(stmt.op, operands);
    const auto it = std::ranges::find_if(operands.all, [&](const auto& operand) { return !sets_.Agree(operand.expr, threads); });
    if (it == operands.all.end()) return;
    diagnostics_->Error(fmt::format("{}{} of a {} is {}, which may differ between threads: they do the statement together, and the compiler "
                                    "chooses which of them does which element",
                                    it->words, it->name, ir::Name(stmt.op), ir::PrintExpr(module_, it->expr)),
                        "write a parallel loop over the tile (T.Parallel) that computes the value from its variables alone, not from the thread's "
                        "number, or one branch for each group of threads: if tx // 128 == 0: ..., or write each thread's own elements, as "
                        "A[thread] = x",
                        stmt.loc, ir::PrintStmt(module_, stmt));
  }

  // Each thread does all of the statement. If they all write one place, they must write the same.
  void CheckPlace(const ir::Stmt& stmt, const ir::ThreadRange& threads) {
    const ir::Region* differs = nullptr;
    bool one_place = false;
    ir::ForEachRegion(stmt.op, [&](const ir::Region& region, ir::Use use) {
      const bool own = module_[region.buffer].space == ir::Space::kLocal;
      const bool same = std::ranges::all_of(region.offsets, [&](ir::ExprId offset) { return sets_.Agree(offset, threads); });
      if (own && use == ir::Use::kRead && !(same && sets_.Agree(region.buffer, threads))) differs = &region;
      one_place |= !own && use != ir::Use::kRead && same;
    });
    if (differs == nullptr || !one_place) return;
    diagnostics_->Error(
        fmt::format("all threads do a {} from {}, which may differ between them, to one place: which of them is the last is not known",
                    ir::Name(stmt.op), "%" + ir::Names(module_).Of(differs->buffer)),
        "let one thread do it, as under if tx == 0, give each thread a place of its own, as A[tx * 4 : tx * 4 + 4], or combine what "
        "the threads have (T.warp_reduce_sum, T.reduce_sum)",
        stmt.loc, ir::PrintStmt(module_, stmt));
  }

  // Whether each thread does all of a tile operation, because an operand is an array of its own.
  bool IsOfEachThread(const ir::Stmt& stmt) const {
    bool own = false;
    ir::ForEachBuffer(stmt.op, [&](ir::BufferId buffer) { own |= module_[buffer].space == ir::Space::kLocal; });
    return own;
  }

  const ir::Module& module_;
  ir::Kernel& kernel_;
  const target::Target& target_;
  const Divergence divergence_;
  const ThreadSets sets_;
  const IndexSteps indices_;
  const bool has_signals_;  // barriers of the program's own say which comes first
  ir::Diagnostics* diagnostics_ = nullptr;
  bool changed_ = false;
};

// Ranges may depend on each other in a chain of any length. Where one still changes after so many rounds, what they leave unknown is refused.
constexpr int kMostRounds = 8;

void FindTogether(ir::Module& module, ir::Kernel& kernel, const target::Target& target, ir::Diagnostics& diagnostics) {
  for (int rounds = 1;; ++rounds) {
    Round round(module, kernel, target);
    if (rounds <= kMostRounds && round.Assign()) continue;
    return round.Report(diagnostics);
  }
}

}  // namespace

ir::Result Together(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  const size_t errors = diagnostics.errors();
  for (ir::Kernel& kernel : module.kernels) {
    FindTogether(module, kernel, *context.target, diagnostics);
    WarnOfOwnElements(module, kernel, diagnostics);
  }
  if (diagnostics.errors() > errors) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
