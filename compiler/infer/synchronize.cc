// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/synchronize.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/facts.h"
#include "compiler/infer/shared_memory.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::Space;
using ir::Stmt;

// Which version of a rotating buffer an access uses: (var + offset) mod modulus, or offset alone without a variable.
struct Version {
  std::optional<ir::VarId> var;
  int64_t offset;
  int64_t modulus;
  auto operator<=>(const Version&) const = default;
};

// An access since the last barrier. `age` of an async write: −1 issued, n committed with n groups behind it; kDone: landed, or an
// ordinary access.
constexpr int kDone = 1 << 20;
struct Pending {
  BufferId buffer;
  bool write;
  std::optional<Version> version;
  int age;
  const Stmt* stmt;
  auto operator<=>(const Pending&) const = default;
};
using State = std::vector<Pending>;  // sorted, unique

void Normalize(State& state) {
  std::ranges::sort(state);
  state.erase(std::ranges::unique(state).begin(), state.end());
}

class Analysis {
 public:
  explicit Analysis(const ir::Module& module) : module_(module) {}

  // Finds what the kernel needs; then drops what others cover. In program order nothing is: a barrier stands as late as it can. But
  // what one iteration asked for may be covered by what the next one asks for further up.
  void Run(const Block& body) {
    State state;
    Visit(body, state);
    fixed_ = true;
    for (const Stmt* stmt : std::exchange(doubtful_, {})) {
      const auto known = needs_.find(stmt);
      if (known == needs_.end()) continue;
      const int need = known->second;
      needs_.erase(known);
      if (!Holds(body)) needs_[stmt] = need;
    }
  }

  void Visit(const Block& block, State& state) {
    for (const Stmt& stmt : block) VisitStmt(stmt, state);
  }

  // What to insert before a statement: 1 a barrier, 2 also a wait for all async copies.
  const std::map<const Stmt*, int>& needs() const { return needs_; }

 private:
  void VisitStmt(const Stmt& stmt, State& state) {
    std::visit(ir::Overloaded{
                   [&](const ir::Barrier&) { Clear(state); },
                   [&](const ir::AsyncCommit&) {
                     for (Pending& p : state)
                       if (p.age != kDone) ++p.age;
                   },
                   [&](const ir::AsyncWait& wait) {
                     for (Pending& p : state)
                       if (p.age >= wait.pending) p.age = kDone;
                   },
                   [&](const ir::For& loop) {
                     if (loop.kind == ir::LoopKind::kParallel) return Simple(stmt, state);
                     Meet(stmt, Accesses(stmt), state);
                     Repeat(loop.body, loop.vars.front(), state);
                   },
                   [&](const ir::While& loop) {
                     Meet(stmt, Accesses(stmt), state);
                     Repeat(loop.body, std::nullopt, state);
                   },
                   [&](const ir::If& branch) {
                     std::vector<Access> all = Accesses(stmt);
                     FirstAccesses(branch.then_body, all);
                     FirstAccesses(branch.else_body, all);
                     Meet(stmt, all, state, /*record=*/false);
                     State other = state;
                     Visit(branch.then_body, state);
                     Visit(branch.else_body, other);
                     state.insert(state.end(), other.begin(), other.end());
                     Normalize(state);
                   },
                   [&](const ir::Reduce& reduce) {
                     Simple(stmt, state);
                     if (!reduce.scratch) return;
                     Meet(stmt, {{*reduce.scratch, true, false, {}, true, {}, {}}}, state, /*record=*/false);
                     Clear(state);  // the reduction's own barrier
                     Record(stmt, {*reduce.scratch, false, false, {}, true, {}, {}}, state);
                   },
                   [&](const auto&) { Simple(stmt, state); },
               },
               stmt.op);
  }

  const std::vector<Access>& Accesses(const Stmt& stmt) const {
    auto [it, added] = accesses_.try_emplace(&stmt);
    if (added) it->second = AccessesOf(module_, stmt);
    return it->second;
  }

