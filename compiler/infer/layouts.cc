// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/layouts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "compiler/analysis/fragment_uses.h"
#include "compiler/infer/expand.h"
#include "compiler/infer/register_budget.h"
#include "compiler/infer/stage.h"
#include "compiler/infer/tensor_copies.h"
#include "compiler/infer/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/shared.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Layout;
using ir::Space;

// What one trial has decided.
struct State {
  std::map<BufferId, Layout> fragments;
  std::map<const ir::For*, Layout> loops;
};

class Inference {
 public:
  Inference(ir::Module& module, ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics)
      : module_(module), kernel_(kernel), context_(context), diagnostics_(diagnostics), uses_(FragmentUsesOf(module, kernel)) {}

  void Run() {
    // Before what instructions dictate: products can be staged, scalar accesses cannot.
    for (BufferId buffer : uses_.whole) {
      const std::vector<int64_t> shape = module_.ShapeOf(buffer);
      state_.fragments.try_emplace(buffer, Layout::Replicated(shape, ThreadsOf(buffer)));
    }
    for (const auto& gemm : uses_.gemms) Strict(*gemm);
    for (const ir::PairSum* sum : uses_.halves) Strict(*sum);
    Propagate(state_);
    Free();
    Commit();
  }

 private:
  // --- strict ---

  void Strict(const ir::Gemm& gemm) {
    const GemmShape shape = ShapeOf(gemm);
    const auto set = [&](const ir::Region& region, Layout layout) {
      if (module_[region.buffer].space != Space::kFragment || region.extents != module_.ShapeOf(region.buffer)) return;
      while (layout.rank() < int(region.extents.size())) {
        std::vector<std::vector<ir::Digit>> dims = layout.dims();
        dims.emplace(dims.begin());
        layout = Layout(std::move(dims), layout.replicas());
      }
      state_.fragments.try_emplace(region.buffer, std::move(layout));
    };
    const target::MmaInstruction* mma = target::FindMma(*context_.target, gemm.plan->instruction);
    if (mma == nullptr) {
      set(gemm.c, ScalarAccumulatorLayout(shape, ThreadsOf(gemm.c.buffer)));
      return;
    }
    const WarpGrid grid = GridOf(*gemm.plan, *mma, uint32_t(ThreadsOf(gemm.c.buffer)), *context_.target);
    set(gemm.c, AccumulatorLayout(*mma, shape, grid));
    const int swapped[] = {1, 0};
    if (mma->ReadsA()) {
      const Layout a = OperandALayout(*mma, shape, grid);
      set(gemm.a, gemm.transpose_a ? a.Permuted(swapped) : a);
    }
    if (!mma->ReadsB()) return;
    const Layout b = OperandBLayout(*mma, shape, grid);
    set(gemm.b, gemm.transpose_b ? b : b.Permuted(swapped));
  }

  // Of a sum's registers, each block gets some.
  void Strict(const ir::PairSum& sum) {
    const auto whole = state_.fragments.find(sum.sum);
    std::optional<Layout> half;
    if (whole != state_.fragments.end()) half = whole->second.Half(sum.dim);
    if (half) return void(state_.fragments.try_emplace(*sum.half, *std::move(half)));
    diagnostics_.Internal("registers of '" + module_[sum.sum].name + "' have no halves along dimension " + std::to_string(sum.dim));
  }

  // --- common ---

  // Until nothing more follows.
  void Propagate(State& state) const {
    for (bool changed = true; changed;) {
      changed = false;
      for (const LoopUse& use : uses_.loops) changed |= PropagateLoop(use, state);
      for (const ir::Reduce* reduce : uses_.reduces) changed |= PropagateReduce(*reduce, state);
    }
  }

