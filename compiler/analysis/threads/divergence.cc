// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/divergence.h"

#include "compiler/analysis/threads/read_together.h"
#include "ir/visit.h"

#include <algorithm>
#include <utility>

namespace kiln::compiler {

using ir::Space;

namespace {

// A round passes on what the round before found. More rounds would take a longer chain of variables against the program's order, which
// nobody writes.
constexpr int kMostRounds = 64;

}  // namespace

Divergence::Divergence(const ir::Module& module, const ir::Kernel& kernel)
    : module_(module), all_{0, kernel.threads}, together_(ReadTogether(module, kernel.body)), elsewhere_(ReadElsewhere(module, kernel.body)) {
  const auto known = [&] { return vars_.size() + of_thread_.size() + kept_by_thread_.size() + writers_ + left_.size() + exchanged_.size(); };
  int rounds = 0;
  for (size_t before = SIZE_MAX; before != known();) {
    before = known();
    given_.clear();
    Visit(kernel.body, false);
    if (++rounds == kMostRounds) TakeAllToDiffer(kernel.body);
  }
}

void Divergence::TakeAllToDiffer(const ir::Block& body) {
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    if (const auto* let = std::get_if<ir::Let>(&stmt.op)) vars_.insert(let->var), of_thread_.insert(let->var);
    const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
    if (alloc == nullptr || (module_[alloc->buffer].space != Space::kLocal && module_[alloc->buffer].space != Space::kFragment)) return;
    Mark(alloc->buffer, {all_.begin, all_.end, /*together=*/false});
    kept_by_thread_.insert(alloc->buffer);
  });
}

// A local is each thread's own, so what others than `among` wrote is nothing to these.
bool Divergence::IsWrittenApart(ir::BufferId local, const ir::ThreadRange& among) const {
  const auto it = locals_.find(local);
  if (it == locals_.end()) return false;
  return std::ranges::any_of(it->second, [&](const Writers& w) {
    const bool by_all = w.together && w.begin <= among.begin && among.end <= w.end;
    return w.begin < among.end && among.begin < w.end && !by_all;
  });
}

bool Divergence::Differs(ir::ExprId id, const ir::ThreadRange& among) const { return Differs(id, among, Of::kThreadOrIteration); }

bool Divergence::Differs(ir::ExprId id, const ir::ThreadRange& among, Of of) const {
  const std::set<ir::VarId>& lets = of == Of::kThread ? of_thread_ : vars_;
  const auto is_apart = [&](ir::BufferId read) { return IsWrittenApart(read, among) && !(of == Of::kThread && IsOfIteration(read)); };
  std::vector<ir::ExprId> open{id};
  std::set<ir::ExprId> seen;
  while (!open.empty()) {
    const ir::ExprId next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    const ir::ExprNode& node = module_.exprs[next];
    if (node.op == ir::ExprOp::kVar && (module_.vars[node.ref].kind == ir::VarKind::kThread || lets.contains(ir::VarId(node.ref)))) return true;
    if (node.op == ir::ExprOp::kLoad && is_apart(ir::BufferId(node.ref))) return true;
    open.insert(open.end(), node.Args().begin(), node.Args().end());
  }
  return false;
}

const std::set<Divergence::Given>& Divergence::GivenTo(ir::BufferId local) const {
  static const std::set<Given> kNothing;
  const auto it = given_.find(local);
  return it == given_.end() ? kNothing : it->second;
}

std::optional<ir::ExprId> Divergence::ValueOf(ir::VarId let) const {
  const auto it = lets_.find(let);
  return it == lets_.end() ? std::nullopt : it->second;
}

void Divergence::Visit(const ir::Block& block, bool divergent) {
  for (const ir::Stmt& stmt : block) VisitStmt(stmt, divergent);
}

