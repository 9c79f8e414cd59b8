// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/layouts/inference.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "compiler/mapping/crossed_loop.h"
#include "compiler/rules/gemm.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Layout;
using ir::Space;

// A loop takes its layout from one of at most so many slices of fragments.
constexpr int kMostSlices = 16;
// The search for the fragment to lay out first looks at about so many loops at most.
constexpr size_t kMostLooked = 200'000;
// Orders of a tile's elements that are tried, the best for memory.
constexpr size_t kMostOrders = 8;

// Loops and reductions are numbered in program order. A loop is visited again only when one of its fragments has got a layout: nothing else
// changes what follows from the loop.
class Inference {
 public:
  Inference(const ir::Module& module, const Context& context, const FragmentUses& uses, const MemoryRuns& runs, const std::set<BufferId>& staged)
      : module_(module), context_(context), uses_(uses), runs_(runs), staged_(staged) {
    for (size_t i = 0; i < uses_.loops.size(); ++i) {
      for (const LoopUse::Fragment& fragment : uses_.loops[i].fragments) AddUser(users_[fragment.buffer].loops, i);
      pending_loops_.insert(pending_loops_.end(), i), open_.insert(open_.end(), i);
    }
    for (size_t i = 0; i < uses_.reduces.size(); ++i) {
      for (const BufferId id : {uses_.reduces[i]->src.buffer, uses_.reduces[i]->dst.buffer}) AddUser(users_[id].reduces, i);
      pending_reduces_.insert(pending_reduces_.end(), i);
    }
    for (size_t i = 0; i < uses_.order.size(); ++i) place_[uses_.order[i]] = i;
    FindDimsOfRuns();
  }

  Inferred Run() {
    // These come before what instructions dictate: a product's operands can be staged, scalar accesses cannot.
    for (BufferId buffer : uses_.whole) {
      const std::vector<int64_t> shape = module_.ShapeOf(buffer);
      SetFragment(buffer, Layout::Replicated(shape, ThreadsOf(buffer)));
    }
    for (const auto& gemm : uses_.gemms) Strict(*gemm);
    for (const ir::PairSum* sum : uses_.halves) Strict(*sum);
    Propagate();
    Free();
    int64_t misfits = 0;
    for (const LoopUse& use : uses_.loops)
      if (Known(use)) misfits += Misfit(use, loops_.at(use.loop));
    return {std::move(fragments_), std::move(loops_), misfits, std::move(problem_)};
  }

 private:
  struct Users {
    std::vector<size_t> loops, reduces;
  };

  static void AddUser(std::vector<size_t>& users, size_t user) {
    if (users.empty() || users.back() != user) users.push_back(user);
  }

  // --- what is known ---

  bool Known(BufferId buffer) const { return fragments_.contains(buffer); }
  bool Known(const LoopUse& use) const { return loops_.contains(use.loop); }

  void SetFragment(BufferId buffer, Layout layout) {
    if (!fragments_.try_emplace(buffer, std::move(layout)).second) return;
    new_fragments_.push_back(buffer);
    const Users& users = users_[buffer];
    pending_loops_.insert(users.loops.begin(), users.loops.end());
    open_.insert(users.loops.begin(), users.loops.end());
    pending_reduces_.insert(users.reduces.begin(), users.reduces.end());
  }

  void SetLoop(size_t index, Layout layout) {
    loops_[uses_.loops[index].loop] = std::move(layout);
    new_loops_.push_back(index);
  }

  // --- strict ---