  bool PropagateLoop(const LoopUse& use, State& state) const {
    bool changed = false;
    if (!state.loops.contains(use.loop)) {
      const LoopUse::Fragment* best = nullptr;
      int best_rank = -1;
      int64_t best_misfit = INT64_MAX;
      for (const LoopUse::Fragment& fragment : use.fragments) {
        const auto it = state.fragments.find(fragment.buffer);
        if (!fragment.covers || it == state.fragments.end()) continue;
        const int rank = (it->second.IsReplicated() ? 0 : 2) + fragment.write;
        const int64_t misfit = Misfit(use, LoopFromFragment(it->second, fragment.projection, int(use.extents.size())), state);
        if (rank / 2 < best_rank / 2) continue;
        if (rank / 2 > best_rank / 2 || best == nullptr || std::pair(misfit, -rank) < std::pair(best_misfit, -best_rank)) {
          best_rank = rank, best_misfit = misfit, best = &fragment;
        }
      }
      // A fragment that is held once may still turn up; copies in every thread are the last choice.
      const bool wait = best_rank < 2 && HasUnknownCover(use, state);
      if (wait || (best == nullptr && !FromSlice(use, state))) return false;
      if (best != nullptr) state.loops[use.loop] = LoopFromFragment(state.fragments.at(best->buffer), best->projection, int(use.extents.size()));
      changed = true;
    }
    return FragmentsFromLoop(use, state) || changed;
  }

  // The layout of a loop over a part of a fragment that is held once.
  bool FromSlice(const LoopUse& use, State& state) const {
    for (const LoopUse::Fragment& fragment : use.fragments) {
      const auto it = state.fragments.find(fragment.buffer);
      if (it == state.fragments.end() || it->second.IsReplicated() || !fragment.projection.Slices(use.extents)) continue;
      std::optional<Layout> layout = LoopFromSlice(it->second.Normalized(), fragment.projection, use.extents);
      if (!layout || Misfit(use, *layout, state) != 0) continue;
      state.loops[use.loop] = *std::move(layout);
      return true;
    }
    return false;
  }

  // Bits of the fragments that a loop laid out so would have to pass through shared memory.
  int64_t Misfit(const LoopUse& use, const Layout& loop, const State& state) const {
    int64_t bits = 0;
    for (const LoopUse::Fragment& fragment : use.fragments) {
      const auto it = state.fragments.find(fragment.buffer);
      if (it == state.fragments.end()) continue;
      const std::vector<int64_t> shape = module_.ShapeOf(fragment.buffer);
      if (RegisterMap(loop, use.extents, it->second, shape, fragment.projection)) continue;
      bits += std::accumulate(shape.begin(), shape.end(), int64_t{ir::Bits(module_[fragment.buffer].dtype)}, std::multiplies<>());
    }
    return bits;
  }

  static bool HasUnknownCover(const LoopUse& use, const State& state) {
    return std::ranges::any_of(use.fragments, [&](const auto& f) { return f.covers && !state.fragments.contains(f.buffer); });
  }

  bool FragmentsFromLoop(const LoopUse& use, State& state) const {
    bool changed = false;
    const Layout& loop = state.loops.at(use.loop);
    for (const LoopUse::Fragment& fragment : use.fragments) {
      if (state.fragments.contains(fragment.buffer) || !WholeDims(use, fragment)) continue;
      if (std::optional<Layout> layout = FragmentFromLoop(loop, fragment.projection)) {
        state.fragments[fragment.buffer] = *std::move(layout);
        changed = true;
      }
    }
    return changed;
  }

  // Variables index whole dimensions from 0, constants only dimensions of one element.
  bool WholeDims(const LoopUse& use, const LoopUse::Fragment& fragment) const {
    const std::vector<int64_t> shape = module_.ShapeOf(fragment.buffer);
    for (size_t d = 0; d < shape.size(); ++d) {
      const int var = fragment.projection.var[d];
      if (fragment.projection.offset[d] != 0 || shape[d] != (var < 0 ? 1 : use.extents[var])) return false;
    }
    return true;
  }

