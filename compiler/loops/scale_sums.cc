// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/scale_sums.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Stmt;

constexpr int64_t kTogether = 2;  // elements of 16 bits that one instruction multiplies

// The elements of an operand, w[i, j] = rest · factor, and the part of k that shares the factor.
struct Scaled {
  ExprId rest, factor;
  int64_t part;  // extent along k of that part: one group of warps computes it
};

class Scaler {
 public:
  Scaler(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {
    uses_ = CountAllAccesses(module, kernel.body);
  }

  void Visit(Block& block) {
    const std::set<BufferId> sums = SumsOf(block);
    Block result;
    std::optional<Stmt> use;  // uses the last product's sum; goes after the next product's elements, unless they read the sum
    BufferId used{};          // that sum
    for (size_t i = 0; i < block.size(); ++i) {
      Stmt& stmt = block[i];
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) Visit(branch->then_body), Visit(branch->else_body);
      if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Visit(repeat->body);
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) Visit(loop->body);
      const std::optional<Scaled> scaled = ScaledAt(block, i, sums);
      if (!scaled) {
        if (use) result.push_back(*std::exchange(use, std::nullopt));
        result.push_back(std::move(stmt));
        continue;
      }
      Stmt& product = block[++i];
      auto& gemm = std::get<ir::Gemm>(product.op);
      std::get<ir::Store>(loop->body[0].op).value = scaled->rest;
      const std::vector<ir::VarId> variables = loop->vars;
      if (use && CountAccesses(module_, stmt, used) > 0) result.push_back(*std::exchange(use, std::nullopt));
      result.push_back(std::move(stmt));
      if (use) result.push_back(*std::exchange(use, std::nullopt));
      used = gemm.c.buffer;
      use = Use(gemm, *scaled, variables, product.loc);
      result.push_back(std::move(product));
    }
    if (use) result.push_back(*std::move(use));
    block = std::move(result);
  }

 private:
  // The factor of this statement's elements, if the next statement is a product that allows to move it.
  std::optional<Scaled> ScaledAt(const Block& block, size_t at, const std::set<BufferId>& sums) const {
    if (at + 1 >= block.size()) return std::nullopt;
    const auto* gemm = std::get_if<ir::Gemm>(&block[at + 1].op);
    return gemm != nullptr && sums.contains(gemm->c.buffer) ? Find(block[at], block[at + 1]) : std::nullopt;
  }

  // The sums to which only products that can do without their factor contribute.
  std::set<BufferId> SumsOf(const Block& block) const {
    std::set<BufferId> sums, others;
    for (size_t i = 0; i < block.size(); ++i) {
      const auto* gemm = std::get_if<ir::Gemm>(&block[i].op);
      if (gemm != nullptr) (i > 0 && Find(block[i - 1], block[i]) ? sums : others).insert(gemm->c.buffer);
    }
    for (BufferId other : others) sums.erase(other);
    return sums;
  }

  std::optional<Scaled> Find(const Stmt& elements, const Stmt& product) const {
    const auto* loop = std::get_if<ir::For>(&elements.op);
    const auto* gemm = std::get_if<ir::Gemm>(&product.op);
    if (gemm == nullptr || !gemm->plan->by_warps || gemm->clear_accum) return std::nullopt;
    const target::MmaInstruction& mma = RowOf(*gemm, *context_.target);
    if (mma.c != ir::DType::kF32) return std::nullopt;
    const bool swapped = mma.swapped;
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->vars.size() != 2 || loop->body.size() != 1) return std::nullopt;
    const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
    const BufferId held = (swapped ? gemm->b : gemm->a).buffer;
    if (store == nullptr || store->buffer != held || module_[held].space != ir::Space::kFragment || uses_.at(held).all() != 2) return std::nullopt;
    if (!IsOwnElement(module_, *loop, store->indices)) return std::nullopt;
    const GemmShape shape = ShapeOf(*gemm);
    const int64_t parts = gemm->plan->warps_k, rows = swapped ? shape.n : shape.m;
    if (shape.m * shape.n * parts * kTogether >= rows * shape.k) return std::nullopt;
    const ir::ExprNode& value = module_.exprs[store->value];
    if (value.op != ExprOp::kMul || !ir::IsFloat(value.dtype)) return std::nullopt;
    for (const size_t factor : {1, 0}) {
      const Scaled scaled{value.args[1 - factor], value.args[factor], shape.k / parts};
      if (IsShared(scaled.factor, loop->vars[1], scaled.part)) return scaled;
    }
    return std::nullopt;
  }

  // Whether the expression has one value within each `part` neighbouring values of the variable, and can be read where the sum is.
  bool IsShared(ExprId id, ir::VarId along, int64_t part) const {
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kVar) return node.ref != ir::Index(along);
    if (node.op == ExprOp::kLoad && module_[BufferId(node.ref)].space != ir::Space::kShared) return false;
    if (node.op == ExprOp::kFloorDiv && node.args[0] == module_.VarRef(along)) {
      const int64_t by = module_.exprs.ConstInt(node.args[1]).value_or(0);
      return by > 0 && by % part == 0;
    }
    return std::ranges::all_of(node.Args(), [&](ExprId arg) { return IsShared(arg, along, part); });
  }

  // Gives the product a sum of its own; returns the statement that adds it to the old sum.
  Stmt Use(ir::Gemm& gemm, const Scaled& scaled, const std::vector<ir::VarId>& variables, ir::SourceLoc loc) {
    const BufferId sum = gemm.c.buffer, own = OwnSum(sum);
    const bool swapped = RowOf(gemm, *context_.target).swapped;
    ElementLoop element = MakeElementLoop(module_, module_.ShapeOf(sum), "s");
    ir::ExprPool& exprs = module_.exprs;
    const size_t rank = element.indices.size();
    const ExprId row = element.indices[rank - (swapped ? 1 : 2)];
    const ExprId first = rank == 2 ? exprs.Int(0) : exprs.Mul(element.indices[0], exprs.Int(scaled.part));
    const ExprId rows = module_.VarRef(variables[0]), along = module_.VarRef(variables[1]);
    const ExprId factor = exprs.Rewrite(scaled.factor, [&](ExprId leaf) -> std::optional<ExprId> {
      if (leaf != rows && leaf != along) return std::nullopt;
      return exprs.Cast(exprs.Type(leaf), leaf == rows ? row : first);
    });
    const auto load = [&](BufferId buffer) { return exprs.Load(buffer, ir::DType::kF32, element.indices); };
    const ExprId value = exprs.Add(load(sum), exprs.Mul(load(own), exprs.Cast(ir::DType::kF32, factor)));
    element.loop.body.push_back({ir::Store{sum, element.indices, value}, loc});
    gemm.c.buffer = own;
    gemm.clear_accum = true;
    return {std::move(element.loop), loc};
  }

  BufferId OwnSum(BufferId sum) {
    if (const auto it = own_.find(sum); it != own_.end()) return it->second;
    kernel_.decisions.push_back({"scale_sums", sum, "multiplied by its operand's factors, instead of the operand's elements",
                                 "fast_math; there are fewer sums than elements"});
    return own_[sum] = FreshLike(module_, sum, ir::Space::kFragment, "_own");
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  AccessCounts uses_;
  std::map<BufferId, BufferId> own_;
};

}  // namespace

void ScaleSums(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (!context.options.fast_math()) return;
  const size_t buffers = module.buffers.size();
  Scaler(module, kernel, context).Visit(kernel.body);
  Declare(module, kernel, buffers);
}

}  // namespace kiln::compiler
