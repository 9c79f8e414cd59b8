// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/of_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "ir/op.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

class Iterations {
 public:
  Iterations(const ir::Module& module, const ThreadSets& sets, const ir::ThreadRange& threads, ir::Diagnostics& diagnostics)
      : module_(module), sets_(sets), threads_(threads), diagnostics_(diagnostics) {}

  void Run(const ir::For& loop) {
    variables_.insert(loop.vars.begin(), loop.vars.end());
    ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) lets_.emplace(let->var, let->value);
      if (const auto* inner = std::get_if<ir::For>(&stmt.op)) variables_.insert(inner->vars.begin(), inner->vars.end());
      if (const auto* store = std::get_if<ir::Store>(&stmt.op)) written_.insert(store->buffer);
      if (const auto* atomic = std::get_if<ir::Atomic>(&stmt.op); atomic != nullptr && atomic->old) written_.insert(atomic->old->buffer);
    });
    Visit(loop.body);
  }

 private:
  void Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      if (told_) return;
      if (const auto* store = std::get_if<ir::Store>(&stmt.op)) {
        Check(stmt, store->buffer, store->indices, {store->value});
        CheckPlace(stmt, *store);
      }
      if (const auto* atomic = std::get_if<ir::Atomic>(&stmt.op)) {
        std::vector<ExprId> values;
        if (atomic->TakesValue()) values.push_back(atomic->value);
        if (atomic->Compares()) values.push_back(atomic->compare);
        Check(stmt, atomic->buffer, atomic->indices, values);
      }
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) masks_.push_back(branch->cond);
      ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Visit(body); });
      if (std::holds_alternative<ir::If>(stmt.op)) masks_.pop_back();
    }
  }

  void Check(const ir::Stmt& stmt, ir::BufferId buffer, const std::vector<ExprId>& indices, const std::vector<ExprId>& values) {
    if (module_[buffer].space == ir::Space::kLocal) return;
    if (std::ranges::any_of(indices, [&](ExprId index) { return IsOfThread(index); })) return;
    if (std::ranges::none_of(indices, [&](ExprId index) { return IsOfIteration(index); })) return;
    std::optional<ExprId> differs;
    for (const ExprId value : values)
      if (IsOfThread(value)) differs = value;
    for (const ExprId mask : masks_)
      if (IsOfThread(mask)) differs = mask;
    if (!differs) return;
    told_ = true;
    diagnostics_.Warning(fmt::format("%{} gets an element in each iteration of a parallel loop, and {} depends on the thread that runs the "
                                     "iteration: which one does is the compiler's choice",
                                     ir::Names(module_).Of(buffer), ir::PrintExpr(module_, *differs)),
                         "compute it from the loop's variables alone, not from the thread's number", stmt.loc);
  }

  // Of iterations that others run, nothing is stored in a thread's place. A sum in that place adds up over all threads.
  void CheckPlace(const ir::Stmt& stmt, const ir::Store& store) {
    if (told_ || module_[store.buffer].space == ir::Space::kLocal) return;
    const auto differs = std::ranges::find_if(store.indices, [&](ExprId index) { return IsOfThread(index); });
    if (differs == store.indices.end() || std::ranges::none_of(store.indices, [&](ExprId index) { return IsOfIteration(index); })) return;
    const std::vector<ExprId> loads = ir::LoadsOf(module_.exprs, store.value);
    if (std::ranges::any_of(loads, [&](ExprId load) { return ir::BufferId(module_.exprs[load].ref) == store.buffer; })) return;
    told_ = true;
    diagnostics_.Warning(fmt::format("each iteration of a parallel loop stores to %{} where {} says, which depends on the thread that runs the "
                                     "iteration: which one does is the compiler's choice",
                                     ir::Names(module_).Of(store.buffer), ir::PrintExpr(module_, *differs)),
                         "let the loop's variables alone say where to store, or let each thread run all iterations (T.serial)", stmt.loc);
  }

  // Whether threads may see different values, whatever the iteration.
  bool IsOfThread(ExprId id) {
    if (const auto it = of_thread_.find(ir::Index(id)); it != of_thread_.end()) return it->second;
    const bool of_thread = Find(id);
    of_thread_.emplace(ir::Index(id), of_thread);
    return of_thread;
  }

  bool Find(ExprId id) {
    if (sets_.Agree(id, threads_)) return false;
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kVar) {
      const auto let = lets_.find(ir::VarId(node.ref));
      return let == lets_.end() || IsOfThread(let->second);
    }
    if (node.op == ExprOp::kLoad && IsOwn(ir::BufferId(node.ref))) return true;
    return std::ranges::any_of(node.Args(), [&](ExprId arg) { return IsOfThread(arg); });
  }

  bool IsOwn(ir::BufferId buffer) const {
    return module_[buffer].space == ir::Space::kLocal && !written_.contains(buffer) && !sets_.Agree(buffer, threads_);
  }

  bool IsOfIteration(ExprId id) {
    const auto [it, first] = of_iteration_.emplace(ir::Index(id), false);
    bool& of_iteration = it->second;
    if (!first) return of_iteration;
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kVar) {
      const auto let = lets_.find(ir::VarId(node.ref));
      return of_iteration = let == lets_.end() ? variables_.contains(ir::VarId(node.ref)) : IsOfIteration(let->second);
    }
    return of_iteration = std::ranges::any_of(node.Args(), [&](ExprId arg) { return IsOfIteration(arg); });
  }

  const ir::Module& module_;
  const ThreadSets& sets_;
  const ir::ThreadRange threads_;
  ir::Diagnostics& diagnostics_;
  std::set<ir::VarId> variables_;
  std::map<ir::VarId, ExprId> lets_;  // of the loop's iterations
  std::set<ir::BufferId> written_;    // in them
  std::vector<ExprId> masks_;         // around
  std::unordered_map<uint32_t, bool> of_thread_, of_iteration_;
  bool told_ = false;
};

}  // namespace