  bool PropagateReduce(const ir::Reduce& reduce, State& state) const {
    const auto src = state.fragments.find(reduce.src.buffer);
    if (src == state.fragments.end() || state.fragments.contains(reduce.dst.buffer)) return false;
    if (module_[reduce.dst.buffer].space != Space::kFragment) return false;
    const bool keep = reduce.dst.extents.size() == reduce.src.extents.size();
    state.fragments[reduce.dst.buffer] = src->second.WithoutDim(reduce.dim, keep);
    return true;
  }

  // --- free ---

  void Free() {
    while (true) {
      // Loops that only part of a fragment ties down come before fragments that nothing ties down.
      if (FromParts(state_)) continue;
      const std::vector<BufferId> roots = Unknown();
      if (roots.empty()) return;
      int64_t largest = 0;
      for (BufferId root : roots)
        if (Connected(roots.front(), root)) largest = std::max(largest, Elements(root));
      std::optional<State> best;
      std::array<int64_t, 3> best_cost{INT64_MAX, INT64_MAX, INT64_MAX};
      for (BufferId root : roots) {
        // Small fragments follow from large ones by reduction, not the other way round.
        if (Elements(root) < largest || !Connected(roots.front(), root)) continue;
        State trial = state_;
        trial.fragments[root] = RootLayout(root);
        Propagate(trial);
        if (const auto cost = Cost(trial); cost < best_cost) {
          best_cost = cost;
          best = std::move(trial);
        }
      }
      state_ = *std::move(best);
    }
  }

  std::vector<BufferId> Unknown() const {
    std::vector<BufferId> unknown;
    for (BufferId buffer : uses_.order)
      if (!state_.fragments.contains(buffer)) unknown.push_back(buffer);
    return unknown;
  }

  // True if a layout of one may say something of the other's: they meet in a loop or a reduction.
  bool Connected(BufferId a, BufferId b) const {
    std::set<BufferId> reached{a};
    for (size_t before = 0; before != reached.size();) {
      before = reached.size();
      const auto join = [&](const std::vector<BufferId>& group) {
        if (std::ranges::any_of(group, [&](BufferId id) { return reached.contains(id); })) reached.insert(group.begin(), group.end());
      };
      for (const LoopUse& use : uses_.loops) {
        std::vector<BufferId> group;
        for (const auto& fragment : use.fragments)
          if (!state_.fragments.contains(fragment.buffer)) group.push_back(fragment.buffer);
        join(group);
      }
      for (const ir::Reduce* reduce : uses_.reduces) join({reduce->src.buffer, reduce->dst.buffer});
    }
    return reached.contains(b);
  }

  // Neighbours in a thread as the loops over the fragment like them for their memory accesses: 16 bytes of what they read from global
  // memory, else of what they write there, else of what the fragment holds.
  Layout RootLayout(BufferId buffer) const {
    const std::vector<int64_t> shape = module_.ShapeOf(buffer);
    int64_t read = INT64_MAX, written = INT64_MAX, most = INT64_MAX;
    for (const LoopUse& use : uses_.loops) {
      if (std::ranges::none_of(use.fragments, [&](const auto& f) { return f.buffer == buffer && f.covers; })) continue;
      read = std::min(read, use.read), written = std::min(written, use.written);
      if (use.loop->coalesced_width > 0) most = std::min<int64_t>(most, use.loop->coalesced_width);
    }
    const int64_t bits = read != INT64_MAX ? read : written != INT64_MAX ? written : std::max(ir::Bits(module_[buffer].dtype), 8);
    int64_t vector = std::gcd(std::min(128 / bits, most), shape.back());
    // Fewer neighbours where the tile is too small to feed every thread.
    while (vector > 1 && Elements(buffer) / vector < ThreadsOf(buffer)) vector /= 2;
    return Layout::Distributed(shape, ThreadsOf(buffer), vector);
  }

  int64_t ThreadsOf(BufferId fragment) const { return uses_.threads.at(fragment).Count(); }

