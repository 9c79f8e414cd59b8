// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/block_run.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include "compiler/analysis/access.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

constexpr double kBarrier = 30;      // cycles of all threads of a block that have come
constexpr double kStart = 400;       // cycles until a block's first instruction: it is placed, and its parameters come
constexpr double kTensorCopy = 300;  // cycles that a tensor copy takes longer than a load: its addresses are made first
constexpr double kHandOver = 20;     // cycles from a barrier in shared memory to who waits for it
constexpr double kIteration = 6;     // cycles of a loop's own counting and branching

// Iterations of a loop that are followed at its start and at its end; the last ones of those at the start tell what each takes.
constexpr int64_t kFirst = 24, kLast = 8, kSteady = 8;

struct RingState {
  std::vector<double> full, empty;
  int64_t position = 0;
};

// Everything that goes on with time. A plain value: a loop's iterations are compared and skipped by it.
struct Clock {
  double now = kStart;                               // of the computing threads
  double filler = kStart;                            // of the thread that fills rings
  double port = 0;                                   // when the way to the L2 has brought what has been asked of it
  double memory = 0;                                 // when memory has brought its part of that to the L2
  double unit = 0;                                   // when the products of all groups so far have ended
  double stores = 0;                                 // when tensor stores have read their tiles
  double begin = kStart;                             // of the stretch without a barrier in which the threads are
  std::array<double, kUnits> stretch{};              // what they have taken of each unit in it
  std::map<BufferId, double> ready;                  // registers that something is on its way to
  std::vector<double> groups;                        // ends of asynchronous copies, group by group
  double open = 0;                                   // of the group that is not closed
  std::vector<std::pair<double, double>> under_way;  // when it is there, bytes
  std::map<BufferId, RingState> rings;
  BlockTime sum;
};

// Both are of one program, so their maps have the same keys but for those that came later.
void Advance(Clock& clock, double cycles) {
  for (double* time : {&clock.now, &clock.filler, &clock.port, &clock.memory, &clock.stores, &clock.open, &clock.unit}) *time += cycles;
  for (auto& [buffer, time] : clock.ready) time += cycles;
  for (double& time : clock.groups) time += cycles;
  for (auto& [time, bytes] : clock.under_way) time += cycles;
  for (auto& [buffer, ring] : clock.rings) {
    for (double& time : ring.full) time += cycles;
    for (double& time : ring.empty) time += cycles;
  }
}

// Sums as `times` further iterations of `count` add to them what they added between the two.
void Extend(Clock& clock, const Clock& before, double times) {
  const auto extend = [&](double& value, double earlier) { value += (value - earlier) * times; };
  const bool same_stretch = clock.begin == before.begin;
  for (size_t u = 0; u < kUnits; ++u) {
    if (same_stretch) extend(clock.stretch[u], before.stretch[u]);
    extend(clock.sum.busy[u], before.sum.busy[u]);
  }
  for (size_t w = 0; w < kWaits; ++w) extend(clock.sum.waited[w], before.sum.waited[w]);
  extend(clock.sum.products, before.sum.products);
  extend(clock.sum.read, before.sum.read), extend(clock.sum.written, before.sum.written), extend(clock.sum.waited_for, before.sum.waited_for);
  for (auto& [stmt, bytes] : clock.sum.read_by) {
    const auto earlier = before.sum.read_by.find(stmt);
    extend(bytes, earlier == before.sum.read_by.end() ? 0 : earlier->second);
  }
}

class Run {
 public:
  Run(const ir::Module& module, const ir::Kernel& kernel, const Context& context, const Surroundings& around, Scalars scalars)
      : module_(module),
        kernel_(kernel),
        target_(*context.target),
        machine_(target::MachineOf(target_)),
        around_(around),
        scalars_(std::move(scalars)),
        worker_(module, kernel, context),
        groups_(std::max(1.0, double(kernel.threads) / double(kGroupThreads))) {}

  BlockTime All() {
    Visit(kernel_.body);
    if (around_.spilled > 0 && !HasLoop(kernel_.body)) Spill();
    EndStretch();
    clock_.sum.cycles = std::max({clock_.now, clock_.stores, clock_.filler});
    clock_.sum.tail = std::max(0.0, clock_.sum.cycles - last_);
    return std::move(clock_.sum);
  }

