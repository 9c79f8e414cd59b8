// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/synchronize.h"

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/digits.h"
#include "compiler/analysis/iterations.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/encounters.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/rules/reduce.h"
#include "compiler/synchronize/branches.h"
#include "compiler/synchronize/count_blocks.h"
#include "compiler/synchronize/insert_needs.h"
#include "compiler/synchronize/lift.h"
#include "compiler/synchronize/pending.h"
#include "compiler/synchronize/range_barriers.h"
#include "compiler/synchronize/statements.h"
#include "compiler/synchronize/visited.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::Space;
using ir::Stmt;

class Analysis {
 public:
  // `by_memory`: barriers that order shared memory alone cost less than those that order global memory, too. `by_copies`: copies under way may
  // arrive at a barrier themselves.
  Analysis(const ir::Module& module, const ir::Kernel& kernel, bool by_memory, bool by_copies)
      : module_(module),
        by_memory_(by_memory),
        by_copies_(by_copies),
        encounters_(module, kernel),
        divergence_(module, kernel),
        digits_(module, kernel),
        indices_(module.exprs),
        scopes_{AllThreads(kernel)} {}

  // Finds what each statement needs, then drops the needs that others cover. Within one pass in program order no need covers another, since
  // a barrier stands as late as it can. But in a loop, a need that a later iteration finds further up may cover one found earlier.
  void Run(const Block& body) {
    special_ = FindSpecial(module_, body);
    visited_.Find(body);
    limit_ = std::max(kMostVisited, kMostOfEach * visited_.Statements());
    most_exact_ = limit_ / kPartExact;
    State state;
    Visit(body, state);
    endless_ = beyond_;
    if (endless_ != nullptr) return;
    if (IsLate()) doubtful_ = order_;
    fixed_ = true;
    limit_ = visits_ + kMostTried;
    Lift lift(needs_, causes_, visited_, [&] { return Holds(body); });
    for (const Stmt* stmt : std::exchange(doubtful_, {})) lift.Drop({&stmt, 1});
    lift.Run(body);
    if (by_memory_) TellMemoriesApart(body);
    lift.DropCovered();
  }

  void Visit(const Block& block, State& state) {
    const Visited::Piece* parts = visited_.Parts(block);
    parts == nullptr ? VisitAll(block, state) : VisitParts(*parts, state);
  }

  void VisitParts(const Visited::Piece& whole, State& state) {
    if (whole.parts().empty()) return VisitAll(whole.stmts(), state);
    for (Visited::Piece* part : whole.parts()) {
      if (IsDecided()) return;
      visits_ += 1 + CostOf(state);
      visited_.Again(*part, state, [&] { return VisitParts(*part, state), !IsDecided(); });
    }
  }

  void VisitAll(std::span<const Stmt> block, State& state) {
    for (size_t i = 0; i < block.size();) {
      const std::span<const Stmt> rest = block.subspan(i);
      const size_t together = ExchangeTogether(rest);
      together == 0 ? VisitStmt(rest[0], state) : VisitReduces(rest.first(together), state);
      i += std::max<size_t>(together, 1);
    }
  }

  Needs needs() const { return {needs_, after_copies_, after_accesses_, by_memory_}; }
  const Unreleased& unreleased() const { return unreleased_; }
  // The statement at which the analysis gave up, or nullptr.
  const Stmt* endless() const { return endless_; }