  bool Holds(const Block& body) {
    met_ = true;
    State state;
    Visit(body, state);
    return met_;
  }

  void Simple(const Stmt& stmt, State& state) { Meet(stmt, Accesses(stmt), state); }

  // Everything a branch may touch before its first own barrier; all of it, to be safe.
  void FirstAccesses(const Block& block, std::vector<Access>& all) const {
    ir::Walk(block, [&](const Stmt& stmt) { std::ranges::copy(Accesses(stmt), std::back_inserter(all)); });
  }

  void Meet(const Stmt& stmt, const std::vector<Access>& accesses, State& state, bool record = true) {
    int need = 0;
    for (const Access& access : accesses)
      for (const Pending& p : state)
        if (Conflict(p, stmt, access)) need = std::max(need, p.age == kDone ? 1 : 2);
    if (need == 2) {
      for (Pending& p : state) p.age = kDone;
    }
    if (need > 0 && fixed_) {
      const auto it = needs_.find(&stmt);
      met_ &= it != needs_.end() && it->second >= need;
    } else if (need > 0) {
      const auto [it, added] = needs_.try_emplace(&stmt, need);
      raised_ |= it->second < need;
      it->second = std::max(it->second, need);
      if (added) order_.push_back(&stmt);
    }
    // A need found on another path holds on this one too.
    if (const auto it = needs_.find(&stmt); it != needs_.end()) Clear(state);
    for (const Access& access : accesses)
      if (record) Record(stmt, access, state);
  }

  void Record(const Stmt& stmt, const Access& access, State& state) {
    const Space space = module_[access.buffer].space;
    if (space != Space::kShared && space != Space::kGlobal) return;
    state.push_back({access.buffer, access.write, VersionOf(access), access.async ? -1 : kDone, &stmt});
    Normalize(state);
  }

  static void Clear(State& state) {
    std::erase_if(state, [](const Pending& p) { return p.age == kDone; });
  }

  bool Conflict(const Pending& p, const Stmt& stmt, const Access& access) const {
    if (!p.write && !access.write) return false;
    if (!Overlap(p.buffer, access.buffer)) return false;
    if (p.buffer != access.buffer) return true;
    // One statement writes what it wrote before with the same threads.
    if (module_[p.buffer].space == Space::kGlobal && p.write && access.write && p.stmt == &stmt) return false;
    const std::optional<Version> version = VersionOf(access);
    if (!version || !p.version || version->var != p.version->var || version->modulus != p.version->modulus) return true;
    return (version->offset - p.version->offset) % version->modulus == 0;
  }

  bool Overlap(BufferId a, BufferId b) const {
    if (a == b) return module_[a].space == Space::kShared || module_[a].space == Space::kGlobal;
    const ir::Buffer &x = module_[a], &y = module_[b];
    if (x.space != Space::kShared || y.space != Space::kShared || !x.shared_offset || !y.shared_offset) return false;
    return *x.shared_offset < *y.shared_offset + SharedBytes(y) && *y.shared_offset < *x.shared_offset + SharedBytes(x);
  }

  std::optional<Version> VersionOf(const Access& access) const {
    const ir::Buffer& buffer = module_[access.buffer];
    if (buffer.space != Space::kShared || access.indices.empty()) return std::nullopt;
    if (access.tile && (access.extents.empty() || access.extents.front() != 1)) return std::nullopt;
    const std::optional<int64_t> modulus = module_.exprs.ConstInt(buffer.shape.front());
    if (!modulus || *modulus < 2) return std::nullopt;
    const Linear index = LinearOf(module_.exprs, access.indices.front());
    if (index.terms.empty()) return Version{std::nullopt, index.constant, *modulus};
    if (index.terms.size() != 1 || index.terms.begin()->second != 1 || index.constant != 0) return std::nullopt;
    const ir::ExprNode& node = module_.exprs[ir::ExprId(index.terms.begin()->first)];
    if (node.op != ir::ExprOp::kFloorMod || module_.exprs.ConstInt(node.args[1]) != modulus) return std::nullopt;
    const Linear inner = LinearOf(module_.exprs, node.args[0]);
    if (inner.terms.size() != 1 || inner.terms.begin()->second != 1) return std::nullopt;
    const ir::ExprNode& term = module_.exprs[ir::ExprId(inner.terms.begin()->first)];
    if (term.op != ir::ExprOp::kVar || !loops_.contains(ir::VarId(term.ref))) return std::nullopt;
    return Version{ir::VarId(term.ref), inner.constant, *modulus};
  }

