// SPDX-License-Identifier: Apache-2.0
#include "compiler/accesses/accesses.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "compiler/accesses/matrices.h"
#include "compiler/accesses/packed.h"
#include "compiler/accesses/vectors.h"
#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/digits.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/own_run.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/analysis/threads/traffic.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/analysis/threads/walk_together.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

bool IsMemory(ir::Space space) { return space == ir::Space::kGlobal || space == ir::Space::kShared; }

class Planner {
 public:
  Planner(ir::Module& module, const ir::Kernel& kernel, const Context& context)
      : module_(module),
        context_(context),
        digits_(module, kernel),
        once_(ReadOnceTensors(module, kernel, *context.target)),
        kept_(KeptTensors(module, kernel, *context.target)) {}

  void Run(ir::Kernel& kernel) {
    WalkTogether(module_, kernel, [this](ir::Stmt& stmt, const Facts& facts, const ir::ThreadRange& threads) {
      if (auto* sum = std::get_if<ir::StreamSum>(&stmt.op)) sum->vector = RegistersTogether(sum->sum);
      // The whole sum of one block goes to the other register by register.
      if (auto* sum = std::get_if<ir::PairSum>(&stmt.op)) sum->vector = sum->half ? RegistersTogether(*sum->half) : 1;
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (const ir::Store* store = StoreOfEach(module_, stmt, digits_, threads)) PlanOwn(stmt, *store, facts);
      if (loop == nullptr || (loop->kind != ir::LoopKind::kParallel && loop->kind != ir::LoopKind::kVectorized)) return;
      threads_ = threads;
      Facts inner = facts;
      inner.EnterLoop(*loop);
      Plan(stmt, inner);
    });
  }

 private:
  // A fragment's registers in the order of a thread, as many as the widest access takes.
  int32_t RegistersTogether(ir::BufferId fragment) const {
    const ir::Buffer& buffer = module_[fragment];
    const int64_t most = kWidest / ir::Bytes(buffer.dtype);
    return buffer.layout->Registers() % most == 0 ? int32_t(most) : 1;
  }

  // A store beyond a tensor reads nothing, for tiles and arrays may have no value for it; vectors are read before that is known.
  bool ReadsTiles(const ir::Store& store) const {
    std::vector<Access> reads;
    CollectLoads(module_.exprs, store.value, reads);
    return std::ranges::any_of(reads, [&](const Access& read) { return module_[read.buffer].space != ir::Space::kGlobal; });
  }

  // What each thread stores for itself goes by vectors, too, where the elements are neighbours in memory.
  void PlanOwn(ir::Stmt& stmt, const ir::Store& store, const Facts& outside) const {
    auto& loop = std::get<ir::For>(stmt.op);
    if (!IsMemory(module_[store.buffer].space)) return;
    Facts facts = outside;
    facts.EnterLoop(loop);
    if (ReadsTiles(store) && !ProvablyInside(module_, facts, store.buffer, store.indices)) return;
    const int64_t width = VectorWidth(module_, facts, loop, store.buffer, store.indices,
                                      std::gcd<int64_t>(kWidest, *module_.exprs.ConstInt(loop.extents[0])), context_.pointer_alignment());
    if (width <= 1) return;
    const ir::For before = loop;
    MakeRun(module_, loop, width);
    if (!ThreadLoop(module_, facts, stmt).Split(store.buffer, store.indices)) loop = before;
  }

  void Plan(ir::Stmt& stmt, const Facts& facts) {
    const ThreadLoop loop(module_, facts, stmt);
    if (!loop.only_stores || loop.IsEmpty()) return;
    for (ir::Stmt& inner : std::get<ir::For>(stmt.op).body) {
      if (auto* branch = std::get_if<ir::If>(&inner.op)) {
        PlanUnder(*branch, loop, facts);
        continue;
      }
      auto& store = std::get<ir::Store>(inner.op);
      if (store.async && !MayBeAsync(loop, facts, store)) {
        store.async = false;
        return Plan(stmt, facts);
      }
      store.plan = PlanOf(loop, facts, store);
    }
  }

  // Where neighbours have one condition, their stores are made together: all of them or none. Where they meet it in a row, stores to memory go
  // together if the first and the last do; the values of all are computed, whichever meet it.
  void PlanUnder(ir::If& branch, const ThreadLoop& loop, const Facts& facts) const {
    const size_t last = loop.loop->vars.size() - 1;
    const bool shared = MaskWidth(module_, facts, *loop.loop, last, branch.cond, loop.run) == loop.run;
    const bool in_a_row = HoldsInARow(module_, facts, *loop.loop, last, branch.cond, loop.run);
    Facts inner = facts;
    inner.Assume(branch.cond);
    std::optional<std::vector<ir::StorePlan>> plans = shared ? PlansOf(branch, loop, inner, /*may_part=*/false) : std::nullopt;
    if (auto parted = in_a_row ? PlansOf(branch, loop, facts, /*may_part=*/true) : std::nullopt; parted && (!plans || Gains(*plans, *parted))) {
      for (ir::StorePlan& plan : *parted) plan.parted |= !shared;
      plans = std::move(parted);
    }
    for (size_t i = 0; plans && i < plans->size(); ++i) {
      // Such vectors serve registers beyond those that share the condition.
      for (ir::LoadPlan& load : (*plans)[i].loads)
        if (ir::IsScattered(load.form)) load = {.buffer = load.buffer};
      std::get<ir::Store>(branch.then_body[i].op).plan = std::move((*plans)[i]);
    }
  }