 private:
  void VisitStmt(const Stmt& stmt, State& state) {
    ++visits_;
    if (beyond_ == nullptr && visits_ > limit_) beyond_ = &stmt;
    if (IsDecided()) return;
    std::visit(ir::Overloaded{
                   [&](const ir::Barrier& barrier) {
                     if (barrier.grid || barrier.cluster) Demand(stmt, WaitForAll(state), state);
                     Clear(state, barrier.by_group ? Need::kGroup : Need::kBarrier | Need::kGlobal);
                   },
                   // What is pending leaves the loop or meets its next iteration; none of it reaches the statement after this one.
                   [&](const ir::Arrive&) { Arrive(stmt, state); },
                   [&](const ir::Break&) { Leave(exits_.back().by_break, state); },
                   [&](const ir::Continue&) { Leave(exits_.back().by_continue, state); },
                   [&](const ir::AsyncCommit&) {
                     for (Pending& p : state)
                       if (p.age < kStoring) ++p.age;
                   },
                   [&](const ir::AsyncWait& wait) {
                     if (wait.product) return EndProducts(*wait.product, state);
                     for (Pending& p : state)
                       if (wait.stores ? p.age == kStoring : p.age < kStoring && p.age >= wait.pending) p.age = kDone;
                   },
                   [&](const ir::For& loop) {
                     if (IsOneStatement(loop)) return Simple(stmt, state);
                     const DivergentScope scope = Enter(stmt, IsRunApart(loop.extents.front(), &loop), state);
                     Repeat(stmt, loop.body, loop.vars.front(), state);
                   },
                   [&](const ir::While& loop) {
                     const DivergentScope scope = Enter(stmt, IsRunApart(loop.cond, &loop), state);
                     Repeat(stmt, loop.body, std::nullopt, state);
                   },
                   [&](const ir::If& branch) {
                     MeetBefore(stmt, state);
                     ReleaseBefore(stmt, branch, state);
                     State other = state;
                     const DivergentScope scope(divergent_, divergence_.Differs(branch.cond, scopes_.back()));
                     VisitBranch(branch, true, state);
                     VisitBranch(branch, false, other);
                     if (special_.signals && !fixed_ && branch.then_threads && branch.else_threads) {
                       FindUnreleased(state, *branch.then_threads, branch.else_body);
                       FindUnreleased(other, *branch.else_threads, branch.then_body);
                     }
                     state.insert(state.end(), other.begin(), other.end());
                     Normalize(state);
                   },
                   [&](const ir::PairSum& sum) { Exchange(stmt, sum.scratch, state); },
                   [&]<ir::OneOf<ir::Alloc, ir::Let, ir::Store, ir::Assume, ir::Copy, ir::Gemm, ir::Mma, ir::Call, ir::AnyElementwise, ir::Reduce,
                                 ir::Atomic, ir::Await, ir::Registers, ir::RingStep, ir::StreamSum>
                           T>(const T&) { Simple(stmt, state); },
               },
               stmt.op);
  }

  // Who arrives has waited for its own copies, or these arrive for it; the other threads of the scope arrive for themselves, or have met since.
  // From here on what they all did is the program's to hand over to threads of other branches.
  void Arrive(const Stmt& stmt, State& state) {
    const bool by_copies = by_copies_ && !std::get<ir::Arrive>(stmt.op).block;
    const Arrival arrival = ArrivalAfter(state, scopes_.back(), by_copies);
    if (arrival.copies) after_copies_.insert(&stmt);
    if (arrival.accesses) after_accesses_.insert(&stmt);
    Meet(stmt, Accesses(stmt), state, /*record=*/true, arrival.need);
    for (Pending& p : state) {
      const bool own = IsBy(p, scopes_.back());
      p.released |= p.age == kDone ? p.met > 0 || own : by_copies && own && p.age < kStoring;
    }
    Normalize(state);
  }

  // Some of the threads that come to the branch arrive in it for all: these must have done what stands before.
  void ReleaseBefore(const Stmt& stmt, const ir::If& branch, State& state) {
    if (!special_.signals || !(branch.IsNarrowed() || divergence_.Differs(branch.cond, scopes_.back()))) return;
    const std::optional<Need> need = NeedOfArrivals(branch, by_memory_, state);
    if (!need) return;
    Demand(stmt, *need, state);
    for (Pending& p : state) p.released |= p.age == kDone && p.met > 0;
    Normalize(state);
  }

  // What the threads of one branch have written and not arrived for since, and those of the other branch, who run beside them, use.
  void FindUnreleased(const State& state, const ir::ThreadRange& threads, const Block& beside) {
    ir::Walk(beside, [&](const Stmt& stmt) {
      for (const Access& access : Accesses(stmt))
        for (const Pending& p : state)
          if (p.write && !p.released && IsBy(p, threads) && access.buffer == p.buffer && Conflict(p, stmt, access))
            NoteUnreleased(unreleased_, p, stmt);
    });
  }

  // A product in flight may read its operands until the wait for its sum, whatever barriers passed before.
  void EndProducts(BufferId sum, State& state) {
    for (const Stmt* product : special_.in_flight[sum])
      for (const Access& access : Accesses(*product)) Record(*product, access, state);
  }

