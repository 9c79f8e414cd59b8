// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/canonicalize.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/leaves.h"
#include "compiler/front/degenerate.h"
#include "ir/expr/expr_size.h"
#include "ir/verify/verify.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;
using ir::Stmt;
using ir::VarId;

// A let of index arithmetic up to this size goes where it is used, so that affine analysis sees through it.
constexpr uint64_t kSmall = 24;
// An expression beyond this, counted as a tree, stays in pieces.
constexpr uint64_t kLarge = 512;
// So do the stores of an iteration that have more than this together.
constexpr uint64_t kRepeated = 128;

bool IsOneIteration(const ir::ExprPool& exprs, const ir::For& loop) {
  return loop.kind != ir::LoopKind::kParallel && loop.extents.size() == 1 && exprs.IsConst(loop.extents[0], 1);
}

bool NeverRuns(const ir::ExprPool& exprs, const ir::For& loop) {
  for (ExprId extent : loop.extents) {
    if (std::optional<int64_t> value = exprs.ConstInt(extent); value && *value <= 0) return true;
  }
  return false;
}

bool Leaves(const Stmt& stmt) { return std::holds_alternative<ir::Break>(stmt.op) || std::holds_alternative<ir::Continue>(stmt.op); }

// Forwards: substitutes, folds, and splices the bodies of what is decided into the block around it.
class Folder {
 public:
  explicit Folder(ir::Module& module) : module_(module), sizes_(module.exprs), bound_(module.vars.size()) {}

  Block Fold(Block block) {
    Block result;
    for (Stmt& stmt : block) {
      Append(std::move(stmt), result);
      if (!result.empty() && Leaves(result.back())) break;
    }
    return result;
  }

 private:
  ExprId Rewritten(ExprId id) {
    return module_.exprs.Rewrite(id, [this](ExprId leaf) -> std::optional<ExprId> {
      const ExprNode& node = module_.exprs[leaf];
      if (node.op != ExprOp::kVar) return std::nullopt;
      auto it = values_.find(VarId{node.ref});
      return it == values_.end() ? std::nullopt : std::optional(it->second);
    });
  }

  // Gives a variable that is bound twice a new name here: spliced blocks would otherwise bind it twice.
  VarId Bind(VarId var) {
    if (Index(var) < bound_.size() && !bound_[Index(var)]) {
      bound_[Index(var)] = true;
      values_.erase(var);  // where it was bound before, it was inlined
      return var;
    }
    VarId fresh = module_.AddVar(ir::Var(module_[var]));
    values_.insert_or_assign(var, module_.VarRef(fresh));
    return fresh;
  }