  // Of all stores of a branch. What may be parted is computed whatever the condition says, so `facts` hold without it.
  std::optional<std::vector<ir::StorePlan>> PlansOf(const ir::If& branch, const ThreadLoop& loop, const Facts& facts, bool may_part) const {
    std::vector<ir::StorePlan> plans;
    for (const ir::Stmt& stmt : branch.then_body) {
      const auto& store = std::get<ir::Store>(stmt.op);
      std::optional<ir::StorePlan> plan = !may_part || MayComputeAll(store, facts) ? PlanOf(loop, facts, store, may_part) : std::nullopt;
      if (!plan || (may_part && plan->form != ir::StoreForm::kVector)) return std::nullopt;
      plans.push_back(*std::move(plan));
    }
    return plans;
  }

  // Whether a store is made in much wider vectors.
  static bool Gains(std::span<const ir::StorePlan> plans, std::span<const ir::StorePlan> others) {
    for (size_t i = 0; i < plans.size(); ++i)
      if (others[i].width > kLeastGain * plans[i].width) return true;
    return false;
  }

  // cp.async takes neighbours: from the first of them on, all registers must share the addresses but for a constant. Rows that are gathered
  // have an address each.
  bool MayBeAsync(const ThreadLoop& loop, const Facts& facts, const ir::Store& store) const {
    const ir::Read read = ir::ReadsOf(module_.exprs, store.value).back();
    const ir::ExprNode& load = module_.exprs[read.load];
    const ir::BufferId from{load.ref};
    if (!loop.Split(store.buffer, store.indices)) return false;
    if (loop.Split(from, load.Args())) return true;
    return VectorWidth(module_, facts, *loop.loop, from, load.Args(), loop.run, context_.pointer_alignment()) == loop.run;
  }

  // `may_part`: whether values may be computed that are not stored.
  std::optional<ir::StorePlan> PlanOf(const ThreadLoop& loop, const Facts& facts, const ir::Store& store, bool may_part = true) const {
    const ir::Buffer& buffer = module_[store.buffer];
    ir::StorePlan plan;
    if (IsMemory(buffer.space)) {
      const ir::LoadPlan to = VectorsOf(module_, facts, loop, store.buffer, store.indices, context_.pointer_alignment());
      if (to.form != ir::LoadForm::kVector) return std::nullopt;
      plan.form = ir::StoreForm::kVector;
      plan.width = store.async ? int32_t(loop.run) : to.width;
      const int64_t clipped = store.async || !may_part || !MayComputeAll(store, facts) ? 0 : ClippedWidth(loop, facts, store);
      if (clipped > kLeastGain * plan.width) plan.width = int32_t(clipped), plan.parted = true;
      if (const auto matrix = MatrixForm(module_, facts, *context_.target, threads_, loop, store)) plan.form = *matrix, plan.width = 1;
    } else if (buffer.space != ir::Space::kFragment) {
      return std::nullopt;  // each thread has an array of its own, which is indexed one by one
    }
    const bool by_matrix = plan.form >= ir::StoreForm::kMatrix;
    plan.kept = kept_.contains(store.buffer) && plan.width * ir::Bits(buffer.dtype) == 128;
    plan.packed = PackedElements(module_, facts, *context_.target, store.value, by_matrix ? 2 : loop.run);
    PlanLoads(loop, facts, store, plan);
    return plan;
  }

  // Whether the value may be computed also where the store is not made. Memory beyond a tensor is not read, but a tile's would be; and of quotients,
  // LLVM takes for granted that nothing is divided by zero.
  bool MayComputeAll(const ir::Store& store, const Facts& facts) const {
    const auto divides = [&](ir::ExprId part) {
      const ir::ExprNode& node = module_.exprs[part];
      const bool is =
          node.op == ir::ExprOp::kDiv || node.op == ir::ExprOp::kMod || node.op == ir::ExprOp::kFloorDiv || node.op == ir::ExprOp::kFloorMod;
      return is && ir::IsInteger(node.dtype) && module_.exprs.ConstInt(node.args[1]).value_or(0) == 0;
    };
    if (Contains(module_.exprs, store.value, divides)) return false;
    std::vector<Access> reads;
    CollectLoads(module_.exprs, store.value, reads);
    return std::ranges::all_of(reads, [&](const Access& read) {
      const ir::Space space = module_[read.buffer].space;
      if (space == ir::Space::kLocal || HasGaps(module_, read.buffer)) return false;
      return space != ir::Space::kShared || ProvablyInside(module_, facts, read.buffer, read.indices);
    });
  }

