// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/whole_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/analysis/threads/walk_together.h"
#include "compiler/analysis/uniform.h"
#include "compiler/rewrite/repeat.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;

// A choice: so many conditional loads of a thread, one after the other, are worth a second loop.
constexpr int64_t kManyLoads = 8;

class Splitter {
 public:
  Splitter(ir::Module& module, ir::Kernel& kernel) : module_(module), kernel_(kernel) {}

  void Run() {
    WalkTogether(module_, kernel_, [this](ir::Stmt& stmt, const Facts& facts, const ir::ThreadRange&) {
      if (made_.contains(&stmt)) return;
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel && loop->layout && FillsRegisters(*loop)) Split(stmt, facts);
    });
  }

 private:
  bool FillsRegisters(const ir::For& loop) const {
    return std::ranges::all_of(loop.body, [&](const ir::Stmt& stmt) {
      const auto* store = std::get_if<ir::Store>(&stmt.op);
      return store != nullptr && !store->async && module_[store->buffer].space == ir::Space::kFragment;
    });
  }

  void Split(ir::Stmt& stmt, const Facts& facts) {
    const auto& loop = std::get<ir::For>(stmt.op);
    Facts inside = facts;
    inside.EnterLoop(loop);
    std::set<ExprId> conditions;
    int64_t loads = 0;
    for (const ir::Stmt& inner : loop.body) {
      for (const ir::Read& read : ir::ReadsOf(module_.exprs, std::get<ir::Store>(inner.op).value)) {
        const ir::ExprNode& load = module_.exprs[read.load];
        const ir::BufferId buffer{load.ref};
        if (read.mask || module_[buffer].space != ir::Space::kGlobal || ProvablyInside(module_, inside, buffer, load.Args())) continue;
        const auto found = Inside(loop, inside, buffer, load.Args());
        if (!found) continue;
        conditions.insert(found->begin(), found->end());
        loads += LoadsOfThread(loop, load.Args());
      }
    }
    if (conditions.empty() || loads < kManyLoads) return;
    ExprId whole = module_.exprs.Bool(true);
    for (const ExprId condition : conditions) whole = module_.exprs.Make(ir::ExprOp::kAnd, {whole, condition});
    kernel_.decisions.push_back({"whole_tiles", std::nullopt, "blocks inside of the tensors load without conditions",
                                 fmt::format("else {} loads of a thread wait for each other", loads), stmt.loc});
    ir::If branch{.cond = whole, .then_body = Repeated(module_, {stmt}), .else_body = {}};
    branch.else_body.push_back(std::move(stmt));
    const ir::SourceLoc loc = branch.else_body[0].loc;
    stmt = {std::move(branch), loc};
    for (const ir::Block* body : {&std::get<ir::If>(stmt.op).then_body, &std::get<ir::If>(stmt.op).else_body}) made_.insert(&body->front());
  }

  // Conditions under which all iterations read inside of the tensor. nullopt: not all of its dimensions tell.
  std::optional<std::vector<ExprId>> Inside(const ir::For& loop, const Facts& inside, ir::BufferId buffer, std::span<const ExprId> indices) {
    std::vector<ExprId> conditions;
    for (size_t d = 0; d < indices.size(); ++d) {
      const ExprId size = module_[buffer].shape[d];
      if (inside.Inside(indices[d], 1, size)) continue;
      const std::optional<Linear> last = LargestOf(loop, inside, indices[d]);
      if (!last || inside.RangeOf(indices[d]).min < 0) return std::nullopt;
      const ir::DType type = module_.exprs.Type(size);
      conditions.push_back(module_.exprs.Make(ir::ExprOp::kLt, {module_.exprs.Cast(type, Written(module_, *last)), size}));
    }
    return conditions;
  }

  // The largest value of the index, which never wraps.
  std::optional<Linear> LargestOf(const ir::For& loop, const Facts& inside, ExprId index) const {
    Linear sum = LinearOf(module_.exprs, index);
    const std::set<ir::VarId> own(loop.vars.begin(), loop.vars.end());
    for (size_t v = 0; v < loop.vars.size(); ++v) {
      const std::optional<int64_t> extent = module_.exprs.ConstInt(loop.extents[v]);
      if (!extent || *extent <= 0) return std::nullopt;
      std::erase_if(sum.terms, [&](const auto& term) {
        const ir::ExprNode& factor = module_.exprs[ExprId(term.first)];
        if (factor.op != ir::ExprOp::kVar || ir::VarId(factor.ref) != loop.vars[v]) return false;
        sum.constant += std::max<int64_t>(0, term.second) * (*extent - 1);
        return true;
      });
    }
    for (const auto& [term, coefficient] : sum.terms)
      if (ContainsVar(module_.exprs, ExprId(term), own) || !ir::LoadsOf(module_.exprs, ExprId(term)).empty()) return std::nullopt;
    const Range range = RangeOf(inside, sum);
    return range.min > INT32_MIN && range.max < INT32_MAX ? std::optional(std::move(sum)) : std::nullopt;
  }

  // Elements of different indices that one thread loads.
  int64_t LoadsOfThread(const ir::For& loop, std::span<const ExprId> indices) const {
    int64_t loads = 1;
    for (size_t v = 0; v < loop.vars.size(); ++v) {
      if (std::ranges::none_of(indices, [&](ExprId index) { return ContainsVar(module_.exprs, index, std::set{loop.vars[v]}); })) continue;
      for (const ir::Digit& digit : loop.layout->dim(int(v)))
        if (digit.place == ir::Place::kRegister) loads *= digit.size;
    }
    return loads;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  std::set<const ir::Stmt*> made_;  // loops in both branches
};

}  // namespace

void WholeTiles(ir::Module& module, ir::Kernel& kernel, const Context&) { Splitter(module, kernel).Run(); }

}  // namespace kiln::compiler