  void Append(Stmt stmt, Block& out) {
    ir::ForEachExpr(stmt.op, [this](ExprId& id) { id = Rewritten(id); });
    if (auto* let = std::get_if<ir::Let>(&stmt.op); let != nullptr && !Keep(*let)) return;
    if (auto* assume = std::get_if<ir::Assume>(&stmt.op); assume != nullptr && module_.exprs.IsConst(assume->cond, 1)) return;
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) return AppendIf(*branch, stmt.loc, out);
    if (auto* loop = std::get_if<ir::For>(&stmt.op)) return AppendLoop(*loop, stmt.loc, out);
    if (auto* loop = std::get_if<ir::While>(&stmt.op)) {
      if (module_.exprs.IsConst(loop->cond, 0)) return;
      loop->body = Fold(std::move(loop->body));
    }
    out.push_back(std::move(stmt));
  }

  bool Keep(ir::Let& let) {
    if (!IsInlined(let.value)) {
      let.var = Bind(let.var);
      return true;
    }
    values_.insert_or_assign(let.var, let.value);
    return false;
  }

  bool IsInlined(ExprId value) {
    const ExprNode& node = module_.exprs[value];
    if (node.arg_count == 0 && node.op != ExprOp::kLoad) return true;
    return ir::IsInteger(node.dtype) && sizes_.Of(value).nodes <= kSmall && !Loads(value);
  }

  bool Loads(ExprId id) {
    const ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kLoad) return true;
    for (ExprId arg : node.Args()) {
      if (Loads(arg)) return true;
    }
    return false;
  }

  void Splice(Block block, Block& out) {
    Block folded = Fold(std::move(block));
    out.insert(out.end(), std::make_move_iterator(folded.begin()), std::make_move_iterator(folded.end()));
  }

  void AppendIf(ir::If& branch, ir::SourceLoc loc, Block& out) {
    if (std::optional<int64_t> cond = module_.exprs.ConstInt(branch.cond)) {
      return Splice(std::move(*cond != 0 ? branch.then_body : branch.else_body), out);
    }
    ir::If folded{branch.cond, Fold(std::move(branch.then_body)), Fold(std::move(branch.else_body))};
    out.push_back({std::move(folded), loc});
  }

  // Whatever was decided for its vectors is decided again.
  static void MakeUnrolled(ir::For& loop) {
    loop.kind = ir::LoopKind::kUnroll;
    loop.coalesced_width = 0;
    loop.layout.reset();
    ir::Walk(loop.body, [](ir::Stmt& stmt) {
      if (auto* store = std::get_if<ir::Store>(&stmt.op)) store->plan.reset();
    });
  }

  void AppendLoop(ir::For& loop, ir::SourceLoc loc, Block& out) {
    if (NeverRuns(module_.exprs, loop)) return;
    // Each thread runs all iterations of both kinds. An unrolled loop may also contain barriers, which passes may need.
    if (loop.kind == ir::LoopKind::kVectorized) MakeUnrolled(loop);
    if (IsOneIteration(module_.exprs, loop) && !LeavesLoop(loop.body)) {
      values_.insert_or_assign(loop.vars[0], module_.exprs.Int(0, module_[loop.vars[0]].dtype));
      return Splice(std::move(loop.body), out);
    }
    ir::For folded = std::move(loop);
    for (VarId& var : folded.vars) var = Bind(var);
    folded.body = Fold(std::move(folded.body));
    if (folded.kind == ir::LoopKind::kParallel) JoinLets(folded.body);
    out.push_back({std::move(folded), loc});
  }

  // Joins lets with the stores behind them, unless one of these but the last changes what the lets load. An iteration's values are then expressions,
  // each of which can be evaluated for many iterations at once. What several stores repeat must be small.
  void JoinLets(Block& body) {
    const auto first = std::ranges::find_if(body, [](const Stmt& stmt) { return !std::holds_alternative<ir::Let>(stmt.op); });
    const bool stores = std::all_of(first, body.end(), [](const Stmt& stmt) { return std::holds_alternative<ir::Store>(stmt.op); });
    if (first == body.begin() || first == body.end() || !stores || MeetsStores(std::span(body.begin(), first), std::span(first, body.end() - 1)))
      return;
    uint64_t left = body.end() - first == 1 ? kLarge : kRepeated;
    std::unordered_map<VarId, ExprId> lets;
    const auto joined = [&](ExprId id) {
      return module_.exprs.Rewrite(id, [&](ExprId leaf) -> std::optional<ExprId> {
        const auto let = module_.exprs[leaf].op == ExprOp::kVar ? lets.find(VarId{module_.exprs[leaf].ref}) : lets.end();
        return let == lets.end() ? std::nullopt : std::optional(let->second);
      });
    };
    for (auto stmt = body.begin(); stmt != first; ++stmt) {
      const auto& [var, value] = std::get<ir::Let>(stmt->op);
      if (sizes_.Of(lets[var] = joined(value)).nodes > left) return;
    }
    std::vector<ir::Store> whole;
    for (auto stmt = first; stmt != body.end(); ++stmt) {
      ir::Store& store = whole.emplace_back(std::get<ir::Store>(stmt->op));
      const auto join = [&](ExprId& id) {
        const uint64_t nodes = sizes_.Of(id = joined(id)).nodes;
        const bool fits = nodes <= left;
        left -= std::min(nodes, left);
        return fits;
      };
      if (!join(store.value) || !std::ranges::all_of(store.indices, join)) return;
    }
    for (size_t i = 0; i < whole.size(); ++i) first[std::ptrdiff_t(i)].op = std::move(whole[i]);
    body.erase(body.begin(), first);
  }

  // Whether a let loads from what one of the stores writes.
  bool MeetsStores(std::span<const Stmt> lets, std::span<const Stmt> stores) const {
    const auto memory_of = [this](BufferId id) {
      while (module_[id].view) id = module_[id].view->of;
      return id;
    };
    std::set<BufferId> written;
    for (const Stmt& store : stores)
      for (const Access& access : AccessesOf(module_, store))
        if (access.write) written.insert(memory_of(access.buffer));
    return std::ranges::any_of(lets, [&](const Stmt& let) {
      return std::ranges::any_of(AccessesOf(module_, let), [&](const Access& access) { return written.contains(memory_of(access.buffer)); });
    });
  }

  ir::Module& module_;
  ir::ExprSizes sizes_;
  std::vector<bool> bound_;
  std::unordered_map<VarId, ExprId> values_;  // looked up, never walked
};

// Backwards: a use is seen before the let or alloc it keeps.
class Sweeper {
 public:
  explicit Sweeper(const ir::Module& module)
      : module_(module), vars_(module.vars.size()), buffers_(module.buffers.size()), exprs_(module.exprs.size()) {}

  void Sweep(Block& block) {
    Block kept;
    for (auto it = block.rbegin(); it != block.rend(); ++it) {
      if (!Keep(*it)) continue;
      ir::ForEachExpr(std::as_const(it->op), [this](ExprId id) { Use(id); });
      ir::ForEachBuffer(it->op, [this](BufferId id) { buffers_[Index(id)] = true; });
      kept.push_back(std::move(*it));
    }
    block.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  }

 private:
  bool Keep(Stmt& stmt) {
    if (auto* let = std::get_if<ir::Let>(&stmt.op)) return vars_[Index(let->var)];
    if (auto* alloc = std::get_if<ir::Alloc>(&stmt.op)) return buffers_[Index(alloc->buffer)];
    if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
      Sweep(loop->body);
      return !loop->body.empty();
    }
    if (auto* loop = std::get_if<ir::While>(&stmt.op)) Sweep(loop->body);
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
      Sweep(branch->then_body);
      Sweep(branch->else_body);
      return !branch->then_body.empty() || !branch->else_body.empty();
    }
    return true;
  }

  void Use(ExprId id) {
    if (exprs_[Index(id)]) return;
    exprs_[Index(id)] = true;
    const ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kVar) vars_[node.ref] = true;
    if (node.op == ExprOp::kLoad) buffers_[node.ref] = true;
    for (ExprId arg : node.Args()) Use(arg);
  }

  const ir::Module& module_;
  std::vector<bool> vars_, buffers_, exprs_;  // used
};

}  // namespace

ir::Result Canonicalize(ir::Module& module, const Context&, ir::Diagnostics& diagnostics) {
  Folder folder(module);
  for (ir::Kernel& kernel : module.kernels) kernel.body = folder.Fold(std::move(kernel.body));
  ReplaceDegenerate(module);
  Sweeper sweeper(module);
  for (ir::Kernel& kernel : module.kernels) sweeper.Sweep(kernel.body);
  // Folding can reveal a fault of the program, as a constant index outside its buffer.
  return ir::Verify(module, diagnostics);
}

}  // namespace kiln::compiler
