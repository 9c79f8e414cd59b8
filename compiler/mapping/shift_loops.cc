// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/shift_loops.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

// How the accesses of fragments use one variable: as index − variable, over a dimension of so many elements.
struct Use {
  Linear shift;
  ExprId index{};
  int64_t extent = 0;
  bool one_way = true;  // all accesses use it so

  bool operator==(const Use& other) const {
    return shift.constant == other.shift.constant && shift.terms == other.shift.terms && extent == other.extent;
  }
};

class Shifter {
 public:
  Shifter(ir::Module& module, ir::For& loop) : module_(module), loop_(loop) {
    ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
      const auto* inner = std::get_if<ir::For>(&stmt.op);
      if (inner != nullptr) inside_.insert(inner->vars.begin(), inner->vars.end());
    });
  }

  void Run(const ir::Stmt& stmt) {
    for (const Access& access : AccessesOf(module_, stmt)) {
      if (module_[access.buffer].space == ir::Space::kFragment && !access.tile) Note(access);
    }
    for (const auto& [v, use] : uses_)
      if (use.one_way && !use.shift.terms.empty() && IsOfPart(loop_.body, v)) Shift(v, use);
  }

 private:
  // Whether an iteration does nothing where its elements would lie outside of the fragment: whatever it does comes with an access to one of them, or
  // stands under a condition with such accesses.
  bool IsOfPart(const ir::Block& block, size_t v) const {
    if (std::ranges::any_of(block, [&](const ir::Stmt& stmt) { return Accesses(stmt, v); })) return true;
    return std::ranges::all_of(block, [&](const ir::Stmt& stmt) {
      if (!ir::IsOneOf<ir::If, ir::For, ir::While>(stmt.op)) return ir::IsOneOf<ir::Let, ir::Assume, ir::Alloc>(stmt.op);
      bool inside = true;
      ir::ForEachBody(stmt.op, [&](const ir::Block& body) { inside = inside && IsOfPart(body, v); });
      return inside;
    });
  }

  // Whether the statement itself accesses an element by the variable, whatever it chooses.
  bool Accesses(const ir::Stmt& stmt, size_t v) const {
    std::set<ExprId> evaluated;
    ir::ForEachExpr(stmt.op, [&](ExprId id) { AddEvaluated(id, evaluated); });
    return std::ranges::any_of(AccessesOf(module_, stmt), [&](const Access& access) {
      if (module_[access.buffer].space != ir::Space::kFragment || access.tile || (!access.write && !evaluated.contains(access.load))) return false;
      const ExprId var = module_.VarRef(loop_.vars[v]);
      return std::ranges::any_of(access.indices, [&](ExprId index) { return LinearOf(module_.exprs, index).terms.contains(ir::Index(var)); });
    });
  }

  // The parts of an expression that are evaluated whatever it chooses.
  void AddEvaluated(ExprId id, std::set<ExprId>& evaluated) const {
    if (!evaluated.insert(id).second) return;
    const ir::ExprNode& node = module_.exprs[id];
    const bool chooses = ir::Chooses(node.op) || node.op == ExprOp::kAnd || node.op == ExprOp::kOr;
    for (const ExprId arg : node.Args().first(chooses ? 1 : node.Args().size())) AddEvaluated(arg, evaluated);
  }

  void Note(const Access& access) {
    const std::vector<int64_t> shape = module_.ShapeOf(access.buffer);
    for (size_t d = 0; d < access.indices.size(); ++d) {
      Use use{LinearOf(module_.exprs, access.indices[d]), access.indices[d], shape[d]};
      std::optional<size_t> var;
      bool plain = true;
      for (const auto& [term, coefficient] : use.shift.terms) {
        const std::optional<size_t> v = LoopVar(ExprId(term));
        plain &= v ? !var && coefficient == 1 : IsOuterVar(ExprId(term));
        if (v) var = v;
      }
      if (!var) continue;
      use.shift.terms.erase(ir::Index(module_.VarRef(loop_.vars[*var])));
      use.one_way = plain;
      const auto [known, added] = uses_.try_emplace(*var, use);
      known->second.one_way &= plain && known->second == use;
    }
  }

  std::optional<size_t> LoopVar(ExprId term) const {
    const ir::ExprNode& node = module_.exprs[term];
    if (node.op != ExprOp::kVar) return std::nullopt;
    const auto it = std::ranges::find(loop_.vars, ir::VarId(node.ref));
    return it == loop_.vars.end() ? std::nullopt : std::optional(size_t(it - loop_.vars.begin()));
  }

  // A variable that has one value for all iterations and threads.
  bool IsOuterVar(ExprId term) const {
    const ir::ExprNode& node = module_.exprs[term];
    if (node.op != ExprOp::kVar || inside_.contains(ir::VarId(node.ref))) return false;
    const ir::VarKind kind = module_.vars[node.ref].kind;
    return kind != ir::VarKind::kThread && kind != ir::VarKind::kLet;
  }

  void Shift(size_t v, const Use& use) {
    ir::ExprPool& pool = module_.exprs;
    const ir::VarId old = loop_.vars[v], fresh = FreshVar(module_, ir::VarKind::kLoop, module_.vars[ir::Index(old)].dtype, "shifted");
    const ExprId zero = pool.Int(0, pool.Type(use.index));
    const ExprId shift = pool.Substitute(use.index, old, pool.Int(0, module_.vars[ir::Index(old)].dtype));
    const ExprId at = pool.Sub(pool.Cast(pool.Type(use.index), module_.VarRef(fresh)), shift);
    const ExprId extent = pool.Cast(pool.Type(use.index), loop_.extents[v]);
    const ExprId inside = pool.Make(ExprOp::kAnd, {pool.Make(ExprOp::kGe, {at, zero}), pool.Make(ExprOp::kLt, {at, extent})});
    Substitute(module_, loop_.body, old, pool.Cast(module_.vars[ir::Index(old)].dtype, at));
    ir::If part;
    part.cond = inside;
    part.then_body = std::exchange(loop_.body, {});
    loop_.body.push_back({std::move(part), {}});
    loop_.vars[v] = fresh;
    loop_.extents[v] = pool.Int(use.extent, pool.Type(loop_.extents[v]));
  }

  ir::Module& module_;
  ir::For& loop_;
  std::set<ir::VarId> inside_;  // variables of loops in the body
  std::map<size_t, Use> uses_;  // by variable of the loop
};

}  // namespace

void ShiftLoops(ir::Module& module, ir::Block& block) {
  ir::Walk(block, [&](ir::Stmt& stmt) {
    auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && loop->kind == ir::LoopKind::kParallel && !loop->layout) Shifter(module, *loop).Run(stmt);
  });
}

}  // namespace kiln::compiler