  // Of a store to a tensor that may end beyond its row.
  int64_t ClippedWidth(const ThreadLoop& loop, const Facts& facts, const ir::Store& store) const {
    const bool may = module_[store.buffer].space == ir::Space::kGlobal && !HasGaps(module_, store.buffer) && loop.Split(store.buffer, store.indices);
    const size_t last = loop.loop->vars.size() - 1;
    const int64_t alignment = context_.pointer_alignment();
    return may ? ClippedWidthIn(module_, facts, *loop.loop, last, store.buffer, store.indices, loop.run, alignment) : 1;
  }

  void PlanLoads(const ThreadLoop& loop, const Facts& facts, const ir::Store& store, ir::StorePlan& plan) const {
    const bool selects = SelectsLoads(module_.exprs, store.value);
    for (const ir::Read& read : ir::ReadsOf(module_.exprs, store.value)) {
      const ir::ExprNode& node = module_.exprs[read.load];
      const ir::BufferId from{node.ref};
      if (!IsMemory(module_[from].space)) continue;
      // A load that only a select keeps inside its tile, or in memory that is there, is done element by element, under the select's condition.
      Facts here = facts;
      if (read.mask) here.Assume(*read.mask);
      const bool inside = !HasGaps(module_, from) && (module_[from].space == ir::Space::kGlobal || ProvablyInside(module_, here, from, node.Args()));
      ir::LoadPlan load{.buffer = from};
      if ((inside && !LoadsToDecide(read)) || !selects)
        load = read.mask ? MaskedVectorsOf(module_, facts, loop, read, context_.pointer_alignment())
                         : VectorsOf(module_, facts, loop, from, node.Args(), context_.pointer_alignment());
      if (plan.form == ir::StoreForm::kTransposed && load.form == ir::LoadForm::kSame && !IsSameDown(loop, facts, read)) load = {.buffer = from};
      if (store.async && read.value == store.value) load = AsyncLoad(loop, here, from, node.Args());
      load.once = once_.contains(from) && !store.async && !ir::TakesOthers(load.form) && load.width * ir::Bits(node.dtype) == 128;
      plan.loads.push_back(load);
    }
  }

  // cp.async stops at the end of a row.
  ir::LoadPlan AsyncLoad(const ThreadLoop& loop, const Facts& facts, ir::BufferId from, std::span<const ir::ExprId> indices) const {
    const bool whole = VectorWidth(module_, facts, *loop.loop, from, indices, loop.run, context_.pointer_alignment()) == loop.run;
    const bool clipped = !whole && loop.Split(from, indices) && loop.run > 1;
    return {.buffer = from, .form = clipped ? ir::LoadForm::kClipped : ir::LoadForm::kVector, .width = int32_t(loop.run)};
  }

  // Whether neighbours along the variable before the last, which a transposed store takes together, read one element.
  bool IsSameDown(const ThreadLoop& loop, const Facts& facts, const ir::Read& read) const {
    const ir::ExprNode& node = module_.exprs[read.load];
    const size_t rows = loop.loop->vars.size() - 2;
    if (VectorWidthIn(module_, facts, *loop.loop, rows, ir::BufferId(node.ref), node.Args(), 2, context_.pointer_alignment()) != 0) return false;
    return !read.mask || MaskWidth(module_, facts, *loop.loop, rows, *read.mask, 2) == 2;
  }

  // Whether the mask, or what stands in for the element, is loaded from where an index outside reaches other data. As part of a vector it
  // would be loaded ahead of a select around it.
  bool LoadsToDecide(const ir::Read& read) const {
    if (!read.mask) return false;
    const auto loads = [&](ir::ExprId part) {
      const ir::ExprNode& node = module_.exprs[part];
      if (node.op != ir::ExprOp::kLoad) return false;
      const ir::Space space = module_[ir::BufferId(node.ref)].space;
      return space == ir::Space::kShared || space == ir::Space::kLocal;
    };
    return Contains(module_.exprs, *read.mask, loads) || Contains(module_.exprs, module_.exprs[read.value].args[2], loads);
  }

  ir::Module& module_;
  const Context& context_;
  const Digits digits_;
  ir::ThreadRange threads_{};  // the threads that come to the statement
  const std::set<ir::BufferId> once_, kept_;
};

}  // namespace

void Accesses(ir::Module& module, ir::Kernel& kernel, const Context& context) { Planner(module, kernel, context).Run(kernel); }

}  // namespace kiln::compiler