  // A barrier in a branch with threads of its own joins only these threads: for all others, what came before it is still pending.
  void VisitBranch(const ir::If& branch, bool then, State& state) {
    const std::optional<ir::ThreadRange>& threads = then ? branch.then_threads : branch.else_threads;
    const Block& body = then ? branch.then_body : branch.else_body;
    if (!threads) return Visit(body, state);
    const int outer = std::exchange(divergent_, 0);
    const bool narrower = !threads->IsSame(scopes_.back());
    if (narrower) scopes_.push_back(*threads);
    Visit(body, state);
    if (narrower) {
      const int depth = Depth();
      for (Pending& p : state)
        if (p.met == depth) p.met = 0;
      if (special_.signals) NoteAwaiting(body, *threads, state);
      Normalize(state);
      scopes_.pop_back();
    }
    divergent_ = outer;
  }

  int Depth() const { return int(scopes_.size()) - 1; }

  // The exchange has a barrier of its own between the write to its scratch and the read from it.
  void Exchange(const Stmt& stmt, const std::optional<BufferId>& scratch, State& state) {
    Simple(stmt, state);
    if (!scratch) return;
    Meet(stmt, {Whole(*scratch, /*write=*/true)}, state, /*record=*/false);
    Clear(state, Need::kBarrier);  // for the scratch
    Record(stmt, Whole(*scratch, /*write=*/false), state);
  }

  // All partial results are written, then comes one barrier, then all are read.
  void VisitReduces(std::span<const Stmt> reduces, State& state) {
    const bool cluster = std::get<ir::Reduce>(reduces[0].op).cluster;
    std::vector<Access> scratch;
    for (const Stmt& stmt : reduces) {
      Simple(stmt, state);
      scratch.push_back(Whole(*std::get<ir::Reduce>(stmt.op).scratch, /*write=*/true));
    }
    if (cluster) return;  // each has a place and an mbarrier of its own
    Meet(reduces[0], scratch, state, /*record=*/false);
    Clear(state, Need::kBarrier);
    for (size_t i = 0; i < reduces.size(); ++i) {
      scratch[i].write = false;
      Record(reduces[i], scratch[i], state);
    }
  }

  const std::vector<Access>& Accesses(const Stmt& stmt) const {
    auto [it, added] = accesses_.try_emplace(&stmt);
    if (added) it->second = AccessesOf(module_, stmt);
    return it->second;
  }

  // Takes the order of global memory from every barrier that can do without; from those within loops first, where waiting costs most. So far
  // each barrier orders all memory.
  void TellMemoriesApart(const Block& body) {
    std::vector<const Stmt*> barriers = OutermostFirst(body);
    std::erase_if(barriers, [&](const Stmt* stmt) {
      const auto need = needs_.find(stmt);
      return need == needs_.end() || !need->second.Has(Need::kBarrier);
    });
    if (TakeGlobal(barriers, body)) return;
    for (size_t i = barriers.size(); i-- > 0;) TakeGlobal({&barriers[i], 1}, body);
  }

  bool TakeGlobal(std::span<const Stmt* const> barriers, const Block& body) {
    const auto set = [&](bool global) {
      for (const Stmt* stmt : barriers) {
        int& what = needs_.at(stmt).what;
        what = global ? what | Need::kGlobal : what & ~Need::kGlobal;
        visited_.Changed(*stmt);
      }
    };
    set(false);
    if (Holds(body)) return true;
    set(true);
    return false;
  }

  // Whether the needs as they stand are enough. Also false when the limit of visits is reached.
  bool Holds(const Block& body) {
    met_ = true;
    State state;
    Visit(body, state);
    return met_ && beyond_ == nullptr;
  }

  void Simple(const Stmt& stmt, State& state) { Meet(stmt, Accesses(stmt), state); }

  // The blocks inside can have no barrier, so whatever they need of earlier statements goes before this statement.
  void MeetBefore(const Stmt& stmt, State& state) {
    const auto accesses = [this](const Stmt& inner) -> const std::vector<Access>& { return Accesses(inner); };
    Need need;
    for (const Coming& coming : FirstAccesses(stmt, scopes_.back(), special_.signals, accesses))
      Compare(stmt, coming.accesses, coming.who, state, need);
    Conclude(stmt, need, state);
    for (const Access& access : Accesses(stmt)) Record(stmt, access, state);
  }

  // Threads may be in different iterations of a loop with this header.
  bool IsRunApart(ir::ExprId header, const void* loop) const { return divergence_.Differs(header, scopes_.back()) || divergence_.IsLeftEarly(loop); }