 private:
  void Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) Visit(stmt);
  }

  void Visit(const ir::Stmt& stmt) {
    --left_;
    std::visit(ir::Overloaded{
                   [&](const ir::Let& op) {
                     if (const auto value = scalars_.Of(op.value)) scalars_.Set(op.var, *value);
                   },
                   [&](const ir::For& op) { op.kind == ir::LoopKind::kParallel ? Parallel(stmt, op) : Serial(op); },
                   [&](const ir::While& op) { Visit(op.body); },
                   [&](const ir::If& op) { Branch(op); },
                   [&](const ir::Gemm& op) { Product(stmt, op); },
                   [&](const ir::Reduce&) { Reduction(stmt); },
                   [&](const ir::Copy& op) { TensorCopy(stmt, op); },
                   [&](const ir::RingStep& op) { Ring(op); },
                   [&](const ir::Barrier& op) { op.by_group ? WaitUntil(clock_.now + kHandOver, Wait::kBarriers) : Meet(); },
                   [&](const ir::AsyncCommit&) {
                     clock_.groups.push_back(clock_.open);
                     if (clock_.groups.size() > 64) clock_.groups.erase(clock_.groups.begin());
                     clock_.open = 0;
                   },
                   [&](const ir::AsyncWait& op) { Await(op); },
                   [&](const ir::PairSum&) { Meeting(stmt); },
                   [&](const ir::StreamSum&) { Meeting(stmt); },
                   [&](const auto&) {},
               },
               stmt.op);
  }

  // --- Time of the threads.

  void WaitUntil(double time, Wait why) {
    if (time <= clock_.now) return;
    clock_.sum.waited[size_t(why)] += time - clock_.now;
    clock_.now = time;
  }

  // The threads run a statement. Groups of four warps go their own way between barriers: one alone takes its share, and all together take no less
  // than the units need (Pace).
  void Take(const Work& work) {
    for (size_t u = 0; u < kUnits; ++u) clock_.stretch[u] += work.cycles[u], clock_.sum.busy[u] += work.cycles[u];
    clock_.now += work.Busiest() / groups_;
  }

  // No unit does more than it can for all blocks on the multiprocessor.
  void Pace() {
    double least = 0;
    for (const double cycles : clock_.stretch) least = std::max(least, cycles);
    clock_.now = std::max(clock_.now, clock_.begin + least * double(around_.resident));
  }

  void EndStretch() {
    Pace();
    clock_.begin = clock_.now;
    clock_.stretch = {};
  }

  void Meet() {
    EndStretch();
    WaitUntil(clock_.now + kBarrier, Wait::kBarriers);
    clock_.begin = clock_.now;
  }

  // --- Memory.

  double Fresh(const ir::Stmt& stmt) const {
    const auto known = around_.fresh.find(&stmt);
    return known == around_.fresh.end() ? 1 : known->second;
  }

  // What is asked for at `when` is there at the result. Memory and the way from the L2 serve one after the other, each in its own time: what the
  // L2 has does not wait for what comes from memory.
  double Fetch(const ir::Stmt& stmt, double bytes, double asked, double when) {
    const double fresh = Fresh(stmt);
    const double port = asked / around_.port, memory = bytes * fresh / around_.memory;
    Use(Unit::kPort, port), Use(Unit::kMemory, memory);
    clock_.sum.read += bytes, clock_.sum.read_by[&stmt] += bytes;
    clock_.port = std::max(clock_.port, when) + port;
    if (memory > 0) clock_.memory = std::max(clock_.memory, when) + memory;
    const double served = memory > 0 ? std::max(clock_.port, clock_.memory) : clock_.port;
    const double there = served + machine_.far + fresh * (target_.costs.latency - machine_.far);
    std::erase_if(clock_.under_way, [&](const auto& earlier) { return earlier.first <= when; });
    clock_.under_way.emplace_back(there, bytes);
    clock_.sum.waited_for += bytes * (there - served);
    last_ = there;
    double together = 0;
    for (const auto& [end, part] : clock_.under_way) together += part;
    clock_.sum.under_way = std::max(clock_.sum.under_way, together);
    return there;
  }
  void Send(double bytes) {
    Use(Unit::kPort, bytes / around_.port), Use(Unit::kMemory, bytes / around_.memory);
    clock_.sum.written += bytes;
  }
  void Use(Unit unit, double cycles) { clock_.stretch[size_t(unit)] += cycles, clock_.sum.busy[size_t(unit)] += cycles; }

  // --- Statements.

  const Work& WorkOf(const ir::Stmt& stmt) {
    const auto known = works_.find(&stmt);
    return known != works_.end() ? known->second : works_.emplace(&stmt, worker_.Of(stmt, scalars_)).first->second;
  }

  void AwaitReads(const ir::Stmt& stmt) {
    for (const BufferId buffer : ReadBy(stmt)) {
      if (const auto at = clock_.ready.find(buffer); at != clock_.ready.end()) WaitUntil(at->second, Wait::kCopies);
    }
  }

  const std::vector<BufferId>& ReadBy(const ir::Stmt& stmt) {
    const auto [at, added] = reads_.try_emplace(&stmt);
    if (added) {
      for (const Access& access : AccessesOf(module_, stmt))
        if (!access.write && module_[access.buffer].space == ir::Space::kFragment) at->second.push_back(access.buffer);
    }
    return at->second;
  }

  void Parallel(const ir::Stmt& stmt, const ir::For& loop) {
    const Work& work = WorkOf(stmt);
    AwaitReads(stmt);
    Take(work);
    if (work.written > 0) Send(work.written);
    if (work.read == 0) return;
    const double there = Fetch(stmt, work.read, work.asked, clock_.now);
    bool async = false;
    BufferId to{};
    for (const ir::Stmt& inner : loop.body) {
      if (const auto* store = std::get_if<ir::Store>(&inner.op)) async |= store->async, to = store->buffer;
    }
    if (async) {
      clock_.open = std::max(clock_.open, there);
    } else if (work.loads_only) {
      clock_.ready[to] = there;
    } else {
      WaitUntil(there + work.latency, Wait::kCopies);
    }
  }

  void Product(const ir::Stmt& stmt, const ir::Gemm& gemm) {
    const Work& work = WorkOf(stmt);
    AwaitReads(stmt);
    for (size_t u = 0; u < kUnits; ++u) clock_.stretch[u] += work.cycles[u], clock_.sum.busy[u] += work.cycles[u];
    clock_.sum.products += work.products;
    const double own = work.Busiest() / groups_;
    double& sum = clock_.ready[gemm.c.buffer];
    const double begin = std::max(clock_.now, products_);
    products_ = begin + own;
    clock_.unit = std::max(clock_.unit, begin) + work.Busiest();
    sum = products_ + work.latency;
    if (!gemm.plan->in_flight) {
      clock_.now = begin + own;
      WaitUntil(sum, Wait::kProducts);
    } else {
      clock_.now += work[Unit::kIssue] / groups_;
    }
  }

  void Reduction(const ir::Stmt& stmt) {
    const Work& work = WorkOf(stmt);
    AwaitReads(stmt);
    Take(work);
    if (ScratchOf(stmt)) Meet();
    WaitUntil(clock_.now + work.latency, Wait::kBarriers);
  }

  void TensorCopy(const ir::Stmt& stmt, const ir::Copy& copy) {
    const Work& work = WorkOf(stmt);
    if (module_[copy.dst.buffer].space == ir::Space::kGlobal) {
      for (size_t u = 0; u < kUnits; ++u) clock_.stretch[u] += work.cycles[u], clock_.sum.busy[u] += work.cycles[u];
      Send(work.written);
      clock_.now += kHandOver;
      clock_.stores = std::max(clock_.stores, clock_.now) + work.written / around_.port + machine_.near;
      return;
    }
    const double share = copy.plan->multicast ? 1.0 / double(std::max<uint32_t>(1, kernel_.ClusterBlocks())) : 1.0;
    Use(Unit::kShared, work[Unit::kShared]), Use(Unit::kCopier, work[Unit::kCopier]);
    clock_.filler += std::max(work.latency, work[Unit::kCopier]);
    const double there = Fetch(stmt, work.read * share, work.asked * share, clock_.filler) + kTensorCopy;
    if (copy.plan->ring) {
      RingState& ring = RingOf(*copy.plan->ring);
      double& full = ring.full[size_t(ring.position) % ring.full.size()];
      full = std::max(full, there);
    }
  }

  RingState& RingOf(const ir::Ring& ring) {
    RingState& state = clock_.rings[ring.barriers];
    if (state.full.empty()) {
      const size_t stages = size_t(std::max<int64_t>(1, module_.ShapeOf(ring.barriers)[0] / 2));
      state.full.assign(stages, 0), state.empty.assign(stages, 0);
    }
    return state;
  }

  void Ring(const ir::RingStep& step) {
    RingState& ring = RingOf(step.ring);
    const auto slot = [&](int64_t position) { return size_t(std::max<int64_t>(0, position)) % ring.full.size(); };
    switch (step.action) {
      case ir::RingAction::kAcquire:
        clock_.filler = std::max(clock_.filler, ring.empty[slot(ring.position)]);
        ring.full[slot(ring.position)] = 0;
        break;
      case ir::RingAction::kWait: WaitUntil(ring.full[slot(ring.position)] + kHandOver, Wait::kCopies); break;
      case ir::RingAction::kRelease:
        // All groups have read the stage once the unit has done their products.
        ring.empty[slot(ring.position - step.behind)] = std::max(clock_.now, clock_.unit) + kHandOver;
        break;
      case ir::RingAction::kAdvance: ++ring.position; break;
    }
  }

  void Await(const ir::AsyncWait& wait) {
    if (wait.product) {
      if (const auto at = clock_.ready.find(*wait.product); at != clock_.ready.end()) WaitUntil(at->second, Wait::kProducts);
    } else if (wait.stores) {
      WaitUntil(clock_.stores, Wait::kCopies);
    } else if (clock_.groups.size() > size_t(wait.pending)) {
      for (size_t i = 0; i + size_t(wait.pending) < clock_.groups.size(); ++i) WaitUntil(clock_.groups[i], Wait::kCopies);
    }
  }

  void Meeting(const ir::Stmt& stmt) {
    Take(WorkOf(stmt));
    EndStretch();
    WaitUntil(clock_.now + WorkOf(stmt).latency, Wait::kBarriers);
    clock_.begin = clock_.now;
  }

  void Branch(const ir::If& branch) {
    if (!branch.IsNarrowed()) {
      const auto cond = scalars_.Of(branch.cond);
      Visit(!cond || *cond != 0 ? branch.then_body : branch.else_body);
      return;
    }
    // Threads of their own run each side.
    const double before = clock_.now;
    Visit(branch.then_body);
    const double after = std::exchange(clock_.now, before);
    Visit(branch.else_body);
    clock_.now = std::max(clock_.now, after);
  }

  void Serial(const ir::For& loop) {
    const int64_t count = std::max<int64_t>(0, scalars_.Or(loop.extents[0], 1));
    const bool innermost = !HasLoop(loop.body);
    // Loops in loops are followed as often as their product says, so all together only so far; from there on, one iteration stands for all.
    const bool brief = left_ <= 0;
    const int64_t first = brief ? 1 : kFirst, last = brief ? 0 : kLast, like = brief ? 1 : kSteady;
    std::optional<Clock> steady;
    double products = products_;
    if (brief) steady = clock_;
    for (int64_t i = 0; i < count; ++i) {
      scalars_.Set(loop.vars[0], i);
      Visit(loop.body);
      clock_.now += kIteration;
      if (innermost && around_.spilled > 0) Spill();
      Pace();
      if (!brief && count <= kFirst + kLast + kSteady) continue;
      if (i + 1 == first - like) steady = clock_, products = products_;
      if (i + 1 != first) continue;
      const int64_t skipped = count - last - first;
      const double times = double(skipped) / double(like), cycles = (clock_.now - steady->now) * times;
      Extend(clock_, *steady, times);
      Advance(clock_, cycles);
      if (clock_.begin != steady->begin) clock_.begin += cycles;
      products_ += products_ > products ? cycles : 0;
      i += skipped;
    }
  }

  // What does not fit in registers is stored and loaded once in each iteration of an innermost loop. Stores go on to the L2, which keeps them, and
  // loads as well where the first cache, which is what shared memory leaves, does not hold the threads' own memory.
  void Spill() {
    Work work;
    const double warps = double(kernel_.threads) / target_.warp_size, words = double(around_.spilled);
    work[Unit::kShared] = 2 * words * warps;
    work[Unit::kIssue] = 2 * words * warps / machine_.issue;
    Take(work);
    const double bytes = words * 4 * kernel_.threads, resident = double(around_.resident);
    const double kept = double(machine_.shared_bytes) - double(kernel_.shared_bytes) * resident;
    Use(Unit::kPort, bytes / around_.port * (bytes * resident > kept ? 2 : 1));
    WaitUntil(clock_.now + 2 * machine_.near, Wait::kCopies);
  }

  static bool HasLoop(const ir::Block& block) {
    bool found = false;
    ir::Walk(block, [&](const ir::Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      found |= loop != nullptr && loop->kind != ir::LoopKind::kParallel;
    });
    return found;
  }

  const ir::Module& module_;
  const ir::Kernel& kernel_;
  const target::Target& target_;
  const target::Machine& machine_;
  const Surroundings& around_;
  Scalars scalars_;
  const Worker worker_;
  const double groups_;
  Clock clock_;
  int64_t left_ = int64_t{1} << 20;  // statements that are still followed
  double products_ = 0;              // when the group's products so far have ended
  double last_ = 0;                  // when what was asked for last is there
  std::map<const ir::Stmt*, Work> works_;
  std::map<const ir::Stmt*, std::vector<BufferId>> reads_;
};

}  // namespace

BlockTime RunBlock(const ir::Module& module, const ir::Kernel& kernel, const Context& context, const Surroundings& surroundings, Scalars scalars) {
  return Run(module, kernel, context, surroundings, std::move(scalars)).All();
}

}  // namespace kiln::compiler
