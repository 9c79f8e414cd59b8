// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/layouts/staged_stores.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/rewrite/fresh.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Layout;
using ir::Space;

constexpr int64_t kTiles = 4;  // of so many blocks, that shared memory holds at one time

class Stager {
 public:
  Stager(ir::Module& module, ir::Kernel& kernel, const Context& context, const FragmentUses& uses, const MemoryRuns& runs, const Inferred& inferred)
      : module_(module), kernel_(kernel), context_(context), runs_(runs), inferred_(inferred), divergence_(module, kernel) {
    for (const LoopUse& use : uses.loops) uses_[use.loop] = &use;
  }

  // Of statements that all threads come to together: only these can wait for each other on every target.
  bool Visit(ir::Block& block) {
    const ir::ThreadRange all = AllThreads(kernel_);
    const auto differs = [&](ir::ExprId id) { return divergence_.Differs(id, all); };
    bool changed = false;
    std::vector<std::pair<size_t, ir::Stmt>> added;  // what is known of the others is known by their places, so they stay there until the end
    for (size_t i = 0; i < block.size(); ++i) {
      ir::Stmt& stmt = block[i];
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (loop->kind == ir::LoopKind::kParallel) {
          if (std::optional<ir::Stmt> computes = Staged(stmt, *loop)) added.emplace_back(i, *std::move(computes));
        } else if (!std::ranges::any_of(loop->extents, differs) && !divergence_.IsLeftEarly(loop)) {
          changed |= Visit(loop->body);
        }
      } else if (auto* loop = std::get_if<ir::While>(&stmt.op)) {
        if (!differs(loop->cond) && !divergence_.IsLeftEarly(loop)) changed |= Visit(loop->body);
      } else if (auto* branch = std::get_if<ir::If>(&stmt.op); branch != nullptr && !branch->IsNarrowed() && !differs(branch->cond)) {
        changed |= Visit(branch->then_body);
        changed |= Visit(branch->else_body);
      }
    }
    changed |= !added.empty();
    for (auto& [place, stmt] : std::views::reverse(added)) block.insert(block.begin() + long(place), std::move(stmt));
    return changed;
  }

 private:
  // The store of the loop's one statement, with or without a condition around it.
  static ir::Store* StoreOf(ir::For& loop) {
    if (loop.body.size() != 1) return nullptr;
    if (auto* store = std::get_if<ir::Store>(&loop.body[0].op)) return store;
    auto* branch = std::get_if<ir::If>(&loop.body[0].op);
    if (branch == nullptr || branch->then_body.size() != 1 || !branch->else_body.empty()) return nullptr;
    return std::get_if<ir::Store>(&branch->then_body[0].op);
  }

  // Makes the loop store from tile_, and returns the loop that fills it. nullopt: the loop stays as it is.
  std::optional<ir::Stmt> Staged(ir::Stmt& stmt, ir::For& loop) {
    const auto use = uses_.find(&loop);
    const auto runs = runs_.find(&loop);
    const auto layout = inferred_.loops.find(&loop);
    ir::Store* store = StoreOf(loop);
    if (use == uses_.end() || runs == runs_.end() || layout == inferred_.loops.end() || store == nullptr) return std::nullopt;
    if (module_[store->buffer].space != Space::kGlobal || layout->second.IsReplicated()) return std::nullopt;
    std::optional<Layout> order = Cheaper(loop, use->second->extents, runs->second, layout->second);
    if (!order) return std::nullopt;
    return Split(stmt, loop, use->second->extents, *std::move(order));
  }

  // The layout in which the tile is copied from shared memory, if that and the way there cost less than to store it as it lies in registers.
  // Fragments that say where an element is stored, or whether, go that way, too.
  std::optional<Layout> Cheaper(ir::For& loop, const std::vector<int64_t>& extents, const std::vector<MemoryRun>& runs, const Layout& layout) const {
    const auto run = std::ranges::find(runs, true, &MemoryRun::write);
    if (run == runs.end() || run->variable != extents.size() - 1) return std::nullopt;
    const int64_t threads = kernel_.threads, lanes = context_.target->warp_size;
    const int64_t elements = std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
    const int64_t vector = std::gcd(std::min(run->whole, kWidestAccess / run->bytes), extents.back()), tile = elements * run->bytes;
    if (vector <= run->Width(layout) || elements < vector * threads || kTiles * tile > int64_t(context_.target->max_shared_bytes)) return {};
    Layout order = Layout::Distributed(extents, threads, vector);
    const auto cost = [&](const Layout& by) { return MemoryCost(by, std::span(&*run, 1), lanes); };
    int64_t staged = cost(order) + PassageCost(tile / threads, tile / threads, lanes);
    for (const BufferId fragment : FragmentsOfPlaces(loop)) {
      const int64_t bytes = std::max(ir::Bits(module_[fragment].dtype) / 8, 1);
      int64_t held = bytes;
      for (const int64_t extent : module_.ShapeOf(fragment)) held *= extent;
      staged += PassageCost((held + threads - 1) / threads, elements / vector / threads * bytes, lanes);
    }
    if (staged >= cost(layout)) return std::nullopt;
    return order;
  }

  // That the store's indices and its condition read.
  std::set<BufferId> FragmentsOfPlaces(ir::For& loop) const {
    std::vector<Access> loads;
    for (const ir::ExprId index : StoreOf(loop)->indices) CollectLoads(module_.exprs, index, loads);
    if (const auto* branch = std::get_if<ir::If>(&loop.body[0].op)) CollectLoads(module_.exprs, branch->cond, loads);
    std::set<BufferId> fragments;
    for (const Access& load : loads)
      if (module_[load.buffer].space == Space::kFragment) fragments.insert(load.buffer);
    return fragments;
  }

  // Whether the value may also be computed where the loop's condition does not hold: it is of fragments alone, within them, and divides no integers.
  bool IsDefinedAnywhere(ir::ExprId value, const ir::For& loop, const std::vector<int64_t>& extents) const {
    std::vector<Access> loads;
    CollectLoads(module_.exprs, value, loads);
    const auto is_within = [&](const Access& load) {
      if (module_[load.buffer].space != Space::kFragment) return false;
      const std::vector<int64_t> shape = module_.ShapeOf(load.buffer);
      for (size_t d = 0; d < shape.size(); ++d) {
        const auto var = std::ranges::find_if(loop.vars, [&](ir::VarId each) { return module_.VarRef(each) == load.indices[d]; });
        if (var == loop.vars.end() || extents[size_t(var - loop.vars.begin())] > shape[d]) return false;
      }
      return true;
    };
    return std::ranges::all_of(loads, is_within) && !Contains(module_.exprs, value, [&](ir::ExprId part) {
             using enum ir::ExprOp;
             const ir::ExprNode& node = module_.exprs[part];
             return !ir::IsFloat(node.dtype) && (node.op == kDiv || node.op == kMod || node.op == kFloorDiv || node.op == kFloorMod);
           });
  }

  ir::Stmt Split(ir::Stmt& stmt, ir::For& loop, const std::vector<int64_t>& extents, Layout order) {
    tile_ = FreshOfShape(module_, StoreOf(loop)->buffer, Space::kShared, extents, "_staged");
    ir::For computes = loop, copies = loop;
    copies.layout = order.Normalized();
    if (IsDefinedAnywhere(StoreOf(loop)->value, loop, extents)) computes.body = {{ir::Store(*StoreOf(loop)), loop.body[0].loc}};
    ir::Store &own = *StoreOf(computes), &out = *StoreOf(copies);
    own.buffer = tile_, own.indices.clear();
    for (const ir::VarId var : loop.vars) own.indices.push_back(module_.VarRef(var));
    out.value = module_.exprs.Load(tile_, module_[tile_].dtype, own.indices);
    for (ir::VarId& var : copies.vars) {
      const ir::VarId fresh = FreshVar(module_, ir::VarKind::kLoop, module_[var].dtype, "s");
      const auto renamed = [&](ir::ExprId id) { return module_.exprs.Substitute(id, var, module_.VarRef(fresh)); };
      if (auto* branch = std::get_if<ir::If>(&copies.body[0].op)) branch->cond = renamed(branch->cond);
      for (ir::ExprId& index : out.indices) index = renamed(index);
      out.value = renamed(out.value);
      var = fresh;
    }
    kernel_.decisions.push_back(
        {"layouts", out.buffer, "is stored through shared memory", "stores in the order of the fragments cost more", stmt.loc});
    loop = std::move(copies);
    return {std::move(computes), stmt.loc};
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const MemoryRuns& runs_;
  const Inferred& inferred_;
  Divergence divergence_;
  std::map<const ir::For*, const LoopUse*> uses_;
  BufferId tile_{};
};

}  // namespace

bool StageStores(ir::Module& module, ir::Kernel& kernel, const Context& context, const FragmentUses& uses, const MemoryRuns& runs,
                 const Inferred& inferred) {
  // Without stmatrix the way there takes four times as many instructions. Threads of a kernel with signals meet where the program says.
  if (!context.target->Has(target::Feature::kStMatrix) || HasSignals(kernel)) return false;
  return Stager(module, kernel, context, uses, runs, inferred).Visit(kernel.body);
}

}  // namespace kiln::compiler