  // Enters a loop. `differs`: not all threads run the same iterations, so they cannot meet within the loop.
  DivergentScope Enter(const Stmt& stmt, bool differs, State& state) {
    differs ? MeetBefore(stmt, state) : Meet(stmt, Accesses(stmt), state);
    return DivergentScope(divergent_, differs);
  }

  // `need`: what the statement needs beside what its accesses do.
  void Meet(const Stmt& stmt, const std::vector<Access>& accesses, State& state, bool record = true, Need need = {}) {
    Compare(stmt, accesses, {scopes_.back()}, state, need);
    Conclude(stmt, need, state);
    for (const Access& access : accesses)
      if (record) Record(stmt, access, state);
  }

  void Compare(const Stmt& stmt, const std::vector<Access>& accesses, const Comers& who, const State& state, Need& need) {
    visits_ += CostOf(state, accesses.size());
    for (const Access& access : accesses)
      for (const Pending& p : state) {
        // Threads of other branches have these by the program's own barriers; those of the branch meet within it.
        if ((p.released && AreApart(p, who.threads)) || (who.branch && IsBy(p, *who.branch)) || !Conflict(p, stmt, access)) continue;
        const bool beside = p.awaiting && AreApart(p, who.threads);
        if (beside && p.write && !fixed_) NoteUnreleased(unreleased_, p, stmt);
        if (beside) continue;
        need.Add(NeedOf(p, stmt, access));
        causes_[&stmt].insert(p.stmt);
      }
  }

  void Conclude(const Stmt& stmt, Need need, State& state) {
    if (divergent_ == 0 && Depth() == 0 && std::ranges::count(state, kDone, &Pending::age) > kMostPending) {
      need.Add({by_memory_ ? Need::kBarrier | Need::kGlobal : Need::kBarrier});
    }
    Demand(stmt, need, state);
  }

  // The statement needs it, here and on every path.
  void Demand(const Stmt& stmt, const Need& need, State& state) {
    if (need.what > 0 && fixed_) {
      const auto it = needs_.find(&stmt);
      met_ &= it != needs_.end() && it->second.Covers(need);
    } else if (need.what > 0) {
      const auto [it, added] = needs_.try_emplace(&stmt, need);
      const bool raised = !it->second.Covers(need);
      raised_ |= raised;
      it->second.Add(need);
      if (added) order_.push_back(&stmt);
      if (added || raised) visited_.Changed(stmt);
    }
    // A need found on another path holds on this one too.
    Need whole = need;
    if (const auto it = needs_.find(&stmt); it != needs_.end()) whole.Add(it->second);
    Settle(whole, state);
    Clear(state, whole.what);
  }

  // What it takes to keep an access apart from a pending one.
  Need NeedOf(const Pending& p, const Stmt& stmt, const Access& access) const {
    const bool by_group = p.buffer == access.buffer && special_.by_group.contains(p.buffer);
    Need need{ReadsItsOwn(p, stmt, access) ? 0 : by_group ? Need::kGroup : Need::kBarrier};
    // Until TellMemoriesApart has the say, each barrier orders all memory.
    const bool global = module_[p.buffer].space == Space::kGlobal || module_[access.buffer].space == Space::kGlobal;
    if (by_memory_ && need.Has(Need::kBarrier) && (!fixed_ || global)) need.what |= Need::kGlobal;
    need.Add(WaitFor(p));
    return need;
  }

  void Record(const Stmt& stmt, const Access& access, State& state) {
    const Space space = module_[access.buffer].space;
    if (!IsMemory(space) || IsSignallingLoad(stmt) || special_.read_only.contains(access.buffer)) return;
    const int age = IsTensor(stmt) ? kStoring : access.async ? -1 : kDone;
    // Nothing else touches what a tensor store leaves in global memory (mapping/tensor_copies.h).
    if (age == kStoring && space == Space::kGlobal) return;
    Pending pending{access.buffer, access.write, VersionOf(module_, access, loops_), age, &stmt};
    if (special_.signals) pending.begin = scopes_.back().begin, pending.end = scopes_.back().end;
    const auto at = std::ranges::lower_bound(state, pending);
    if (at == state.end() || *at != pending) state.insert(at, pending);
  }