  int64_t Elements(BufferId buffer) const {
    const std::vector<int64_t> shape = module_.ShapeOf(buffer);
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }

  // Uses that need staging, then registers of a thread, then accesses to global memory.
  std::array<int64_t, 3> Cost(const State& state) const {
    int64_t bits = 0, misfits = 0, accesses = 0;
    for (const auto& [buffer, layout] : state.fragments) bits += layout.Registers() * ir::Bits(module_[buffer].dtype);
    for (const LoopUse& use : uses_.loops) {
      const auto loop = state.loops.find(use.loop);
      if (loop == state.loops.end()) continue;
      accesses += Accesses(use, loop->second);
      for (const auto& fragment : use.fragments) {
        const auto it = state.fragments.find(fragment.buffer);
        if (it == state.fragments.end()) continue;
        const std::vector<int64_t> shape = module_.ShapeOf(fragment.buffer);
        misfits += !RegisterMap(loop->second, use.extents, it->second, shape, fragment.projection);
      }
    }
    return {misfits, bits, accesses};
  }

  // Accesses of a thread to global memory, each of at most 16 bytes of neighbours.
  static int64_t Accesses(const LoopUse& use, const Layout& layout) {
    const int64_t narrowest = std::min(use.read, use.written);
    if (narrowest == INT64_MAX) return 0;
    const auto& last = layout.dim(layout.rank() - 1);
    const bool neighbours = !last.empty() && last[0].place == ir::Place::kRegister;
    return layout.Registers() / std::min(neighbours ? last[0].size : 1, 128 / narrowest);
  }

  // Gives one loop that propagation left open a layout: from a fragment that covers it, if only by copies in several threads, or,
  // where none will, from one over part of its variables.
  bool FromParts(State& state) const {
    for (const LoopUse& use : uses_.loops) {
      if (state.loops.contains(use.loop)) continue;
      const LoopUse::Fragment* best = nullptr;
      for (const LoopUse::Fragment& fragment : use.fragments) {
        if (!state.fragments.contains(fragment.buffer) || !WholeDims(use, fragment)) continue;
        if (best == nullptr || std::pair(fragment.covers, fragment.write) > std::pair(best->covers, best->write)) best = &fragment;
      }
      if (best == nullptr || (!best->covers && HasUnknownCover(use, state))) continue;
      const Layout& known = state.fragments.at(best->buffer);
      state.loops[use.loop] = best->covers ? LoopFromFragment(known, best->projection, int(use.extents.size()))
                                           : LoopFromPart(known, best->projection, use.extents, use.vector);
      FragmentsFromLoop(use, state);
      Propagate(state);
      return true;
    }
    return false;
  }

  void Commit() {
    for (auto& [buffer, layout] : state_.fragments) module_[buffer].layout = layout.Normalized();
    for (const LoopUse& use : uses_.loops) {
      const auto it = state_.loops.find(use.loop);
      if (it != state_.loops.end()) use.loop->layout = it->second.Normalized();
    }
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  ir::Diagnostics& diagnostics_;
  const FragmentUses uses_;
  State state_;
};

}  // namespace

ir::Result Layouts(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  for (ir::Kernel& kernel : module.kernels) {
    const size_t buffers = module.buffers.size();
    Expand(module, kernel.body);
    Inference(module, kernel, context, diagnostics).Run();
    Stage(module, kernel, context);
    Declare(module, kernel, buffers);
    LayOutTiles(module, kernel, context);
  }
  for (ir::Buffer& buffer : module.buffers) {
    if (buffer.space != Space::kShared || buffer.layout) continue;
    std::vector<int64_t> shape;
    for (ir::ExprId extent : buffer.shape) shape.push_back(module.exprs.ConstInt(extent).value_or(1));
    buffer.layout = SharedLayout(shape, ir::Bits(buffer.dtype));
  }
  for (const ir::Kernel& kernel : module.kernels) CheckRegisters(module, kernel, context, diagnostics);
  if (diagnostics.HasErrors()) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