  // The body until what it leaves behind no longer changes; then what may be pending after zero or more iterations.
  void Repeat(const Block& body, std::optional<ir::VarId> var, State& state) {
    if (var) loops_.insert(*var);
    // The first iteration has var = 0: fixed versions are versions relative to it.
    State entry = state;
    for (Pending& p : entry)
      if (p.version && !p.version->var && var) p.version->var = var;
    Normalize(entry);
    State merged = entry;
    const size_t outside = order_.size();
    for (bool first = true;; first = false) {
      State after = merged;
      const size_t before = order_.size();
      const bool raised = std::exchange(raised_, false);
      Visit(body, after);
      const bool changed = order_.size() != before || raised_;
      raised_ |= raised;
      if (!first && order_.size() != before) doubtful_.insert(doubtful_.end(), order_.begin() + ptrdiff_t(outside), order_.begin() + ptrdiff_t(before));
      // Seen from the next iteration, version offsets are one less.
      for (Pending& p : after) {
        if (!p.version || !p.version->var) continue;
        if (p.version->var == var) {
          p.version->offset = (p.version->offset - 1 + p.version->modulus) % p.version->modulus;
        }
      }
      for (Pending& p : after) p.age = p.age == kDone ? kDone : std::min(p.age, kMaxAge);
      State next = entry;
      next.insert(next.end(), after.begin(), after.end());
      Normalize(next);
      if (next == merged && !changed) break;
      merged = std::move(next);
    }
    // After the loop the variable means nothing any more.
    for (Pending& p : merged)
      if (p.version && p.version->var == var) p.version.reset();
    state.insert(state.end(), merged.begin(), merged.end());
    Normalize(state);
  }

  // No wait looks further back.
  static constexpr int kMaxAge = 64;

  const ir::Module& module_;
  mutable std::unordered_map<const Stmt*, std::vector<Access>> accesses_;
  std::map<const Stmt*, int> needs_;
  std::vector<const Stmt*> order_;     // needs as they were found
  std::vector<const Stmt*> doubtful_;  // those that a later iteration of their loop may have covered
  bool raised_ = false;                // a need grew from a barrier to a wait and a barrier
  bool fixed_ = false;              // needs are given: say whether they are enough
  bool met_ = true;
  std::set<ir::VarId> loops_;  // serial loops entered so far
};

void Insert(Block& block, const std::map<const Stmt*, int>& needs) {
  Block result;
  for (Stmt& stmt : block) {
    if (const auto it = needs.find(&stmt); it != needs.end()) {
      if (it->second == 2) result.push_back({ir::AsyncWait{0}, stmt.loc});
      result.push_back({ir::Barrier{}, stmt.loc});
    }
    if (auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind != ir::LoopKind::kParallel) Insert(loop->body, needs);
    if (auto* loop = std::get_if<ir::While>(&stmt.op)) Insert(loop->body, needs);
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) Insert(branch->then_body, needs), Insert(branch->else_body, needs);
    result.push_back(std::move(stmt));
  }
  block = std::move(result);
}

}  // namespace

ir::Result Synchronize(ir::Module& module, const Context&, ir::Diagnostics&) {
  for (ir::Kernel& kernel : module.kernels) {
    Analysis analysis(module);
    analysis.Run(kernel.body);
    Insert(kernel.body, analysis.needs());
  }
  return {};
}

}  // namespace kiln::compiler