  // A barrier of `scope` has passed.
  void Clear(State& state, int scope) const {
    const bool all = !by_memory_ || (scope & Need::kGlobal) != 0;
    const auto ordered = [&](const Pending& p) { return p.age == kDone && (all || module_[p.buffer].space != Space::kGlobal); };
    if ((scope & Need::kBarrier) != 0 && Depth() > 0) {
      for (Pending& p : state)
        if (ordered(p) && p.met == 0) p.met = Depth();
      Normalize(state);
    } else if ((scope & Need::kBarrier) != 0) {
      std::erase_if(state, ordered);
    } else if ((scope & Need::kGroup) != 0) {
      for (Pending& p : state) p.within_group |= p.age == kDone && special_.by_group.contains(p.buffer);
      Normalize(state);
    }
  }

  // Whether `relation`, a method of Encounters, holds between an access and all that the pending statement did to the buffer.
  bool OfAll(const Pending& p, const Stmt& stmt, const Access& access, auto relation) const {
    const auto concerns = [&](const Access& before) { return before.buffer == access.buffer && before.write == p.write; };
    const auto holds = [&](const Access& before) { return (encounters_.*relation)({*p.stmt, before}, {stmt, access}); };
    auto did = Accesses(*p.stmt) | std::views::filter(concerns);
    return !did.empty() && std::ranges::all_of(did, holds);
  }

  // A thread that reads only what it wrote itself needs no barrier.
  bool ReadsItsOwn(const Pending& p, const Stmt& stmt, const Access& access) const {
    if (p.buffer != access.buffer || module_[p.buffer].space != Space::kShared) return false;
    return p.write && !access.write && OfAll(p, stmt, access, &Encounters::BySameThreads);
  }

  bool Conflict(const Pending& p, const Stmt& stmt, const Access& access) const {
    if (special_.in_rings.contains(p.buffer) || special_.in_rings.contains(access.buffer)) return false;
    if (p.met > 0) return false;
    if (divergent_ == 0 && AreOrdered(module_, special_, *p.stmt, p.buffer, stmt, access.buffer)) return true;
    if (!p.write && !access.write) return false;
    if (!Overlap(module_, p.buffer, access.buffer)) return false;
    if (p.buffer != access.buffer) return true;
    if (p.within_group || (p.write && access.write && (Commute(*p.stmt, stmt) || (divergent_ > 0 && AreAtomics(*p.stmt, stmt))))) return false;
    // A statement that runs again writes the same elements with the same threads.
    const bool same = module_[p.buffer].space == Space::kGlobal && p.write && access.write && p.stmt == &stmt;
    if (same && !MayMeetItself(digits_, access, loops_)) return false;
    if (AreElementsApart(indices_, *p.stmt, Accesses(*p.stmt), p.write, stmt, access)) return false;
    // Another statement may be other threads'.
    const ir::ThreadRange& threads = p.stmt == &stmt ? scopes_.back() : scopes_.front();
    if (divergent_ > 0 && HaveTheSameThread(digits_, threads, *p.stmt, Accesses(*p.stmt), p.write, stmt, access)) return false;
    if (p.stmt != &stmt && OfAll(p, stmt, access, &Encounters::Apart)) return false;
    if (special_.signals && IsBy(p, scopes_.back()) && AreElementsKnown(p, stmt, access)) return false;
    const std::optional<Version> version = VersionOf(module_, access, loops_);
    if (!version || !p.version || version->var != p.version->var || version->modulus != p.version->modulus) return true;
    return (version->offset - p.version->offset) % version->modulus == 0;
  }

  // Where both touch the element of the same indices: it is another one in another iteration, or it belongs to one thread.
  bool AreElementsKnown(const Pending& p, const Stmt& stmt, const Access& access) const {
    if (module_[p.buffer].space != Space::kShared || !HaveTheSameIndices(*p.stmt, Accesses(*p.stmt), p.write, stmt, access)) return false;
    const std::optional<ir::VarId> loop = p.crossed == 0 ? std::nullopt : nest_[size_t(p.crossed - 1)];
    if (loop && digits_.TellIteration(access.indices, *loop, scopes_.back())) return true;
    return p.age == kDone && digits_.TellThread(access.indices, scopes_.back());
  }

  void Repeat(const Stmt& stmt, const Block& body, std::optional<ir::VarId> var, State& state) {
    Visited::Piece& loop = visited_.Loop(stmt);
    if (IsLate()) visited_.AddEarlier(loop, state);
    visited_.Again(loop, state, [&] { return Iterate(body, var, state), !IsDecided(); });
  }

  // So many visits that loops must not multiply them.
  bool IsLate() const { return visits_ > most_exact_; }

  // At the limit, or once the given needs are known not to be enough: the rest of the visits changes nothing.
  bool IsDecided() const { return beyond_ != nullptr || !met_; }

