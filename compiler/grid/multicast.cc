// SPDX-License-Identifier: Apache-2.0
#include "compiler/grid/multicast.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/facts.h"
#include "compiler/grid/persist.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/tensor.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

bool HoldsRing(const ir::Block& body) {
  bool holds = false;
  ir::Walk(body, [&](const ir::Stmt& stmt) { holds |= std::holds_alternative<ir::RingStep>(stmt.op); });
  return holds;
}

class Pairing {
 public:
  Pairing(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    Measure();
    // A pair waits for its slower block in every step. If a step holds more than products, that costs more than loading the tile twice.
    if (works_) return;
    const target::Costs& costs = context_.target->costs;
    if (steps_ < costs.few_steps && !MayPersist(module_, kernel_, context_)) return;
    if (lines_ * costs.line_cycles < costs.hidden * std::max(cycles_, MemoryLines() * costs.memory_line_cycles)) return;
    std::optional<size_t> best;
    double most = costs.least_saved * lines_;
    for (size_t axis = 0; axis < std::min<size_t>(2, kernel_.grid.size()); ++axis) {
      const std::optional<int64_t> extent = module_.exprs.ConstInt(kernel_.grid[axis]);
      if (!extent || *extent % 2 != 0 || *extent == 0) continue;
      if (const double saved = Saved(axis); saved >= most) best = axis, most = saved * (1 + 1e-9);
    }
    if (!best) return;
    const double saved = Saved(*best);
    kernel_.decisions.push_back(
        {"multicast", std::nullopt,
         fmt::format("two neighbours along {} load for each other, which saves {:.0f} % of the lines", "xyz"[*best], 100 * saved / lines_),
         "tiles arrive more slowly than products need them"});
    for (ir::Copy* copy : shared_) copy->plan->multicast = true;
    SharedFirst(kernel_.body);
    kernel_.cluster.assign(kernel_.grid.size(), 1);
    kernel_.cluster[*best] = 2;
  }

 private:
  // Puts the loads that serve both blocks first in each stage, because both blocks wait for them.
  static void SharedFirst(ir::Block& block) {
    const auto fills = [](const ir::Stmt& stmt) {
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      return copy != nullptr && copy->plan && copy->plan->ring;
    };
    for (size_t i = 0; i < block.size();) {
      if (auto* loop = std::get_if<ir::For>(&block[i].op)) SharedFirst(loop->body);
      if (auto* branch = std::get_if<ir::If>(&block[i].op)) SharedFirst(branch->then_body), SharedFirst(branch->else_body);
      size_t end = i;
      while (end < block.size() && fills(block[end])) ++end;
      std::stable_partition(block.begin() + ptrdiff_t(i), block.begin() + ptrdiff_t(end),
                            [](const ir::Stmt& stmt) { return std::get<ir::Copy>(stmt.op).plan->multicast; });
      i = std::max(end, i + 1);
    }
  }

  // Sums up one step of all loops that have rings: the lines it loads, and the cycles of its products.
  void Measure() {
    Facts facts(module_);
    facts.EnterKernel(kernel_);
    ir::Walk(kernel_.body, [&](ir::Stmt& stmt) {
      if (const auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && HoldsRing(loop->body)) {
        ir::Walk(loop->body, [&](const ir::Stmt& inner) {
          const auto* elements = std::get_if<ir::For>(&inner.op);
          works_ |= elements != nullptr && elements->kind == ir::LoopKind::kParallel;
        });
        steps_ = std::max(steps_, module_.exprs.ConstInt(loop->extents[0]).value_or(context_.target->costs.few_steps));
      }
      const bool once = std::ranges::any_of(kernel_.body, [&](const ir::Stmt& outermost) { return &outermost == &stmt; });
      if (auto* copy = std::get_if<ir::Copy>(&stmt.op); !once && copy != nullptr && copy->plan && copy->plan->ring) {
        loads_.push_back({copy, LinesOf(module_, facts, *copy, *context_.target)});
        lines_ += loads_.back().lines;
      }
      if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) cycles_ += CyclesOf(*gemm, *context_.target);
    });
  }

  // How many of its lines each block brings from memory itself: blocks that share a line divide it among them.
  double MemoryLines() {
    std::vector<double> lines;
    for (const Load& load : loads_) lines.push_back(load.lines);
    for (size_t axis = 0; axis < kernel_.grid.size(); ++axis) {
      Follow(axis);
      const double extent = double(std::max<int64_t>(1, module_.exprs.ConstInt(kernel_.grid[axis]).value_or(1)));
      for (size_t i = 0; i < loads_.size(); ++i)
        if (!Differs(*loads_[i].copy)) lines[i] /= extent;
    }
    return std::accumulate(lines.begin(), lines.end(), 0.0);
  }

  // The lines that each of two neighbours along the axis saves; 0 where their loops may take different paths.
  double Saved(size_t axis) {
    shared_.clear();
    if (!Follow(axis)) return 0;
    double saved = 0;
    for (const Load& load : loads_) {
      if (Differs(*load.copy)) continue;
      shared_.push_back(load.copy);
      saved += load.lines / 2;
    }
    return saved;
  }

  // Collects the variables that differ between blocks along the axis; false where the control flow around a ring differs.
  bool Follow(size_t axis) {
    differs_ = {kernel_.block_vars[axis]};
    return Visit(kernel_.body);
  }

  bool Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op); let != nullptr && Differs(let->value)) differs_.insert(let->var);
      if (const auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (HoldsRing(loop->body) && std::ranges::any_of(loop->extents, [&](ir::ExprId extent) { return Differs(extent); })) return false;
        if (!Visit(loop->body)) return false;
      }
      if (const auto* loop = std::get_if<ir::While>(&stmt.op); loop != nullptr && HoldsRing(loop->body)) return false;
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        if ((HoldsRing(branch->then_body) || HoldsRing(branch->else_body)) && Differs(branch->cond)) return false;
        if (!Visit(branch->then_body) || !Visit(branch->else_body)) return false;
      }
    }
    return true;
  }

  bool Differs(const ir::Copy& copy) const {
    return std::ranges::any_of(copy.src.offsets, [&](ir::ExprId offset) { return Differs(offset); });
  }
  bool Differs(ir::ExprId id) const { return ContainsVar(module_.exprs, id, differs_); }

  struct Load {
    ir::Copy* copy;
    double lines;
  };

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  std::vector<Load> loads_;
  double lines_ = 0, cycles_ = 0;
  int64_t steps_ = 0;
  bool works_ = false;           // elements are computed between the products
  std::set<ir::VarId> differs_;  // between the two blocks
  std::vector<ir::Copy*> shared_;
};

}  // namespace

void Multicast(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (kernel.producers == 0 || !kernel.cluster.empty() || !context.target->Has(target::Feature::kCluster)) return;
  // The tile order that the program asks for separates neighbours, unless persistent blocks take tiles in pairs.
  if (kernel.raster_panel > 0 && !MayPersist(module, kernel, context)) return;
  Pairing(module, kernel, context).Run();
}

}  // namespace kiln::compiler