void WarnOfThread(const ir::Module& module, const ir::For& loop, const ThreadSets& sets, const ir::ThreadRange& threads,
                  ir::Diagnostics& diagnostics) {
  Iterations(module, sets, threads, diagnostics).Run(loop);
}

void WarnOfCopies(const ir::Module& module, const ir::Stmt& stmt, const Divergence& divergence, const ThreadSets& sets,
                  const ir::ThreadRange& threads, bool some, ir::Diagnostics& diagnostics) {
  const auto* store = std::get_if<ir::Store>(&stmt.op);
  if (store == nullptr || !divergence.IsExchanged(store->buffer) || threads.Count() == 1) return;
  // A thread that writes an element of its own writes it for all (compiler/mapping/layouts/stage.h).
  if (!std::ranges::all_of(store->indices, [&](ExprId index) { return sets.Agree(index, threads); })) return;
  const bool differs = !sets.Agree(store->value, threads);
  if (!some && !differs) return;
  const std::string name = ir::Names(module).Of(store->buffer);
  diagnostics.Warning(
      fmt::format("every thread holds a copy of this element of %{}, and {}: {} read %{}, and whose copy they read is the compiler's choice", name,
                  differs ? fmt::format("{} may differ between them", ir::PrintExpr(module, store->value)) : "only some store it",
                  divergence.IsReadTogether(store->buffer) ? "statements that the threads do together" : "other threads", name),
      "keep what is each thread's own in a local (T.alloc_local), or put it where the threads exchange it (T.alloc_shared)", stmt.loc);
}

namespace {

// Elements of shared memory that the threads of a branch access, whatever happens, by which statement.
struct Touched {
  const ir::Stmt* stmt;
  bool write;
};
using Elements = std::map<std::pair<ir::BufferId, std::vector<int64_t>>, Touched>;

std::optional<std::vector<int64_t>> PlaceOf(const ThreadSets& sets, const std::vector<ir::ExprId>& indices, uint32_t thread) {
  std::vector<int64_t> place;
  for (const ir::ExprId index : indices) {
    const std::optional<int64_t> at = sets.At(index, thread);
    if (!at) return std::nullopt;
    place.push_back(*at);
  }
  return place;
}

Elements ElementsOf(const ir::Module& module, const ir::Block& block, const ThreadSets& sets, const ir::ThreadRange& threads) {
  constexpr size_t kMostStatements = 32;
  Elements elements;
  for (const ir::Stmt& stmt : std::span(block).first(std::min(block.size(), kMostStatements))) {
    if (!ir::IsOneOf<ir::Let, ir::Store>(stmt.op)) continue;
    for (const Access& access : AccessesOf(module, stmt)) {
      if (access.tile || access.mask || module[access.buffer].space != ir::Space::kShared) continue;
      for (uint32_t thread = threads.begin; thread < threads.end; ++thread) {
        const auto place = PlaceOf(sets, access.indices, thread);
        if (!place) break;
        const auto [at, added] = elements.try_emplace({access.buffer, *place}, Touched{&stmt, access.write});
        if (!added && access.write && !at->second.write) at->second = {&stmt, true};
      }
    }
  }
  return elements;
}

}  // namespace

void WarnOfBranches(const ir::Module& module, const ir::If& branch, const ThreadSets& sets, const ir::ThreadRange& threads,
                    ir::Diagnostics& diagnostics) {
  if (branch.then_body.empty() || branch.else_body.empty()) return;
  const auto some = sets.Where(branch.cond, true, threads), others = sets.Where(branch.cond, false, threads);
  if (!some || !others) return;
  const Elements first = ElementsOf(module, branch.then_body, sets, *some);
  if (first.empty()) return;
  for (const auto& [place, touched] : ElementsOf(module, branch.else_body, sets, *others)) {
    const auto other = first.find(place);
    if (other == first.end() || !(touched.write || other->second.write)) continue;
    const ir::Stmt &write = other->second.write ? *other->second.stmt : *touched.stmt,
                   &use = other->second.write ? *touched.stmt : *other->second.stmt;
    diagnostics.Warning(fmt::format("threads of one branch write elements of '{}', and those of the other branch of this condition, which run at the "
                                    "same time, use them; nothing says which comes first",
                                    module[place.first].name),
                        fmt::format("write them in front of the condition, or use them behind it: {}", ir::PrintStmt(module, use).substr(0, 200)),
                        write.loc);
    return;
  }
}

}  // namespace kiln::compiler
