// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/shared_bytes.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "compiler/analysis/facts.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;
using ir::Stmt;

using Stores = std::vector<const ir::Store*>;  // to one tensor

constexpr int64_t kUnbounded = int64_t{1} << 40;  // stands for the extent of a loop that is known only when it runs

class Iterations {
 public:
  Iterations(const ir::Module& module, const ir::For& loop, const Divergence& divergence) : module_(module), divergence_(divergence) {
    for (size_t v = 0; v < loop.vars.size(); ++v) {
      own_[ir::Index(loop.vars[v])] = module.exprs.ConstInt(loop.extents[v]).value_or(kUnbounded);
      changing_.insert(ir::Index(loop.vars[v]));
    }
    ir::Walk(loop.body, [&](const Stmt& stmt) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) changing_.insert(ir::Index(let->var));
      const auto* inner = std::get_if<ir::For>(&stmt.op);
      for (size_t v = 0; inner != nullptr && v < inner->vars.size(); ++v) {
        changing_.insert(ir::Index(inner->vars[v]));
        const std::optional<int64_t> extent = module.exprs.ConstInt(inner->extents[v]);
        if (extent && inner->kind != ir::LoopKind::kParallel) inner_[ir::Index(inner->vars[v])] = *extent;
      }
    });
  }

  // Whether all stores are to elements of even numbers, or all to those of odd ones: who stores to one byte then stores to one element.
  bool AreHalvesAlike(const Stores& stores) const {
    std::set<std::pair<std::set<uint32_t>, bool>> halves;  // what decides between them, the same in all iterations, and a constant
    for (const ir::Store* store : stores) {
      const Linear last = LinearOf(module_.exprs, store->indices.back());
      std::set<uint32_t> odd;
      for (const auto& [term, factor] : last.terms) {
        if (factor % 2 == 0) continue;
        if (Varies(ExprId(term))) return false;
        odd.insert(term);
      }
      halves.emplace(std::move(odd), last.constant % 2 != 0);
    }
    return halves.size() == 1;
  }

  // Whether the stores of two iterations are in different rows, or differ in the last index by more than those of one iteration.
  bool AreApart(const Stores& stores) const {
    const std::span rows(stores[0]->indices.begin(), stores[0]->indices.end() - 1);
    Linear place = LinearOf(module_.exprs, stores[0]->indices.back());
    int64_t first = place.constant, last = place.constant;  // what an iteration adds to a place, at least and at most
    for (const ir::Store* store : stores) {
      Linear at = LinearOf(module_.exprs, store->indices.back());
      const int64_t most = at.constant + Span(at, 0);
      if (!std::ranges::equal(rows, std::span(store->indices.begin(), store->indices.end() - 1))) return false;
      first = std::min(first, at.constant), last = std::max(last, most);
      if (store == stores[0]) place = at;
      if (at.terms != place.terms) return false;
    }
    if (std::ranges::any_of(place.terms, [](const auto& term) { return term.second % 2 != 0; })) return false;
    std::set<uint32_t> told;
    Tell(place, 2 * ((last >> 1) - (first >> 1) + 1), told);
    for (const ExprId row : rows) {
      Linear index = LinearOf(module_.exprs, row);
      const int64_t span = Span(index, 1);
      Tell(index, span, told);
    }
    return std::ranges::all_of(own_, [&](const auto& var) { return var.second == 1 || told.contains(var.first); });
  }

 private:
  // `least` and how far variables of inner loops, which it takes out, raise an index; kUnbounded where one lowers it.
  int64_t Span(Linear& index, int64_t least) const {
    for (auto term = index.terms.begin(); term != index.terms.end();) {
      const ExprNode& node = module_.exprs[ExprId(term->first)];
      const auto inner = node.op == ExprOp::kVar ? inner_.find(node.ref) : inner_.end();
      if (inner == inner_.end()) {
        ++term;
        continue;
      }
      least = term->second < 0 ? kUnbounded : std::min(kUnbounded, least + term->second * (inner->second - 1));
      term = index.terms.erase(term);
    }
    return least;
  }

  // Adds the loop's variables whose values an index tells, each of which covers `span` places.
  void Tell(const Linear& index, int64_t span, std::set<uint32_t>& told) const {
    std::vector<std::pair<int64_t, uint32_t>> by_factor;
    for (const auto& [term, factor] : index.terms) {
      const ExprNode& node = module_.exprs[ExprId(term)];
      if (node.op == ExprOp::kVar && own_.contains(node.ref)) {
        by_factor.emplace_back(std::abs(factor), node.ref);
      } else if (Varies(ExprId(term))) {
        return;
      }
    }
    std::ranges::sort(by_factor);
    for (const auto& [factor, var] : by_factor) {
      if (factor < span) return;
      span = std::min(kUnbounded, span + factor * std::min(kUnbounded / factor, own_.at(var) - 1));
    }
    for (const auto& [factor, var] : by_factor) told.insert(var);
  }

  // Whether an expression may differ between iterations, each of which some thread runs.
  bool Varies(ExprId id) const { return divergence_.Differs(id) || Changes(id); }

  bool Changes(ExprId id) const {
    const ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kLoad || (node.op == ExprOp::kVar && changing_.contains(node.ref))) return true;
    return std::ranges::any_of(node.Args(), [&](ExprId arg) { return Changes(arg); });
  }

  const ir::Module& module_;
  const Divergence& divergence_;
  std::map<uint32_t, int64_t> own_, inner_;  // the variables of the loop and of loops in it that count, and their extents
  std::set<uint32_t> changing_;              // all that may differ between iterations
};

}  // namespace

bool StoresAlone(const ir::Module& module, const ir::For& loop, const Divergence& divergence, const std::function<bool(BufferId)>& is_packed) {
  std::map<BufferId, Stores> stores;
  ir::Walk(loop.body, [&](const Stmt& stmt) {
    const auto* store = std::get_if<ir::Store>(&stmt.op);
    if (store != nullptr && is_packed(store->buffer)) stores[store->buffer].push_back(store);
  });
  const Iterations iterations(module, loop, divergence);
  return std::ranges::all_of(stores, [&](const auto& of) { return iterations.AreHalvesAlike(of.second) || iterations.AreApart(of.second); });
}

}  // namespace kiln::compiler