void Divergence::VisitStmt(const ir::Stmt& stmt, bool divergent) {
  std::visit(ir::Overloaded{
                 [&](const ir::For& loop) {
                   const bool outer = std::exchange(in_parallel_, in_parallel_ || loop.kind == ir::LoopKind::kParallel);
                   if (!outer) given_by_iteration_.clear();
                   VisitLoop(loop.body, &loop, loop.extents, divergent, /*under_condition=*/outer);
                   in_parallel_ = outer;
                 },
                 [&](const ir::While& loop) { VisitLoop(loop.body, &loop, {&loop.cond, 1}, divergent, /*under_condition=*/true); },
                 [&](const ir::If& branch) {
                   const bool differs = Differs(branch.cond, scope_);
                   const bool outer = std::exchange(apart_, apart_ || differs);
                   const bool outside = std::exchange(by_thread_, by_thread_ || IsOfThread(branch.cond));
                   const bool always = std::exchange(under_condition_, true);
                   VisitBranch(branch.then_body, branch.then_threads, divergent || differs);
                   VisitBranch(branch.else_body, branch.else_threads, divergent || differs);
                   under_condition_ = always;
                   by_thread_ = outside;
                   apart_ = outer;
                 },
                 [&](const ir::Break&) { Leave(); },
                 [&](const ir::Continue&) { Leave(); },
                 [&](const ir::Let& let) { Bind(let); },
                 [&](const ir::Store& store) { Write(stmt, store.buffer, divergent); },
                 [&](const ir::Atomic& atomic) {
                   Write(stmt, atomic.buffer, divergent || atomic.each_thread);
                   if (atomic.old) TakeOld(atomic.old->buffer);
                 },
                 [&]<ir::OneOf<ir::Copy, ir::Gemm, ir::AnyElementwise, ir::Reduce> T>(const T& op) { WriteTiles(op, divergent); },
                 [&](const ir::Mma& op) { WriteTiles(op, /*divergent=*/true); },  // each lane has other elements of the sum
                 ir::Ignored<ir::Alloc, ir::Assume, ir::Call, ir::Barrier, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait,
                             ir::RingStep, ir::PairSum, ir::StreamSum>{},
             },
             stmt.op);
}

void Divergence::VisitBranch(const ir::Block& body, const std::optional<ir::ThreadRange>& threads, bool divergent) {
  if (!threads) return Visit(body, divergent);
  const ir::ThreadRange outer = std::exchange(scope_, *threads);
  const bool outside = std::exchange(in_range_, true);
  const bool by_thread = std::exchange(by_thread_, false);  // the condition holds for all of the range
  Visit(body, false);
  by_thread_ = by_thread;
  in_range_ = outside;
  scope_ = outer;
}

void Divergence::VisitLoop(const ir::Block& body, const void* loop, std::span<const ir::ExprId> header, bool divergent, bool under_condition) {
  loops_.push_back(loop);
  const bool differs = left_.contains(loop) || std::ranges::any_of(header, [&](ir::ExprId id) { return Differs(id, scope_); });
  const bool of_thread = std::ranges::any_of(header, [&](ir::ExprId id) { return IsOfThread(id); });
  const bool outer = std::exchange(apart_, differs);
  const bool by_thread = std::exchange(by_thread_, by_thread_ || of_thread);
  const bool always = std::exchange(under_condition_, under_condition);
  Visit(body, divergent || differs);
  under_condition_ = always;
  by_thread_ = by_thread;
  apart_ = outer;
  loops_.pop_back();
}

void Divergence::Bind(const ir::Let& let) {
  if (IsOfThread(let.value)) of_thread_.insert(let.var);
  if (in_parallel_ || Differs(let.value, scope_)) vars_.insert(let.var);
  const std::optional<ir::ExprId> value = in_parallel_ ? std::nullopt : std::optional(let.value);
  const auto [it, first] = lets_.emplace(let.var, value);
  if (!first && it->second != value) it->second.reset();
}

