// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/own_elements.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "ir/expr/fold.h"
#include "ir/op.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kMostIterations = 4096, kMostNodes = 256;  // that are looked at: of a loop, of an element's indices

// By buffer, the statement of a parallel loop that set elements of which each thread has some. Nothing was written to the buffer since.
using Spread = std::map<ir::BufferId, const ir::Stmt*>;

// The element that a store writes in one iteration, where everything but the iteration is 0, and so is what lies beyond kMostNodes.
class Element {
 public:
  Element(const ir::Module& module, const std::map<ir::VarId, ir::ExprId>& lets) : module_(module), lets_(lets) {}

  void Set(ir::VarId var, int64_t value) { iteration_[var] = value; }

  bool NamesIteration() const { return names_; }  // of what Of was asked

  std::vector<int64_t> Of(const ir::Store& store) {
    known_.clear();
    nodes_ = 0;
    std::vector<int64_t> element;
    for (const ir::ExprId index : store.indices) element.push_back(Value(index).int_value);
    return element;
  }

 private:
  ir::ExprNode Value(ir::ExprId id) {
    if (const auto it = known_.find(id); it != known_.end()) return it->second;
    const ir::ExprNode value = Compute(module_.exprs[id]);
    return known_.emplace(id, value).first->second;
  }

  ir::ExprNode Compute(const ir::ExprNode& node) {
    if (node.op == ir::ExprOp::kConstInt || node.op == ir::ExprOp::kConstFloat) return node;
    const ir::ExprNode zero = ir::IsFloat(node.dtype) ? ir::ConstFloatNode(node.dtype, 0) : ir::ConstIntNode(node.dtype, 0);
    if (++nodes_ > kMostNodes) return zero;
    if (node.op == ir::ExprOp::kVar) {
      if (const auto var = iteration_.find(ir::VarId(node.ref)); var != iteration_.end()) {
        names_ = true;
        return ir::ConstIntNode(node.dtype, var->second);
      }
      const auto let = lets_.find(ir::VarId(node.ref));
      return let == lets_.end() ? zero : Value(let->second);
    }
    if (node.op == ir::ExprOp::kLoad) return zero;
    std::vector<ir::ExprNode> values;
    for (const ir::ExprId arg : node.Args()) values.push_back(Value(arg));
    std::vector<const ir::ExprNode*> args;
    for (const ir::ExprNode& value : values) args.push_back(&value);
    return ir::Fold(node, args).value_or(zero);
  }

  const ir::Module& module_;
  const std::map<ir::VarId, ir::ExprId>& lets_;
  std::map<ir::VarId, int64_t> iteration_;
  std::map<ir::ExprId, ir::ExprNode> known_;
  int64_t nodes_ = 0;
  bool names_ = false;
};

class Own {
 public:
  Own(const ir::Module& module, ir::Diagnostics& diagnostics) : module_(module), diagnostics_(diagnostics) {}

  // `threads`: come to the block.
  void Visit(const ir::Block& block, int64_t threads) {
    for (const ir::Stmt& stmt : block) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) {
        Iterations(*loop, threads);
        continue;
      }
      const std::vector<Access> accesses = AccessesOf(module_, stmt);
      for (const Access& access : accesses)
        if (!access.write) Read(access.buffer);
      for (const Access& access : accesses)
        if (access.write) spread_.erase(access.buffer);
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        VisitBranches(*branch, threads);
      } else {
        ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Visit(body, threads); });
      }
    }
  }

 private:
  void VisitBranches(const ir::If& branch, int64_t threads) {
    const Spread before = spread_;
    Visit(branch.then_body, branch.then_threads ? branch.then_threads->Count() : threads);
    Spread after = std::exchange(spread_, before);
    Visit(branch.else_body, branch.else_threads ? branch.else_threads->Count() : threads);
    const auto written = [&](const auto& set, const Spread& other) { return before.contains(set.first) && !other.contains(set.first); };
    std::erase_if(after, [&](const auto& set) { return written(set, spread_); });
    std::erase_if(spread_, [&](const auto& set) { return written(set, after); });
    spread_.insert(after.begin(), after.end());
  }

  void Read(ir::BufferId buffer) {
    const auto set = spread_.find(buffer);
    if (set == spread_.end() || !told_.insert(buffer).second) return;
    diagnostics_.Warning(
        fmt::format("iterations of a parallel loop set elements of %{}, an array of each thread's own, which threads read outside of "
                    "the loop: a thread has set those of its own iterations alone",
                    ir::Names(module_).Of(buffer)),
        "let each thread run all iterations (T.serial, T.unroll or T.vectorized)", set->second->loc);
  }

  void Iterations(const ir::For& loop, int64_t threads) {
    std::map<ir::VarId, ir::ExprId> lets;
    ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) lets[let->var] = let->value;
      const auto* store = std::get_if<ir::Store>(&stmt.op);
      if (store != nullptr && module_[store->buffer].space == ir::Space::kLocal && IsSpread(loop, *store, lets, threads)) {
        spread_.emplace(store->buffer, &stmt);
        return;
      }
      for (const Access& access : AccessesOf(module_, stmt))
        if (access.write) spread_.erase(access.buffer);
    });
  }

  // Whether the iterations set more elements than one thread runs iterations.
  bool IsSpread(const ir::For& loop, const ir::Store& store, const std::map<ir::VarId, ir::ExprId>& lets, int64_t threads) const {
    int64_t count = 1;
    for (const ir::ExprId extent : loop.extents) {
      const int64_t known = module_.exprs.ConstInt(extent).value_or(0);
      if (known <= 0 || known > kMostIterations / count) return false;
      count *= known;
    }
    Element element(module_, lets);
    std::set<std::vector<int64_t>> elements;
    const int64_t own = (count + threads - 1) / threads;
    for (int64_t i = 0; i < count && int64_t(elements.size()) <= own; ++i) {
      int64_t rest = i;
      for (size_t dim = loop.extents.size(); dim-- > 0;) {
        const int64_t extent = *module_.exprs.ConstInt(loop.extents[dim]);
        element.Set(loop.vars[dim], rest % extent);
        rest /= extent;
      }
      elements.insert(element.Of(store));
      if (!element.NamesIteration()) return false;
    }
    return int64_t(elements.size()) > own;
  }

  const ir::Module& module_;
  ir::Diagnostics& diagnostics_;
  Spread spread_;
  std::set<ir::BufferId> told_;
};

}  // namespace

void WarnOfOwnElements(const ir::Module& module, const ir::Kernel& kernel, ir::Diagnostics& diagnostics) {
  if (kernel.threads == 1) return;
  Own(module, diagnostics).Visit(kernel.body, kernel.threads);
}

}  // namespace kiln::compiler