  void Strict(const ir::Gemm& gemm) {
    const GemmShape shape = ShapeOf(gemm);
    const auto set = [&](const ir::Region& region, Layout layout) {
      if (module_[region.buffer].space != Space::kFragment || region.extents != module_.ShapeOf(region.buffer)) return;
      if (staged_.contains(region.buffer)) return;
      while (layout.rank() < int(region.extents.size())) {
        std::vector<std::vector<ir::Digit>> dims = layout.dims();
        dims.emplace(dims.begin());
        layout = Layout(std::move(dims), layout.replicas());
      }
      SetFragment(region.buffer, std::move(layout));
    };
    const target::MmaInstruction& mma = RowOf(gemm, *context_.target);
    if (mma.IsScalar()) {
      set(gemm.c, ScalarAccumulatorLayout(shape, ThreadsOf(gemm.c.buffer)));
      return;
    }
    const WarpGrid grid = GridOf(gemm, uint32_t(ThreadsOf(gemm.c.buffer)), *context_.target);
    set(gemm.c, AccumulatorLayout(mma, shape, grid));
    const int swapped[] = {1, 0};
    if (mma.ReadsA()) {
      const Layout a = OperandALayout(mma, shape, grid, gemm.plan->as_sums);
      set(gemm.a, gemm.transpose_a ? a.Permuted(swapped) : a);
    }
    if (!mma.ReadsB()) return;
    const Layout b = OperandBLayout(mma, shape, grid);
    set(gemm.b, gemm.transpose_b ? b : b.Permuted(swapped));
  }

  // Each block keeps half of the sum's registers.
  void Strict(const ir::PairSum& sum) {
    const auto whole = fragments_.find(sum.sum);
    std::optional<Layout> half;
    if (whole != fragments_.end()) half = whole->second.Half(sum.dim);
    if (half) return SetFragment(*sum.half, *std::move(half));
    problem_ = "registers of '" + module_[sum.sum].name + "' have no halves along dimension " + std::to_string(sum.dim);
  }

  // --- common ---

  // Works in rounds until nothing more follows: a round visits, in program order, what may have changed since the last.
  void Propagate() {
    while (!pending_loops_.empty() || !pending_reduces_.empty()) {
      Round(pending_loops_, [&](size_t i) { PropagateLoop(i); });
      Round(pending_reduces_, [&](size_t i) { PropagateReduce(*uses_.reduces[i]); });
    }
  }

  template <typename Visit>
  static void Round(std::set<size_t>& pending, Visit visit) {
    for (auto it = pending.begin(); it != pending.end();) {
      const size_t index = *it;
      pending.erase(it);
      visit(index);
      it = pending.upper_bound(index);
    }
  }

  void PropagateLoop(size_t index) {
    const LoopUse& use = uses_.loops[index];
    if (!Known(use)) {
      const LoopUse::Fragment* best = nullptr;
      int best_rank = -1;
      int64_t best_misfit = INT64_MAX;
      for (const LoopUse::Fragment& fragment : use.fragments) {
        const auto it = fragments_.find(fragment.buffer);
        if (!fragment.covers || it == fragments_.end()) continue;
        const int rank = (it->second.IsReplicated() ? 0 : 2) + fragment.write;
        const int64_t misfit = Misfit(use, LoopFromFragment(it->second, fragment.projection, int(use.extents.size())));
        if (rank / 2 < best_rank / 2) continue;
        if (rank / 2 > best_rank / 2 || best == nullptr || std::pair(misfit, -rank) < std::pair(best_misfit, -best_rank)) {
          best_rank = rank, best_misfit = misfit, best = &fragment;
        }
      }
      // Wait: a fragment of which each element is held by one thread may still get a layout. One that every thread holds is the last
      // choice.
      const bool wait = best_rank < 2 && HasUnknownCover(use);
      if (wait || (best == nullptr && !FromSlice(index))) return;
      if (best != nullptr) SetLoop(index, LoopFromFragment(fragments_.at(best->buffer), best->projection, int(use.extents.size())));
    }
    FragmentsFromLoop(use);
  }

  // Takes the loop's layout from a fragment whose elements one thread each holds, of which the loop covers a part.
  bool FromSlice(size_t index) {
    const LoopUse& use = uses_.loops[index];
    int tried = 0;
    for (const LoopUse::Fragment& fragment : use.fragments) {
      const auto it = fragments_.find(fragment.buffer);
      if (it == fragments_.end() || it->second.IsReplicated() || !fragment.projection.Slices(use.extents)) continue;
      if (++tried > kMostSlices) return false;
      std::optional<Layout> layout = LoopFromSlice(it->second.Normalized(), fragment.projection, use.extents);
      if (!layout || Misfit(use, *layout) != 0) continue;
      SetLoop(index, *std::move(layout));
      return true;
    }
    return false;
  }

