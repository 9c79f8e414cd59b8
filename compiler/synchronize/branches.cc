// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/branches.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "compiler/synchronize/statements.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

class First {
 public:
  First(bool signals, const std::function<const std::vector<Access>&(const ir::Stmt&)>& accesses_of) : signals_(signals), accesses_of_(accesses_of) {}

  void Add(const ir::Stmt& stmt, const Comers& who) {
    if (all_.empty() || !all_.back().who.IsSame(who)) all_.push_back({who, {}});
    std::ranges::copy(accesses_of_(stmt), std::back_inserter(all_.back().accesses));
  }

  void AddWithin(const ir::Stmt& stmt, const Comers& who) {
    const auto* branch = std::get_if<ir::If>(&stmt.op);
    if (!signals_ || branch == nullptr) return ir::ForEachBody(stmt.op, [&](const ir::Block& block) { AddBlock(block, who); });
    const auto enter = [&](const ir::Block& block, const std::optional<ir::ThreadRange>& threads) {
      AddBlock(block, threads ? Comers{*threads, who.branch ? who.branch : threads} : who);
    };
    enter(branch->then_body, branch->then_threads);
    enter(branch->else_body, branch->else_threads);
  }

  std::vector<Coming> Take() { return std::move(all_); }

 private:
  void AddBlock(const ir::Block& block, const Comers& who) {
    for (const ir::Stmt& stmt : block) {
      Add(stmt, who);
      if (const std::optional<ir::BufferId> scratch = ScratchOf(stmt)) all_.back().accesses.push_back(Whole(*scratch, /*write=*/true));
      AddWithin(stmt, who);
    }
  }

  const bool signals_;
  const std::function<const std::vector<Access>&(const ir::Stmt&)>& accesses_of_;
  std::vector<Coming> all_;
};

}  // namespace

std::vector<Coming> FirstAccesses(const ir::Stmt& stmt, const ir::ThreadRange& threads, bool signals,
                                  const std::function<const std::vector<Access>&(const ir::Stmt&)>& accesses_of) {
  First first(signals, accesses_of);
  first.Add(stmt, {threads});
  first.AddWithin(stmt, {threads});
  return first.Take();
}

std::optional<Need> NeedOfArrivals(const ir::If& branch, bool by_memory, const State& pending) {
  std::optional<Need> need;
  for (const bool then : {true, false}) {
    const std::optional<ir::ThreadRange>& threads = then ? branch.then_threads : branch.else_threads;
    bool arrives = false;
    ir::Walk(then ? branch.then_body : branch.else_body, [&](const ir::Stmt& stmt) { arrives |= std::holds_alternative<ir::Arrive>(stmt.op); });
    if (!arrives) continue;
    if (!need) need.emplace();
    for (const Pending& p : pending) {
      const bool theirs = threads && (IsBy(p, *threads) || AreApart(p, *threads));
      if (p.met > 0 || p.released || theirs) continue;
      need->Add({Need::kBarrier | (by_memory ? Need::kGlobal : 0)});
      need->Add(WaitFor(p));
    }
  }
  return need;
}

void NoteAwaiting(const ir::Block& body, const ir::ThreadRange& threads, State& pending) {
  bool awaits = false;
  std::unordered_set<const ir::Stmt*> inside;
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    awaits |= std::holds_alternative<ir::Await>(stmt.op);
    inside.insert(&stmt);
  });
  if (!awaits) return;
  for (Pending& p : pending) p.awaiting |= IsBy(p, threads) && inside.contains(p.stmt);
}

void NoteUnreleased(Unreleased& unreleased, const Pending& write, const ir::Stmt& use) {
  const auto [at, added] = unreleased.try_emplace(write.buffer, write.stmt, &use);
  const auto place = [](const ir::Stmt& stmt) { return std::pair(stmt.loc.file, stmt.loc.line); };
  if (!added && place(*write.stmt) < place(*at->second.first)) at->second = {write.stmt, &use};
}

void WarnOfUnreleased(const ir::Module& module, const Unreleased& unreleased, ir::Diagnostics& diagnostics) {
  for (const auto& [buffer, both] : unreleased) {
    diagnostics.Warning(
        fmt::format("threads of one branch write '{}', and threads of another, which run at the same time, use it; no arrival at a "
                    "barrier follows the write",
                    module[buffer].name),
        fmt::format("arrive at a barrier behind the write, and wait for it before: {}", ir::PrintStmt(module, *both.second).substr(0, 200)),
        both.first->loc);
  }
}

}  // namespace kiln::compiler
