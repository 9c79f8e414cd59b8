// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/lifetimes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/rules/reduce.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

class LifetimeFinder {
 public:
  LifetimeFinder(const ir::Module& module, const LifetimeOptions& options) : module_(module), options_(options) {}

  Lifetimes Of(const ir::Kernel& kernel) {
    const Firsts firsts = Visit(kernel.body);
    // The producers fill rings ahead of everything else, so rings live throughout the kernel.
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      if (const auto* step = std::get_if<ir::RingStep>(&stmt.op)) lifetimes_[step->ring.barriers] = {0, clock_};
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy != nullptr && copy->plan && copy->plan->ring) lifetimes_[copy->dst.buffer] = {0, clock_};
      // Another block of the cluster may write here at any time.
      const auto* reduce = std::get_if<ir::Reduce>(&stmt.op);
      if (reduce != nullptr && reduce->cluster) lifetimes_[*reduce->scratch] = {0, clock_};
      const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
      if (atomic != nullptr && atomic->block) lifetimes_[atomic->buffer] = {0, clock_};
      const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
      if (alloc != nullptr && !module_[alloc->buffer].arrivals.empty()) lifetimes_[alloc->buffer] = {0, clock_};
      if (copy != nullptr && copy->signals) lifetimes_[copy->dst.buffer] = {0, clock_};
    });
    // Where the program has barriers of its own, threads of one branch may be anywhere while those of another use a buffer.
    if (HasSignals(kernel)) {
      for (const BufferId buffer : in_branches_) lifetimes_[buffer] = {0, clock_};
    }
    for (const auto& [buffer, first] : firsts)
      if (options_.repeats && !first.writes_whole) lifetimes_.at(buffer) = {0, clock_};
    return {std::move(lifetimes_), std::move(outermost_), {0, clock_}};
  }

 private:
  // When a block of statements first touches a buffer, and whether it then writes the whole buffer.
  struct First {
    int64_t at;
    bool writes_whole;
  };
  using Firsts = std::map<BufferId, First>;

  Firsts Visit(const ir::Block& block) {
    Firsts firsts;
    for (size_t i = 0; i < block.size(); ++i) {
      const ir::Stmt& stmt = block[i];
      const int64_t start = clock_++;
      for (const Access& access : AccessesOf(module_, stmt)) Touch(access.buffer, start, WritesWhole(stmt, access.buffer), firsts);
      // Reductions that share one barrier use their scratch at the same time.
      for (const ir::Stmt& other : std::span(block).subspan(i, ExchangeTogether(std::span(block).subspan(i)))) {
        Touch(*std::get<ir::Reduce>(other.op).scratch, start, true, firsts);
      }
      if (const auto* sum = std::get_if<ir::PairSum>(&stmt.op); sum != nullptr && sum->scratch) Touch(*sum->scratch, start, true, firsts);
      const auto* branch = std::get_if<ir::If>(&stmt.op);
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      const auto* repeat = std::get_if<ir::While>(&stmt.op);
      const bool keeps = (branch != nullptr && branch->IsNarrowed()) || repeat != nullptr || (loop != nullptr && !IsOneStatement(*loop));
      const bool is_outermost = keeps && !std::exchange(kept_, kept_ || keeps);
      if (loop != nullptr) loops_.insert(loops_.end(), loop->vars.begin(), loop->vars.end());
      if (branch != nullptr) {
        const Firsts then = Visit(branch->then_body), otherwise = Visit(branch->else_body);
        Merge(then, /*always=*/false, firsts);
        Merge(otherwise, /*always=*/false, firsts);
        // The threads of the two branches run at the same time.
        if (branch->IsNarrowed()) KeepThrough(start, then), KeepThrough(start, otherwise);
      }
      if (repeat != nullptr) VisitLoop(stmt, repeat->body, start, /*apart=*/false, /*always=*/false, firsts);
      if (loop != nullptr && keeps) {
        const bool always = module_.exprs.ConstInt(loop->extents[0]).value_or(0) >= 1;
        VisitLoop(stmt, loop->body, start, options_.apart && IsInnermost(*loop), always, firsts);
      }
      if (!is_outermost) continue;
      kept_ = false;
      for (const ir::VarId var : std::exchange(loops_, {})) outermost_[var] = {start, clock_ - 1};
    }
    return firsts;
  }

  void VisitLoop(const ir::Stmt& stmt, const ir::Block& body, int64_t start, bool apart, bool always, Firsts& firsts) {
    const Firsts inside = Visit(body);
    for (const auto& [buffer, first] : inside) {
      Lifetime& life = lifetimes_.at(buffer);
      if (!first.writes_whole || life.first < start || apart) life.Add({start, clock_ - 1});
    }
    // What a condition reads is read again after each iteration.
    if (std::holds_alternative<ir::While>(stmt.op)) {
      for (const Access& access : AccessesOf(module_, stmt)) Touch(access.buffer, clock_ - 1, false, firsts);
    }
    Merge(inside, always, firsts);
  }

  // The buffers used since `start` live from then until now.
  void KeepThrough(int64_t start, const Firsts& inside) {
    for (const auto& [buffer, first] : inside) {
      lifetimes_.at(buffer).Add({start, clock_ - 1});
      in_branches_.insert(buffer);
    }
  }

  static void Merge(const Firsts& inside, bool always, Firsts& firsts) {
    for (const auto& [buffer, first] : inside) firsts.try_emplace(buffer, First{first.at, always && first.writes_whole});
  }

  void Touch(BufferId buffer, int64_t at, bool writes_whole, Firsts& firsts) {
    if (module_[buffer].space != ir::Space::kShared) return;
    firsts.try_emplace(buffer, First{at, writes_whole});
    auto [it, added] = lifetimes_.try_emplace(buffer, Lifetime{at, at});
    it->second.last = std::max(it->second.last, at);
  }

  // True of copies to the whole tile, and of loops over the whole tile that store to it and do not read it.
  bool WritesWhole(const ir::Stmt& stmt, BufferId buffer) const {
    if (module_[buffer].space != ir::Space::kShared) return false;
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) {
      return copy->dst.buffer == buffer && copy->dst.extents == module_.ShapeOf(buffer);
    }
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) return false;
    const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
    if (store == nullptr || store->buffer != buffer) return false;
    std::vector<Access> loads;
    CollectLoads(module_.exprs, store->value, loads);
    if (std::ranges::any_of(loads, [&](const Access& load) { return load.buffer == buffer; })) return false;
    const std::optional<Projection> projection = ProjectionOf(module_, *loop, store->indices);
    return projection && projection->Covers(*loop, module_, buffer);
  }

  const ir::Module& module_;
  const LifetimeOptions options_;
  std::map<BufferId, Lifetime> lifetimes_;
  std::set<BufferId> in_branches_;  // used under conditions that only some threads fulfil
  std::map<ir::VarId, Lifetime> outermost_;
  std::vector<ir::VarId> loops_;  // in the outermost statement that keeps alive what it uses, where there is one
  bool kept_ = false;
  int64_t clock_ = 0;
};

}  // namespace

void Lifetime::Add(const Lifetime& other) { first = std::min(first, other.first), last = std::max(last, other.last); }

bool IsInnermost(const ir::For& loop) {
  bool alone = loop.kind == ir::LoopKind::kSerial;
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    const auto* inner = std::get_if<ir::For>(&stmt.op);
    alone &= !std::holds_alternative<ir::While>(stmt.op) && (inner == nullptr || IsOneStatement(*inner));
  });
  return alone;
}

Lifetimes LifetimesOf(const ir::Module& module, const ir::Kernel& kernel, const LifetimeOptions& options) {
  return LifetimeFinder(module, options).Of(kernel);
}

}  // namespace kiln::compiler