  // Visits the body until what it leaves pending no longer changes; `state` is then what may be pending after zero or more iterations.
  void Iterate(const Block& body, std::optional<ir::VarId> var, State& state) {
    if (var) loops_.insert(*var);
    nest_.push_back(var);
    const int depth = int(nest_.size());
    const State entry = AtFirst(state, var);
    State merged = entry;
    const size_t outside = order_.size();
    State left;
    for (bool first = true;; first = false) {
      State after = merged;
      const size_t before = order_.size();
      const bool raised = std::exchange(raised_, false);
      exits_.emplace_back();
      Visit(body, after);
      const Exits exits = std::move(exits_.back());
      exits_.pop_back();
      after.insert(after.end(), exits.by_continue.begin(), exits.by_continue.end());
      left.insert(left.end(), exits.by_break.begin(), exits.by_break.end());
      const bool changed = order_.size() != before || raised_;
      raised_ |= raised;
      if (!first && order_.size() != before)
        doubtful_.insert(doubtful_.end(), order_.begin() + ptrdiff_t(outside), order_.begin() + ptrdiff_t(before));
      SeeFromNext(after, var);
      if (special_.signals) Cross(after, depth);
      State next = entry;
      next.insert(next.end(), after.begin(), after.end());
      Normalize(next);
      if ((next == merged && !changed) || IsDecided()) break;
      merged = std::move(next);
    }
    merged.insert(merged.end(), left.begin(), left.end());
    Forget(merged, var);
    ForgetCrossings(merged, depth);
    nest_.pop_back();
    state.insert(state.end(), merged.begin(), merged.end());
    Normalize(state);
  }

  const ir::Module& module_;
  const bool by_memory_, by_copies_;
  const Encounters encounters_;
  const Divergence divergence_;
  const Digits digits_;
  const IndexSteps indices_;
  mutable std::unordered_map<const Stmt*, std::vector<Access>> accesses_;
  Lift::Needs needs_;
  Lift::Causes causes_;
  Visited visited_;
  Special special_;
  Unreleased unreleased_;
  std::set<const Stmt*> after_copies_, after_accesses_;  // arrivals
  std::vector<const Stmt*> order_;                       // needs as they were found
  std::vector<const Stmt*> doubtful_;                    // needs that a later iteration of their loop may have covered
  bool raised_ = false;                                  // a need grew, e.g. from a barrier to a wait and a barrier
  struct Exits {
    State by_break, by_continue;
  };
  std::vector<Exits> exits_;             // of the loops around
  int divergent_ = 0;                    // enclosing conditions that differ between threads, within the last scope
  std::vector<ir::ThreadRange> scopes_;  // threads of the kernel's body, then of each enclosing branch that narrows them
  int64_t visits_ = 0, limit_ = 0, most_exact_ = 0;
  const Stmt* beyond_ = nullptr;  // where the limit was reached
  const Stmt* endless_ = nullptr;
  bool fixed_ = false;  // needs are given; only check whether they are enough
  bool met_ = true;
  std::set<ir::VarId> loops_;                   // serial loops entered so far
  std::vector<std::optional<ir::VarId>> nest_;  // those around; nullopt: it has no variable
};

}  // namespace

ir::Result Synchronize(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  for (ir::Kernel& kernel : module.kernels) {
    TestReadsInside(module, kernel.body);
    const bool by_memory = context.target->Has(target::Feature::kFencesByMemory);
    Analysis analysis(module, kernel, by_memory, context.target->Has(target::Feature::kTma));
    analysis.Run(kernel.body);
    if (const Stmt* stmt = analysis.endless(); stmt != nullptr) {
      diagnostics.Unsupported("the loops are nested too deeply, or too many accesses lie between barriers, to find where threads have to wait",
                              "split some of the loops, or merge two nested loops into one", stmt->loc, ir::PrintStmt(module, *stmt).substr(0, 400));
    }
    if (diagnostics.HasErrors()) return std::unexpected(ir::Failed{});
    WarnOfUnreleased(module, analysis.unreleased(), diagnostics);
    InsertNeeds(kernel, kernel.body, analysis.needs());
    BindBarriers(module, kernel, *context.target, diagnostics);
    CountBlocks(module, kernel, *context.target, diagnostics);
    if (diagnostics.HasErrors()) return std::unexpected(ir::Failed{});
  }
  return {};
}

}  // namespace kiln::compiler