void Divergence::Write(const ir::Stmt& stmt, ir::BufferId buffer, bool divergent) {
  std::vector<ir::ExprId> exprs;
  ir::ForEachExpr(stmt.op, [&](ir::ExprId id) { exprs.push_back(id); });
  const bool differs = divergent || in_parallel_ || std::ranges::any_of(exprs, [&](ir::ExprId id) { return Differs(id, scope_); });
  if (module_[buffer].space == Space::kLocal) {
    if (differs || !scope_.Holds(all_)) Mark(buffer, {scope_.begin, scope_.end, !differs});
    if (in_parallel_) GiveInIteration(buffer, std::ranges::any_of(exprs, [&](ir::ExprId id) { return IsOfThread(id); }));
    given_[buffer].insert({scope_.begin, scope_.end, !divergent && !in_parallel_, std::move(exprs), {}});
  }
  if (module_[buffer].space == Space::kFragment && LeavesCopiesApart(stmt, buffer, divergent)) {
    Mark(buffer, {scope_.begin, scope_.end, /*together=*/false});
    given_[buffer].insert({scope_.begin, scope_.end, !divergent && !in_parallel_, std::move(exprs), {}});
  }
  if ((differs || in_range_) && !in_parallel_) of_each_thread_.insert(&stmt);
}

// An iteration of a parallel loop gives a local a value. What it reads afterwards is its own, whichever thread runs it.
void Divergence::GiveInIteration(ir::BufferId local, bool of_thread) {
  if (of_thread || by_thread_) kept_by_thread_.insert(local);
  const bool one = std::ranges::all_of(module_[local].shape, [&](ir::ExprId extent) { return module_.exprs.ConstInt(extent) == 1; });
  if (one && !under_condition_) given_by_iteration_.insert(local);
}

// Whether the copies that threads hold of a fragment's element may differ afterwards.
bool Divergence::LeavesCopiesApart(const ir::Stmt& stmt, ir::BufferId buffer, bool divergent) {
  const auto* store = std::get_if<ir::Store>(&stmt.op);
  if (store == nullptr) return false;
  const bool own = std::ranges::any_of(store->indices, [&](ir::ExprId index) { return IsOfThread(index); });
  if (own && !in_parallel_ && elsewhere_.contains(buffer)) exchanged_.insert(buffer);
  if (own && (in_parallel_ || IsExchanged(buffer))) return false;
  return own || IsOfThread(store->value) || (in_parallel_ ? by_thread_ : divergent);
}

// No two threads come first to an element, so each gets a value of its own.
void Divergence::TakeOld(ir::BufferId local) {
  const bool alone = scope_.Count() == 1;
  if (!alone || !scope_.Holds(all_)) Mark(local, {scope_.begin, scope_.end, alone});
  given_[local].insert({scope_.begin, scope_.end, alone, {}, {}});
  if (in_parallel_) GiveInIteration(local, /*of_thread=*/false);
}

// An operation on tiles gives each thread's local what the thread itself evaluates and reads. To a fragment it gives what the threads compute
// together, which may differ between them where they read copies that do.
template <typename T>
void Divergence::WriteTiles(const T& op, bool divergent) {
  const auto space_of = [&](const ir::Region& region) { return module_[region.buffer].space; };
  Given given{scope_.begin, scope_.end, !divergent, {}, {}};
  bool copies_differ = false;
  ir::ForEachExpr(op, [&](ir::ExprId id) { given.exprs.push_back(id); });
  ir::ForEachRegion(op, [&](const ir::Region& region, ir::Use use) {
    if (use == ir::Use::kWrite) return;
    if (space_of(region) == Space::kLocal || space_of(region) == Space::kFragment) given.locals.push_back(region.buffer);
    copies_differ |= space_of(region) == Space::kFragment && IsWrittenApart(region.buffer, scope_);
  });
  const bool differs = divergent || std::ranges::any_of(given.exprs, [&](ir::ExprId id) { return Differs(id, scope_); }) ||
                       std::ranges::any_of(given.locals, [&](ir::BufferId local) { return IsWrittenApart(local, scope_); });
  ir::ForEachRegion(op, [&](const ir::Region& region, ir::Use use) {
    if (use == ir::Use::kRead) return;
    if (space_of(region) == Space::kFragment && copies_differ) {
      Mark(region.buffer, {scope_.begin, scope_.end, /*together=*/false});
      given_[region.buffer].insert({scope_.begin, scope_.end, /*together=*/false, {}, {}});
    }
    if (space_of(region) != Space::kLocal) return;
    if (differs || !scope_.Holds(all_)) Mark(region.buffer, {scope_.begin, scope_.end, !differs});
    given_[region.buffer].insert(given);
  });
}

}  // namespace kiln::compiler
