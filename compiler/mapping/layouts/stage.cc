// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/layouts/stage.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/reduce.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Layout;
using ir::Space;

int64_t Copies(const Layout& layout) {
  return std::accumulate(layout.replicas().begin(), layout.replicas().end(), int64_t{1},
                         [](int64_t n, const ir::Digit& digit) { return n * digit.size; });
}

class Stager {
 public:
  Stager(ir::Module& module, ir::Kernel& kernel, const Context& context)
      : module_(module), kernel_(kernel), context_(context), divergence_(module, kernel), threads_(AllThreads(kernel)) {}

  void Visit(ir::Block& block) {
    ir::Block result;
    for (ir::Stmt& stmt : block) {
      Begin(stmt);
      const std::set<BufferId> written = FragmentsWrittenIn(stmt);
      const bool repeats = std::holds_alternative<ir::For>(stmt.op) || std::holds_alternative<ir::While>(stmt.op);
      if (repeats) Forget(written);
      ir::Block around;  // what stands behind the statement because of statements in it
      if (ComeApart(stmt)) {
        ExchangeAround(stmt);
        std::ranges::move(before_, std::back_inserter(result));
        around = std::move(after_);
      }
      VisitBodies(stmt);
      Begin(stmt);
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) {
        Loop(stmt, *loop);
      } else if (auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) {
        Gemm(*gemm);
      } else if (auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) {
        Reduce(*reduce);
      } else if (auto* sum = std::get_if<ir::PairSum>(&stmt.op)) {
        sum->scratch = Scratch(sum->sum, module_[sum->half.value_or(sum->sum)].layout->Registers() * kernel_.threads);
      } else {
        Scalars(stmt);
      }
      std::ranges::move(before_, std::back_inserter(result));
      result.push_back(std::move(stmt));
      std::ranges::move(after_, std::back_inserter(result));
      std::ranges::move(around, std::back_inserter(result));
      Forget(written);
    }
    block = std::move(result);
  }

 private:
  void Begin(const ir::Stmt& stmt) {
    before_.clear();
    after_.clear();
    loc_ = stmt.loc;
  }

  void VisitBodies(ir::Stmt& stmt) {
    if (auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind != ir::LoopKind::kParallel) VisitBody(loop->body, threads_);
    if (auto* loop = std::get_if<ir::While>(&stmt.op)) VisitBody(loop->body, threads_);
    auto* branch = std::get_if<ir::If>(&stmt.op);
    if (branch == nullptr) return;
    VisitBody(branch->then_body, branch->then_threads.value_or(threads_));
    VisitBody(branch->else_body, branch->else_threads.value_or(threads_));
  }

  // What the body brings to shared memory is there for its own statements alone.
  void VisitBody(ir::Block& body, const ir::ThreadRange& threads) {
    const ir::ThreadRange outer = std::exchange(threads_, threads);
    const std::map<BufferId, BufferId> in_shared = in_shared_;
    Visit(body);
    threads_ = outer, in_shared_ = in_shared;
  }

  std::set<BufferId> FragmentsWrittenIn(const ir::Stmt& stmt) const {
    std::set<BufferId> written;
    const auto add = [&](const ir::Stmt& inner) {
      for (const Access& access : AccessesOf(module_, inner))
        if (access.write && module_[access.buffer].space == Space::kFragment) written.insert(access.buffer);
    };
    add(stmt);
    ir::ForEachBody(stmt.op, [&](const ir::Block& body) { ir::Walk(body, add); });
    return written;
  }

  void Forget(const std::set<BufferId>& written) {
    for (const BufferId fragment : written) in_shared_.erase(fragment);
  }

  // dst[…] = src[…] over the whole tile, in the order of `layout`.
  ir::Stmt Move(BufferId src, BufferId dst, const Layout& layout) {
    const std::vector<int64_t> shape = module_.ShapeOf(src);
    ElementLoop element = MakeElementLoop(module_, shape, "s");
    const ir::ExprId value = module_.exprs.Load(src, module_[src].dtype, element.indices);
    element.loop.body.push_back({ir::Store{dst, element.indices, value}, loc_});
    element.loop.layout = layout;
    return {std::move(element.loop), loc_};
  }

  BufferId ToShared(BufferId fragment) {
    const BufferId shared = FreshLike(module_, fragment, Space::kShared, "_shared");
    before_.push_back(Move(fragment, shared, *module_[fragment].layout));
    return shared;
  }

  // --- parallel loops ---

  void Loop(const ir::Stmt& stmt, ir::For& loop) {
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    std::set<BufferId> misfits, written;
    // Several threads may run one iteration. If the iteration reads what the loop wrote, only the first of these threads can rely on its
    // read, and passes the result to the others through shared memory.
    const bool by_first = loop.layout && Copies(*loop.layout) > 1 && ReadsItsWrites(module_, stmt);
    for (const Access& access : AccessesOf(module_, stmt)) {
      if (module_[access.buffer].space != Space::kFragment) continue;
      if (Fits(loop, extents, access) && !(by_first && access.write)) continue;
      misfits.insert(access.buffer);
    }
    for (const Access& access : AccessesOf(module_, stmt))
      if (access.write && misfits.contains(access.buffer)) written.insert(access.buffer);
    for (BufferId fragment : misfits) {
      const BufferId shared = ThroughShared(fragment, written.contains(fragment), !IsOverwritten(loop, stmt, fragment));
      ReplaceBuffer(module_, loop.body, fragment, shared);
    }
  }

  // Whether the loop writes each element of the fragment, and reads none.
  bool IsOverwritten(const ir::For& loop, const ir::Stmt& stmt, BufferId fragment) const {
    if (!CoversElements(module_, loop, fragment)) return false;
    for (const Access& access : AccessesOf(module_, stmt))
      if (access.buffer == fragment && !access.write) return false;
    return std::ranges::any_of(loop.body, [&](const ir::Stmt& inner) {
      const auto* store = std::get_if<ir::Store>(&inner.op);
      return store != nullptr && store->buffer == fragment && IsOwnElement(module_, loop, store->indices);
    });
  }

  // `filled`: the tile in shared memory begins with what the fragment has.
  BufferId ThroughShared(BufferId fragment, bool written, bool filled = true) {
    const BufferId shared = filled ? ToShared(fragment) : FreshLike(module_, fragment, Space::kShared, "_shared");
    if (written) after_.push_back(Move(shared, fragment, *module_[fragment].layout));
    return shared;
  }

  // --- statements that touch single elements ---

  // Whether only some threads may come to a statement's bodies, or not all at once: they cannot wait for each other there.
  bool ComeApart(const ir::Stmt& stmt) const {
    const auto differs = [&](ir::ExprId id) { return divergence_.Differs(id, threads_); };
    if (const auto* loop = std::get_if<ir::For>(&stmt.op))
      return loop->kind != ir::LoopKind::kParallel && (std::ranges::any_of(loop->extents, differs) || divergence_.IsLeftEarly(loop));
    if (const auto* loop = std::get_if<ir::While>(&stmt.op)) return differs(loop->cond) || divergence_.IsLeftEarly(loop);
    const auto* branch = std::get_if<ir::If>(&stmt.op);
    return branch != nullptr && differs(branch->cond);
  }

  // Fragments that would pass through shared memory within the statement are in shared memory while it runs.
  void ExchangeAround(ir::Stmt& stmt) {
    std::map<BufferId, bool> exchanged;
    const std::vector<ir::Block*> bodies = BodiesOfSingleThreads(stmt);
    for (const ir::Block* body : bodies) ir::Walk(*body, [&](const ir::Stmt& inner) { AddExchanged(inner, exchanged); });
    // Two kinds of exchange need a barrier within the body, which `synchronize` refuses there: those of a fragment that is allocated in the body, and
    // those where a statement reads others' elements before it writes its own.
    for (const ir::Block* body : bodies) {
      ir::Walk(*body, [&](const ir::Stmt& inner) {
        if (const auto* alloc = std::get_if<ir::Alloc>(&inner.op)) exchanged.erase(alloc->buffer);
        if (ReadsOthers(inner)) exchanged.erase(std::get<ir::Store>(inner.op).buffer);
      });
    }
    for (const auto& [fragment, written] : exchanged) {
      const BufferId shared = ThroughShared(fragment, written);
      ReplaceBuffer(module_, stmt, fragment, shared);
      for (ir::Block* body : bodies) ReplaceBuffer(module_, *body, fragment, shared);
    }
  }

  // But for those of a branch whose threads wait for each other.
  static std::vector<ir::Block*> BodiesOfSingleThreads(ir::Stmt& stmt) {
    std::vector<ir::Block*> bodies;
    const auto* branch = std::get_if<ir::If>(&stmt.op);
    ir::ForEachBody(stmt.op, [&](ir::Block& body) {
      const bool together = branch != nullptr && (&body == &branch->then_body ? branch->then_threads : branch->else_threads).has_value();
      if (!together) bodies.push_back(&body);
    });
    return bodies;
  }

  // Adds the fragments that pass through shared memory for a statement that touches single elements, and whether it writes them.
  void AddExchanged(const ir::Stmt& stmt, std::map<BufferId, bool>& exchanged) const {
    for (const Access& access : AccessesOf(module_, stmt)) {
      if (module_[access.buffer].space != Space::kFragment || access.tile) continue;
      if (HeldByAll(access.buffer) && !IsOfOthersToo(access)) continue;
      exchanged[access.buffer] |= access.write;
    }
  }

  void Scalars(ir::Stmt& stmt) {
    std::map<BufferId, bool> written;
    AddExchanged(stmt, written);
    if (written.empty()) return;
    // Where every thread holds what it reads, it reads its copy: in shared memory, others may have written the element already.
    if (auto* store = std::get_if<ir::Store>(&stmt.op); store != nullptr && written.contains(store->buffer) && HeldByAll(store->buffer)) {
      written.erase(store->buffer);
      store->buffer = ThroughShared(store->buffer, /*written=*/true);
    }
    const bool reads_others = ReadsOthers(stmt);
    for (const auto& [fragment, write] : written) ReplaceBuffer(module_, stmt, fragment, ThroughShared(fragment, write));
    if (reads_others) ReadFirst(std::get<ir::Store>(stmt.op));
    if (auto* loop = std::get_if<ir::While>(&stmt.op)) {
      TestInside(module_, *loop, loc_);
      loop->body.insert(loop->body.begin(), std::make_move_iterator(before_.begin()), std::make_move_iterator(before_.end()));
      before_.clear();
    }
  }

  // Whether the statement stores an element of a fragment and reads others of it, which other threads may store.
  bool ReadsOthers(const ir::Stmt& stmt) const {
    const auto* store = std::get_if<ir::Store>(&stmt.op);
    if (store == nullptr || module_[store->buffer].space != Space::kFragment) return false;
    return std::ranges::any_of(AccessesOf(module_, stmt), [&](const Access& access) {
      return access.buffer == store->buffer && !access.write && access.indices != store->indices;
    });
  }

  void ReadFirst(ir::Store& store) {
    const ir::VarId value = FreshVar(module_, ir::VarKind::kLet, module_.exprs[store.value].dtype, "value");
    before_.push_back({ir::Let{value, store.value}, loc_});
    store.value = module_.VarRef(value);
  }

  bool HeldByAll(BufferId fragment) const { return module_[fragment].layout->IsWhole(); }

  // Whether each thread writes an element of its own, which others read: they hold a copy of it, too.
  bool IsOfOthersToo(const Access& access) const {
    return access.write && divergence_.IsExchanged(access.buffer) &&
           std::ranges::any_of(access.indices, [&](ir::ExprId index) { return divergence_.Differs(index, threads_); });
  }

  bool Fits(const ir::For& loop, const std::vector<int64_t>& extents, const Access& access) const {
    if (!loop.layout) return false;
    const std::optional<Projection> projection = ProjectionOf(module_, loop, access.indices);
    if (!projection) return false;
    const Layout& fragment = *module_[access.buffer].layout;
    if (!RegisterMap(*loop.layout, extents, fragment, module_.ShapeOf(access.buffer), *projection)) return false;
    if (!access.write) return true;
    // Every thread that holds the element must write it.
    const std::optional<Layout> written = FragmentFromLoop(*loop.layout, *projection);
    return written && Copies(*written) == Copies(fragment);
  }

  // --- matrix products ---

  void Gemm(ir::Gemm& gemm) {
    const GemmShape shape = ShapeOf(gemm);
    const target::MmaInstruction& mma = RowOf(gemm, *context_.target);
    if (mma.IsScalar()) {
      Operand(gemm.a, nullptr);
      Operand(gemm.b, nullptr);
      Accumulator(gemm, ScalarAccumulatorLayout(shape, threads_.Count()));
      return;
    }
    const WarpGrid grid = GridOf(gemm, threads_.Count(), *context_.target);
    const int swapped[] = {1, 0};
    if (gemm.metadata) Operand(*gemm.metadata, nullptr);
    if (mma.ReadsA()) {
      Layout a = OperandALayout(mma, shape, grid, gemm.plan->as_sums);
      if (gemm.transpose_a) a = a.Permuted(swapped);
      gemm.plan->as_sums ? Held(gemm.a, a) : Operand(gemm.a, &a);
    }
    if (mma.ReadsB()) {
      Layout b = OperandBLayout(mma, shape, grid);
      if (!gemm.transpose_b) b = b.Permuted(swapped);
      Operand(gemm.b, &b);
    }
    // Warps compute by themselves only on an operand in registers; if the operand passes through shared memory, wgmma computes the product.
    gemm.plan->by_warps &= module_[(mma.swapped ? gemm.b : gemm.a).buffer].space == Space::kFragment;
    Accumulator(gemm, AccumulatorLayout(mma, shape, grid));
  }

  Layout Fitted(Layout layout, const ir::Region& region) const {
    std::vector<std::vector<ir::Digit>> dims = layout.dims();
    dims.insert(dims.begin(), region.extents.size() - dims.size(), {});
    return Layout(std::move(dims), layout.replicas());
  }

  void Operand(ir::Region& region, const Layout* wanted) {
    const ir::Buffer& buffer = module_[region.buffer];
    if (buffer.space != Space::kFragment) return;
    const bool whole = region.extents == module_.ShapeOf(region.buffer);
    if (wanted != nullptr && whole && *buffer.layout == Fitted(*wanted, region)) return;
    const auto [known, is_new] = in_shared_.try_emplace(region.buffer);
    if (is_new) known->second = ToShared(region.buffer);
    region.buffer = known->second;
  }

  // An operand that only registers can hold.
  void Held(ir::Region& region, const Layout& wanted) {
    const Layout layout = Fitted(wanted, region).Normalized();
    if (*module_[region.buffer].layout == layout) return;
    const BufferId shared = ToShared(region.buffer), fitted = FreshLike(module_, region.buffer, Space::kFragment, "_fitted");
    module_[fitted].layout = layout;
    before_.push_back(Move(shared, fitted, layout));
    region.buffer = fitted;
  }

  void Accumulator(ir::Gemm& gemm, const Layout& wanted) {
    const BufferId c = gemm.c.buffer;
    const Layout layout = Fitted(wanted, gemm.c).Normalized();
    if (*module_[c].layout == layout) return;
    const BufferId shared = ToShared(c), fitted = FreshLike(module_, c, Space::kFragment, "_fitted");
    module_[fitted].layout = layout;
    before_.push_back(Move(shared, fitted, layout));
    after_.push_back(Move(fitted, shared, layout));
    after_.push_back(Move(shared, c, *module_[c].layout));
    gemm.c.buffer = fitted;
  }

  // --- reductions ---

  void Reduce(ir::Reduce& reduce) {
    const Layout src = *module_[reduce.src.buffer].layout;  // a copy of the layout: adding buffers below invalidates references
    const bool keep = reduce.dst.extents.size() == reduce.src.extents.size();
    const Layout layout = src.WithoutDim(reduce.dim, keep).Normalized();
    const BufferId dst = reduce.dst.buffer;
    if (!(*module_[dst].layout == layout)) {
      const BufferId fitted = FreshLike(module_, dst, Space::kFragment, "_fitted");
      module_[fitted].layout = layout;
      const BufferId shared = FreshLike(module_, dst, Space::kShared, "_shared");
      if (!reduce.clear) {
        before_.push_back(Move(dst, shared, *module_[dst].layout));
        before_.push_back(Move(shared, fitted, layout));
      }
      after_.push_back(Move(fitted, shared, layout));
      after_.push_back(Move(shared, dst, *module_[dst].layout));
      reduce.dst.buffer = fitted;
    }
    int64_t partials = StepsOf(src, reduce.dim, LanesOf(threads_, context_.target->warp_size)).Partials();
    if (reduce.cluster) partials *= kernel_.ClusterBlocks();
    if (partials == 1) return;
    int64_t elements = partials;
    for (int d = 0; d < layout.rank(); ++d) elements *= layout.Extent(d);
    if (reduce.cluster) elements = kExchangeTurns * (elements + kExchangeBarrierBytes / ir::Bytes(module_[dst].dtype));
    reduce.scratch = Scratch(dst, elements);
  }

  BufferId Scratch(BufferId result, int64_t elements) {
    // Partial results of types without arithmetic of their own are f32.
    const ir::DType dtype = ir::Bits(module_[result].dtype) < 16 && ir::IsFloat(module_[result].dtype) ? ir::DType::kF32 : module_[result].dtype;
    return FreshBuffer(module_, {Space::kShared, dtype, {module_.exprs.Int(elements)}}, module_[result].name + "_partials");
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const Divergence divergence_;
  ir::ThreadRange threads_;                 // the threads that come to the statement
  std::map<BufferId, BufferId> in_shared_;  // products' operands, for those behind them that take the same
  ir::SourceLoc loc_;
  ir::Block before_, after_;
};

}  // namespace

void Stage(ir::Module& module, ir::Kernel& kernel, const Context& context) { Stager(module, kernel, context).Visit(kernel.body); }

}  // namespace kiln::compiler