  bool Fits(const LoopUse& use, const Layout& loop, const LoopUse::Fragment& fragment, const Layout& layout) const {
    return RegisterMap(loop, use.extents, layout, module_.ShapeOf(fragment.buffer), fragment.projection).has_value();
  }

  // Bits of the fragments that would have to pass through shared memory if the loop had this layout.
  int64_t Misfit(const LoopUse& use, const Layout& loop) const {
    int64_t bits = 0;
    for (const LoopUse::Fragment& fragment : use.fragments) {
      const auto it = fragments_.find(fragment.buffer);
      if (it == fragments_.end() || Fits(use, loop, fragment, it->second)) continue;
      bits += fragment.count * Elements(fragment.buffer) * ir::Bits(module_[fragment.buffer].dtype);
    }
    return bits;
  }

  bool HasUnknownCover(const LoopUse& use) const {
    return std::ranges::any_of(use.fragments, [&](const auto& f) { return f.covers && !Known(f.buffer); });
  }

  void FragmentsFromLoop(const LoopUse& use) {
    const Layout& loop = loops_.at(use.loop);
    for (const LoopUse::Fragment& fragment : use.fragments) {
      if (Known(fragment.buffer) || !WholeDims(use, fragment)) continue;
      if (std::optional<Layout> layout = FragmentFromLoop(loop, fragment.projection)) SetFragment(fragment.buffer, *std::move(layout));
    }
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

  void PropagateReduce(const ir::Reduce& reduce) {
    const auto src = fragments_.find(reduce.src.buffer);
    if (src == fragments_.end() || Known(reduce.dst.buffer) || module_[reduce.dst.buffer].space != Space::kFragment) return;
    const bool keep = reduce.dst.extents.size() == reduce.src.extents.size();
    SetFragment(reduce.dst.buffer, src->second.WithoutDim(reduce.dim, keep));
  }

  // --- free ---

  void Free() {
    while (true) {
      // A loop that a part of a fragment determines comes before a fragment that nothing determines.
      if (FromParts()) continue;
      while (first_unknown_ < uses_.order.size() && Known(uses_.order[first_unknown_])) ++first_unknown_;
      if (first_unknown_ == uses_.order.size()) return;
      ChooseRoot(Connected(uses_.order[first_unknown_]));
    }
  }

  // Tries each fragment as the first to be laid out, and lays out the cheapest of them.
  void ChooseRoot(const std::vector<BufferId>& roots) {
    int64_t largest = 0;
    for (const BufferId root : roots) largest = std::max(largest, Elements(root));
    std::optional<BufferId> best;
    std::array<int64_t, 3> best_cost{INT64_MAX, INT64_MAX, INT64_MAX};
    size_t looked = 0;
    for (const BufferId root : roots) {
      // Small fragments follow from large ones by reduction, not the other way round.
      if (Elements(root) < largest || looked > kMostLooked) continue;
      auto cost = Try(root, RootLayout(root), looked).layouts;
      cost[1] += LeastBitsOfOthers(roots);
      if (cost < best_cost) best_cost = cost, best = root;
    }
    SetFragment(*best, InMemoryOrder(*best, RootLayout(*best)));
    Propagate();
  }

  // Of a thread, for fragments that the last try did not reach: what they take without copies.
  int64_t LeastBitsOfOthers(const std::vector<BufferId>& fragments) const {
    const std::set<BufferId> reached(new_fragments_.begin(), new_fragments_.end());
    const auto least = [&](BufferId id) { return (Elements(id) + ThreadsOf(id) - 1) / ThreadsOf(id) * ir::Bits(module_[id].dtype); };
    return std::accumulate(fragments.begin(), fragments.end(), int64_t{0},
                           [&](int64_t bits, BufferId id) { return bits + (reached.contains(id) ? 0 : least(id)); });
  }

  // The layout, or one in another order if that is better for memory and stages no more.
  Layout InMemoryOrder(BufferId root, Layout layout) {
    const std::vector<int64_t> shape = module_.ShapeOf(root);
    const auto dims = dims_of_runs_.find(shape);
    if (dims == dims_of_runs_.end() || looked_at_orders_ > kMostLooked) return layout;
    const std::vector<std::pair<MemoryRun, int64_t>> runs = RunsOver(shape);
    std::vector<std::pair<int64_t, Layout>> orders;
    for (const int dim : dims->second) {
      for (Layout& order : OrdersAlong(shape, dim, ThreadsOf(root), context_)) {
        const int64_t cost = MemoryCostOf(order, runs);
        orders.emplace_back(cost, std::move(order));
      }
    }
    std::ranges::stable_sort(orders, {}, &std::pair<int64_t, Layout>::first);
    if (orders.size() > kMostOrders) orders.resize(kMostOrders, {0, layout});
    Cost least = Try(root, layout, looked_at_orders_);
    for (auto& [_, order] : orders) {
      if (looked_at_orders_ > kMostLooked) break;
      const Cost cost = Try(root, order, looked_at_orders_);
      if (cost.layouts[0] > least.layouts[0] || cost.memory >= least.memory) continue;
      least = cost, layout = std::move(order);
    }
    return layout;
  }

  // What loops of these extents that have no layout yet move, each kind with how often it comes.
  std::vector<std::pair<MemoryRun, int64_t>> RunsOver(const std::vector<int64_t>& extents) const {
    std::vector<std::pair<MemoryRun, int64_t>> kinds;
    for (const LoopUse& use : uses_.loops) {
      const auto runs = use.extents == extents && !Known(use) ? runs_.find(use.loop) : runs_.end();
      if (runs == runs_.end()) continue;
      for (const MemoryRun& run : runs->second) {
        const auto kind = std::ranges::find(kinds, run, &std::pair<MemoryRun, int64_t>::first);
        if (kind != kinds.end()) ++kind->second;
        else kinds.emplace_back(run, 1);
      }
    }
    return kinds;
  }

  int64_t MemoryCostOf(const Layout& loop, const std::vector<std::pair<MemoryRun, int64_t>>& runs) const {
    int64_t cost = 0;
    for (const auto& [run, count] : runs) cost += count * MemoryCost(loop, std::span(&run, 1), context_.target->warp_size);
    return cost;
  }

  // Dimensions of a tile, but the last, along which loops over such tiles go through memory.
  void FindDimsOfRuns() {
    for (const LoopUse& use : uses_.loops) {
      const auto runs = runs_.find(use.loop);
      if (runs == runs_.end()) continue;
      for (const MemoryRun& run : runs->second)
        if (run.variable && *run.variable + 1 < use.extents.size()) dims_of_runs_[use.extents].insert(int(*run.variable));
    }
  }

  struct Cost {
    std::array<int64_t, 3> layouts;
    int64_t memory;
  };

  // The cost, beyond that of the known layouts, of laying out this fragment first. Leaves the state as it was.
  Cost Try(BufferId root, const Layout& layout, size_t& looked) {
    new_fragments_.clear(), new_loops_.clear();
    SetFragment(root, layout);
    Propagate();
    std::set<size_t> touched(new_loops_.begin(), new_loops_.end());
    int64_t bits = 0;
    for (const BufferId id : new_fragments_) {
      bits += fragments_.at(id).Registers() * ir::Bits(module_[id].dtype);
      touched.insert(users_[id].loops.begin(), users_[id].loops.end());
    }
    looked += touched.size() + 1;
    Cost cost{{0, bits, 0}, 0};
    const auto add = [&](int64_t sign) {
      for (const size_t i : touched) {
        const auto [misfits, accesses] = CostOf(uses_.loops[i]);
        cost.layouts[0] += sign * misfits, cost.layouts[2] += sign * accesses;
        const auto runs = runs_.find(uses_.loops[i].loop);
        const auto loop = loops_.find(uses_.loops[i].loop);
        if (runs != runs_.end() && loop != loops_.end()) cost.memory += sign * MemoryCost(loop->second, runs->second, context_.target->warp_size);
      }
    };
    add(1);
    for (const size_t i : new_loops_) loops_.erase(uses_.loops[i].loop);
    for (const BufferId id : new_fragments_) fragments_.erase(id);
    add(-1);
    return cost;
  }

  // The fragments without a layout that are connected to `first`: two are connected where one loop or reduction uses both. In the order in
  // which the program first touches them.
  std::vector<BufferId> Connected(BufferId first) const {
    std::set<BufferId> reached{first};
    std::vector<BufferId> open{first};
    const auto reach = [&](BufferId id) {
      if (reached.insert(id).second) open.push_back(id);
    };
    while (!open.empty()) {
      const BufferId next = open.back();
      open.pop_back();
      const auto users = users_.find(next);
      if (users == users_.end()) continue;
      if (!Known(next)) {
        for (const size_t i : users->second.loops) {
          for (const LoopUse::Fragment& fragment : uses_.loops[i].fragments)
            if (!Known(fragment.buffer)) reach(fragment.buffer);
        }
      }
      for (const size_t i : users->second.reduces) reach(uses_.reduces[i]->src.buffer), reach(uses_.reduces[i]->dst.buffer);
    }
    std::vector<BufferId> unknown;
    for (const BufferId id : reached)
      if (place_.contains(id) && !Known(id)) unknown.push_back(id);
    std::ranges::sort(unknown, {}, [&](BufferId id) { return place_.at(id); });
    return unknown;
  }

  // A thread holds as many neighbouring elements as one memory access of the loops over the fragment takes: 16 bytes of what they read from
  // global memory; without reads, of what they write there; otherwise, of the fragment itself. Fewer where the accesses of these loops then cost
  // less: in rows that begin anywhere, lanes lie side by side.
  Layout RootLayout(BufferId buffer) {
    const std::vector<int64_t> shape = module_.ShapeOf(buffer);
    int64_t read = INT64_MAX, written = INT64_MAX, most = INT64_MAX;
    std::vector<std::pair<const LoopUse*, const Projection*>> moves;
    for (const size_t i : users_[buffer].loops) {
      const LoopUse& use = uses_.loops[i];
      const auto covered = std::ranges::find_if(use.fragments, [&](const auto& f) { return f.buffer == buffer && f.covers; });
      if (covered == use.fragments.end()) continue;
      read = std::min(read, use.read), written = std::min(written, use.written);
      if (use.loop->coalesced_width > 0) most = std::min<int64_t>(most, use.loop->coalesced_width);
      if (GoesAlongLast(module_, *use.loop, RunsOf(use))) moves.emplace_back(&use, &covered->projection);
    }
    const int64_t bits = read != INT64_MAX ? read : written != INT64_MAX ? written : std::max(ir::Bits(module_[buffer].dtype), 8);
    int64_t vector = std::gcd(std::min(128 / bits, most), shape.back());
    // Fewer neighbours where the tile is too small to feed every thread.
    while (vector > 1 && Elements(buffer) / vector < ThreadsOf(buffer)) vector /= 2;
    const auto layout = [&](int64_t width) { return Layout::Distributed(shape, ThreadsOf(buffer), width); };
    if (moves.empty()) return layout(vector);
    int64_t bytes = INT64_MAX;
    for (const auto& [use, _] : moves) bytes = std::min(bytes, NarrowestBytes(RunsOf(*use)));
    return layout(CheapestVector(vector, bytes, [&](int64_t width) {
      int64_t cost = 0;
      for (const auto& [use, projection] : moves) cost += MemoryCostOf(*use, LoopFromFragment(layout(width), *projection, int(use->extents.size())));
      return cost;
    }));
  }

  int64_t MemoryCostOf(const LoopUse& use, const Layout& loop) const { return MemoryCost(loop, RunsOf(use), context_.target->warp_size); }

  // Of a loop whose accesses the program does not dictate; none of others.
  std::span<const MemoryRun> RunsOf(const LoopUse& use) const {
    const auto runs = runs_.find(use.loop);
    return runs == runs_.end() ? std::span<const MemoryRun>() : runs->second;
  }

  int64_t ThreadsOf(BufferId fragment) const { return uses_.threads.at(fragment).Count(); }

  int64_t Elements(BufferId buffer) const {
    const std::vector<int64_t> shape = module_.ShapeOf(buffer);
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }

  // How many uses need staging, and how many accesses to global memory there are. (The full cost counts a thread's registers between the
  // two.)
  std::pair<int64_t, int64_t> CostOf(const LoopUse& use) const {
    const auto loop = loops_.find(use.loop);
    if (loop == loops_.end()) return {0, 0};
    int64_t misfits = 0;
    for (const auto& fragment : use.fragments) {
      const auto it = fragments_.find(fragment.buffer);
      if (it != fragments_.end() && !Fits(use, loop->second, fragment, it->second)) misfits += fragment.count;
    }
    return {misfits, Accesses(use, loop->second)};
  }

  // Accesses of a thread to global memory, each of at most 16 bytes of neighbours.
  static int64_t Accesses(const LoopUse& use, const Layout& layout) {
    const int64_t narrowest = std::min(use.read, use.written);
    if (narrowest == INT64_MAX) return 0;
    const auto& last = layout.dim(layout.rank() - 1);
    const bool neighbours = !last.empty() && last[0].place == ir::Place::kRegister;
    return layout.Registers() / std::min(neighbours ? last[0].size : 1, 128 / narrowest);
  }

  // Gives one loop that propagation left open a layout: that of a fragment that covers it, copies too, else of one over a part of its variables.
  bool FromParts() {
    while (!open_.empty()) {
      const size_t index = *open_.begin();
      open_.erase(open_.begin());
      const LoopUse& use = uses_.loops[index];
      if (Known(use)) continue;
      const LoopUse::Fragment* best = nullptr;
      for (const LoopUse::Fragment& fragment : use.fragments) {
        if (!Known(fragment.buffer) || !WholeDims(use, fragment)) continue;
        if (best == nullptr || std::pair(fragment.covers, fragment.write) > std::pair(best->covers, best->write)) best = &fragment;
      }
      if (best == nullptr || (!best->covers && HasUnknownCover(use))) continue;
      const Layout& known = fragments_.at(best->buffer);
      if (known.IsReplicated() && HasUnknownCover(use) && use.elsewhere.contains(best->buffer)) continue;  // every layout finds it in shared memory
      SetLoop(index, best->covers ? LoopFromFragment(known, best->projection, int(use.extents.size())) : FromPart(use, known, best->projection));
      FragmentsFromLoop(use);
      Propagate();
      return true;
    }
    return false;
  }

  // Of the other variables, the last takes as many neighbours as cost the least in memory.
  Layout FromPart(const LoopUse& use, const Layout& part, const Projection& projection) const {
    const auto layout = [&](int64_t vector) { return LoopFromPart(part, projection, use.extents, vector); };
    if (!GoesAlongLast(module_, *use.loop, RunsOf(use))) return layout(use.vector);
    return layout(CheapestVector(use.vector, NarrowestBytes(RunsOf(use)), [&](int64_t vector) { return MemoryCostOf(use, layout(vector)); }));
  }

  const ir::Module& module_;
  const Context& context_;
  const FragmentUses& uses_;
  const MemoryRuns& runs_;
  const std::set<BufferId>& staged_;
  std::string problem_;
  std::map<std::vector<int64_t>, std::set<int>> dims_of_runs_;  // by the extents of a loop
  std::map<BufferId, Users> users_;
  std::map<BufferId, size_t> place_;  // in uses_.order
  std::map<BufferId, Layout> fragments_;
  std::map<const ir::For*, Layout> loops_;
  std::vector<BufferId> new_fragments_;  // fragments and loops that got their layouts since this was cleared
  std::vector<size_t> new_loops_;
  std::set<size_t> pending_loops_, pending_reduces_;  // a fragment of each got its layout
  std::set<size_t> open_;                             // loops that a part of a fragment may lay out
  size_t first_unknown_ = 0;
  size_t looked_at_orders_ = 0;
};

}  // namespace

Inferred InferLayouts(const ir::Module& module, const Context& context, const FragmentUses& uses, const MemoryRuns& runs,
                      const std::set<BufferId>& staged) {
  return Inference(module, context, uses, runs, staged).Run();
}

}  // namespace kiln::compiler
