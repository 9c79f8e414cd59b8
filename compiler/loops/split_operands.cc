// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/split_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::Stmt;

constexpr int64_t kMostPieces = 4;  // a choice: the loop's code is repeated for each
constexpr int64_t kScaled = 128;    // each group of warps begins at a multiple of this within a piece: elsewhere their scales would lie differently

class Splitter {
 public:
  Splitter(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {
    uses_ = CountAllAccesses(module, kernel.body);
  }

  void Visit(Block& block, bool pipelined) {
    Block result;
    for (size_t i = 0; i < block.size(); ++i) {
      Stmt& stmt = block[i];
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) Visit(branch->then_body, false), Visit(branch->else_body, false);
      if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Visit(repeat->body, false);
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) Visit(loop->body, loop->kind == ir::LoopKind::kPipelined);
      const int64_t pieces = pipelined && i + 1 < block.size() ? Pieces(stmt, block[i + 1]) : 1;
      if (pieces > 1) {
        Split(stmt, block[++i], pieces, result);
      } else {
        result.push_back(std::move(stmt));
      }
    }
    block = std::move(result);
  }

 private:
  static ir::Region& Held(ir::Gemm& gemm, bool swapped) { return swapped ? gemm.b : gemm.a; }
  static const ir::Region& Held(const ir::Gemm& gemm, bool swapped) { return swapped ? gemm.b : gemm.a; }

  // The dimension of k in the operand that stays in memory.
  static size_t DepthOfOther(const ir::Gemm& gemm, bool swapped) {
    const bool last = swapped ? !gemm.transpose_a : gemm.transpose_b;
    return (swapped ? gemm.a : gemm.b).extents.size() - (last ? 1 : 2);
  }

  // The store that ends the element's computation; nullptr if the body holds more than lets and one store.
  static const ir::Store* OnlyStore(const Block& body) {
    for (size_t i = 0; i + 1 < body.size(); ++i)
      if (!std::holds_alternative<ir::Let>(body[i].op)) return nullptr;
    return body.empty() ? nullptr : std::get_if<ir::Store>(&body.back().op);
  }

  // How many pieces to make. 1 unless `elements` stores each element of an operand at its place, and `product` is its only reader.
  int64_t Pieces(const Stmt& elements, const Stmt& product) const {
    const auto* loop = std::get_if<ir::For>(&elements.op);
    const auto* gemm = std::get_if<ir::Gemm>(&product.op);
    if (gemm == nullptr || gemm->clear_accum || gemm->plan->promoted || gemm->metadata) return 1;
    const target::MmaInstruction& mma = RowOf(*gemm, *context_.target);
    if (!mma.in_flight || loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->vars.size() != 2) return 1;
    const ir::Store* store = OnlyStore(loop->body);
    const BufferId held = Held(*gemm, mma.swapped).buffer;
    if (store == nullptr || store->buffer != held || module_[held].space != ir::Space::kFragment || uses_.at(held).all() != 2) return 1;
    const std::vector<int64_t> shape = module_.ShapeOf(held);
    if (!IsOwnElement(module_, *loop, store->indices) || !CoversElements(module_, *loop, held)) return 1;
    const int64_t steps = ShapeOf(*gemm).k / mma.k / gemm->plan->warps_k;
    for (int64_t pieces = kMostPieces; pieces > 1; --pieces) {
      const bool begins = gemm->plan->warps_k == 1 || steps / pieces * mma.k % kScaled == 0;
      if (steps % pieces == 0 && steps / pieces >= context_.target->costs.least_piece && begins && WgmmaReadsParts(module_, *gemm, shape[1] / pieces))
        return pieces;
    }
    return 1;
  }

  void Split(const Stmt& elements, const Stmt& product, int64_t pieces, Block& result) {
    const auto& gemm = std::get<ir::Gemm>(product.op);
    const bool swapped = RowOf(gemm, *context_.target).swapped;
    const BufferId held = Held(gemm, swapped).buffer;
    const std::vector<int64_t> shape = module_.ShapeOf(held);
    const int64_t deep = shape[1] / pieces;
    module_[held].shape[1] = module_.exprs.Int(deep);
    kernel_.decisions.push_back({"split_operands", held, fmt::format("computed in {} pieces along k", pieces),
                                 gemm.plan->by_warps ? "a piece's registers are free again before the next one is computed"
                                                     : "a piece's product runs while the next one is computed"});
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const BufferId part = piece == 0 ? held : FreshCopy(module_, held, "_piece");
      result.push_back({Elements(std::get<ir::For>(elements.op), part, piece * deep, deep), elements.loc});
      ir::Gemm next = gemm;
      next.plan->in_flight = piece + 1 < pieces && !gemm.plan->by_warps;
      Held(next, swapped).buffer = part;
      Held(next, swapped).extents[1] = deep;
      ir::Region& other = swapped ? next.a : next.b;
      const size_t depth = DepthOfOther(gemm, swapped);
      other.offsets[depth] = Beyond(other.offsets[depth], piece * deep);
      other.extents[depth] = deep;
      result.push_back({std::move(next), product.loc});
    }
  }

  ExprId Beyond(ExprId id, int64_t offset) { return offset == 0 ? id : module_.exprs.Add(id, module_.exprs.Int(offset, module_.exprs.Type(id))); }

  // The loop over `deep` columns from `first` on, with variables of its own.
  ir::For Elements(ir::For loop, BufferId part, int64_t first, int64_t deep) {
    Block& body = loop.body;
    const ir::VarId column = loop.vars[1];
    const auto own = [&](ir::VarId& var) { return std::exchange(var, module_.AddVar(ir::Var(module_[var]))); };
    const auto rename = [&](ir::VarId& var) {
      const ir::VarId old = own(var);
      Substitute(module_, body, old, module_.VarRef(var));
    };
    rename(loop.vars[0]);
    own(loop.vars[1]);
    ir::Walk(body, [&](Stmt& stmt) { ir::ForEachExpr(stmt.op, [&](ExprId& id) { id = Moved(id, column, loop.vars[1], first, deep); }); });
    for (size_t i = 0; i + 1 < body.size(); ++i) rename(std::get<ir::Let>(body[i].op).var);
    auto& store = std::get<ir::Store>(body.back().op);
    store.buffer = part;
    store.indices = {module_.VarRef(loop.vars[0]), module_.VarRef(loop.vars[1])};
    loop.extents[1] = module_.exprs.Int(deep, module_.exprs.Type(loop.extents[1]));
    return loop;
  }

  int64_t Divisor(const ir::ExprNode& node) const {
    const bool divides = node.op == ir::ExprOp::kFloorDiv || node.op == ir::ExprOp::kFloorMod;
    return divides ? module_.exprs.ConstInt(node.args[1]).value_or(0) : 0;
  }

  bool Uses(ExprId id, ir::VarId variable) const { return ContainsVar(module_.exprs, id, std::set{variable}); }

  // Whether `id` grows by one when the variable does.
  bool Steps(ExprId id, ir::VarId variable) {
    const ExprId own = module_.VarRef(variable);
    return std::ranges::all_of(
               LinearOf(module_.exprs, id).terms,
               [&](const auto& term) { return ExprId(term.first) == own ? term.second == 1 : !Uses(ExprId(term.first), variable); }) &&
           Uses(id, variable);
  }

  // `id` with `own` + first in place of `column`, where own < deep. Where possible, quotients and remainders remain those of a single
  // variable: addresses are made of them.
  ExprId Moved(ExprId id, ir::VarId column, ir::VarId own, int64_t first, int64_t deep) {
    const ExprId variable = module_.VarRef(own);
    ir::ExprNode node = module_.exprs[id];
    if (node.op == ir::ExprOp::kVar) return node.ref == ir::Index(column) ? Beyond(variable, first) : id;
    const bool quotient = node.op == ir::ExprOp::kFloorDiv;
    if (const int64_t by = Divisor(node); by > 0 && Steps(node.args[0], column)) {
      if (first % by == 0) {
        const ExprId same = module_.exprs.Make(node.op, {Moved(node.args[0], column, own, 0, deep), node.args[1]});
        return quotient ? Beyond(same, first / by) : same;
      }
      if (node.args[0] == module_.VarRef(column) && first % by + deep <= by)
        return quotient ? module_.exprs.Int(first / by, node.dtype) : Beyond(variable, first % by);
    }
    for (int i = 0; i < node.arg_count; ++i) node.args[size_t(i)] = Moved(node.args[size_t(i)], column, own, first, deep);
    return module_.exprs.Simplified(node);
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  AccessCounts uses_;
};

}  // namespace

void SplitOperands(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const size_t buffers = module.buffers.size();
  Splitter(module, kernel, context).Visit(kernel.body, false);
  Declare(module, kernel, buffers);
}

}  // namespace kiln::compiler
