// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/estimate.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/plan/sharing.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kSomeExtent = 4096;
constexpr double kLaunch = 2.5;    // microseconds until the first block runs, and until the last one's end is known
constexpr double kKept = 0.8;      // part of the L2 that a program's tensors may fill and still be there when they are read again
constexpr double kReached = 0.97;  // part of the memory's rate that remains beside its refreshes and turns of direction
constexpr int64_t kSampled = 5;    // blocks that are followed where they differ

class Estimator {
 public:
  Estimator(const ir::Module& module, const Context& context, const target::Board& board, Scalars scalars)
      : module_(module), context_(context), machine_(target::MachineOf(*context.target)), board_(board), scalars_(std::move(scalars)) {}

  KernelEstimate Of(const ir::Kernel& kernel) {
    KernelEstimate estimate{.launch = kLaunch, .occupancy = OccupancyOf(module_, kernel, context_)};
    const std::vector<int64_t> grid = GridOf(kernel, scalars_);
    estimate.grid = 1;
    for (const int64_t extent : grid) estimate.grid *= extent;
    estimate.microseconds = kLaunch;
    if (estimate.grid == 0) return estimate;
    const int64_t multiprocessors = board_.multiprocessors, slots = multiprocessors * estimate.occupancy.blocks;
    const int64_t turns = estimate.grid / slots, left = estimate.grid % slots;
    double cycles = 0;
    BlockTime block;
    Surroundings around;
    if (turns > 0) {
      around = Around(kernel, estimate, estimate.occupancy.blocks, multiprocessors);
      block = Blocks(kernel, grid, estimate, around, estimate.grid == slots);
      cycles += double(turns) * block.cycles;
    }
    if (left > 0) {
      const Surroundings last = Around(kernel, estimate, (left + multiprocessors - 1) / multiprocessors, std::min(left, multiprocessors));
      BlockTime time = Blocks(kernel, grid, estimate, last, turns == 0);
      cycles += time.cycles;
      if (turns == 0) block = std::move(time), around = last;
    }
    estimate.turns = double(estimate.grid) / double(slots);
    for (size_t u = 0; u < kUnits; ++u) estimate.units[u] = Microseconds(block.busy[u] * double(estimate.grid) / double(multiprocessors));
    for (size_t w = 0; w < kWaits; ++w) estimate.waited[w] = Microseconds(block.waited[w] * std::ceil(estimate.turns));
    estimate.l2_bytes = (block.read + block.written) * double(estimate.grid);
    estimate.memory_bytes = MemoryBytes(kernel, block, around, estimate.grid);
    estimate.units[size_t(Unit::kMemory)] = MemoryTime(block, estimate, around);
    // Behind its last read a block asks memory for nothing more, and behind the last blocks no others do.
    const double busy = std::max(Microseconds(cycles), estimate.units[size_t(Unit::kMemory)] + Microseconds(block.tail));
    estimate.power = PowerTime(block, estimate);
    estimate.microseconds += Slowed(busy, estimate.power);
    return estimate;
  }

 private:
  double Microseconds(double cycles) const { return cycles / board_.megahertz; }

  int64_t BytesOf(ir::BufferId id) const {
    const ir::Buffer& buffer = module_[id];
    double elements = 1;
    for (const ir::ExprId extent : buffer.shape) elements *= double(scalars_.Or(extent, kSomeExtent));
    return int64_t(elements * ir::Bits(buffer.dtype) / 8);
  }

  // The least time that reads and writes take. A queue of fixed content (closed, one server, as many places as bytes are under way): each byte takes
  // its time of the server, and its part of the latency, which as many bytes share.
  double MemoryTime(const BlockTime& block, const KernelEstimate& estimate, const Surroundings& around) const {
    const double served = estimate.memory_bytes / (board_.memory * kReached);
    if (block.under_way == 0) return served;
    const double blocks = double(estimate.grid) / double(board_.multiprocessors);
    return served + Microseconds(block.waited_for * blocks / (block.under_way * double(around.resident)));
  }

  // For how long the energy that it takes at the board's clock is the power that the board may take.
  double PowerTime(const BlockTime& block, const KernelEstimate& estimate) const {
    if (board_.watts == 0) return 0;
    const double picojoules = block.products * double(estimate.grid) * machine_.product_energy + estimate.l2_bytes * machine_.l2_energy +
                              estimate.memory_bytes * board_.memory_energy;
    return picojoules / board_.watts * 1e-6;
  }

  // Where that is longer the clock falls. The voltage falls with about its root, so the power with its square.
  static double Slowed(double busy, double power) { return power > busy ? std::sqrt(busy * power) : busy; }

  // Of the tensors that the kernel touches.
  double Footprint(const ir::Kernel& kernel) const {
    std::set<ir::BufferId> touched;
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      for (const Access& access : AccessesOf(module_, stmt))
        if (module_[access.buffer].space == ir::Space::kGlobal) touched.insert(access.buffer);
    });
    double bytes = 0;
    for (const ir::BufferId id : touched) bytes += double(BytesOf(id));
    return bytes;
  }

  // Whether that much of what the kernel touches is still in the L2 when it is needed again.
  bool StaysInL2(const ir::Kernel& kernel, double share) const { return share * Footprint(kernel) <= kKept * double(board_.l2_bytes); }

  // Each tensor comes from memory once if all of them stay in the L2; else as often as blocks at different times need it.
  double MemoryBytes(const ir::Kernel& kernel, const BlockTime& block, const Surroundings& around, int64_t grid) const {
    std::map<ir::BufferId, double> all, fresh;
    for (const auto& [stmt, bytes] : block.read_by) {
      const auto part = around.fresh.find(stmt);
      for (const Access& access : AccessesOf(module_, *stmt)) {
        if (access.write || module_[access.buffer].space != ir::Space::kGlobal) continue;
        all[access.buffer] += bytes * double(grid);
        fresh[access.buffer] += bytes * double(grid) * (part == around.fresh.end() ? 1 : part->second);
        break;
      }
    }
    double bytes = block.written * double(grid);
    const bool stays = StaysInL2(kernel, 1);
    for (const auto& [buffer, read] : all) {
      const double once = std::min(read, double(BytesOf(buffer)));
      bytes += stays ? once : std::max(once, fresh.at(buffer));
    }
    return bytes;
  }

  // What a block has of the device beside `resident` − 1 others on its multiprocessor, while `active` multiprocessors work.
  Surroundings Around(const ir::Kernel& kernel, const KernelEstimate& estimate, int64_t resident, int64_t active) const {
    Surroundings around{.resident = resident, .spilled = estimate.occupancy.spilled};
    around.port = std::min(machine_.port, board_.l2 / double(active));
    around.memory = std::min(machine_.port, board_.memory * kReached / board_.megahertz / double(active));
    const int64_t together = std::min(estimate.grid, resident * active);
    const double share = double(together) / double(std::max<int64_t>(1, estimate.grid));
    const bool all_stay = StaysInL2(kernel, 1), turn_stays = StaysInL2(kernel, share);
    for (const auto& [stmt, reading] : ReadingsOf(module_, kernel, scalars_, together, kKept * double(board_.l2_bytes))) {
      // Blocks that read the same are never quite in step.
      const double skew = reading.fresh < 1 ? std::min(context_.target->costs.skewed, 1 / reading.fresh) : 1;
      around.fresh[stmt] = reading.again && turn_stays ? 0 : reading.fresh * skew * (all_stay ? share : 1);
    }
    return around;
  }

  BlockTime Blocks(const ir::Kernel& kernel, const std::vector<int64_t>& grid, const KernelEstimate& estimate, const Surroundings& around,
                   bool at_once) const {
    const int64_t count = BlocksDiffer(kernel) ? std::min(kSampled, estimate.grid) : 1;
    BlockTime sum;
    double longest = 0;
    for (int64_t i = 0; i < count; ++i) {
      Scalars scalars = scalars_;
      EnterBlock(kernel, grid, count == 1 ? estimate.grid / 2 : i * (estimate.grid - 1) / (count - 1), scalars);  // one in the middle has no edge
      const std::vector<int64_t> threads = MiddleThreads(kernel);
      BlockTime time;
      for (const int64_t thread : threads) {
        if (threads.size() > 1) scalars.SetThread(thread);
        Add(time, RunBlock(module_, kernel, context_, around, scalars), 1.0 / double(threads.size()));
      }
      longest = std::max(longest, time.cycles);
      Add(sum, time, 1.0 / double(count));
    }
    // Where all blocks run at one time the longest one counts; else the others' places are taken as soon as they end.
    if (at_once) sum.cycles = longest;
    return sum;
  }

  // Groups of warps that begin a loop in different iterations take as long together as if all began where the middle one does, or half of them where
  // each of the middle two does. Of one thread of each.
  std::vector<int64_t> MiddleThreads(const ir::Kernel& kernel) const {
    const int64_t groups = kernel.threads / kGroupThreads, middle = int64_t(kernel.threads) / 2;
    const bool differ = std::ranges::any_of(module_.vars, [](const ir::Var& var) { return var.kind == ir::VarKind::kThread; });
    if (!differ || kernel.producers == 0 || groups % 2 != 0 || groups == 0) return {middle};
    return {middle - kGroupThreads, middle};
  }

  static void Add(BlockTime& sum, const BlockTime& time, double share) {
    sum.cycles += time.cycles * share;
    for (size_t u = 0; u < kUnits; ++u) sum.busy[u] += time.busy[u] * share;
    for (size_t w = 0; w < kWaits; ++w) sum.waited[w] += time.waited[w] * share;
    sum.products += time.products * share;
    sum.read += time.read * share, sum.written += time.written * share, sum.under_way += time.under_way * share,
        sum.waited_for += time.waited_for * share, sum.tail += time.tail * share;
    for (const auto& [stmt, bytes] : time.read_by) sum.read_by[stmt] += bytes * share;
  }

  // Whether loops or branches of some blocks are not those of others.
  bool BlocksDiffer(const ir::Kernel& kernel) const {
    std::set<ir::VarId> of_block(kernel.block_vars.begin(), kernel.block_vars.end());
    bool differ = false;
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      const auto depends = [&](ir::ExprId id) { return ContainsVar(module_.exprs, id, of_block); };
      if (const auto* let = std::get_if<ir::Let>(&stmt.op); let != nullptr && depends(let->value)) of_block.insert(let->var);
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) differ |= depends(branch->cond);
      if (const auto* loop = std::get_if<ir::For>(&stmt.op)) differ |= std::ranges::any_of(loop->extents, depends);
    });
    return differ;
  }

  const ir::Module& module_;
  const Context& context_;
  const target::Machine& machine_;
  const target::Board& board_;
  const Scalars scalars_;
};

}  // namespace

std::string_view Name(Unit unit) {
  static constexpr std::string_view kNames[] = {"matrix", "issue", "arithmetic", "special", "shared", "copier", "l2", "memory"};
  return kNames[size_t(unit)];
}

std::string_view Name(Wait wait) {
  static constexpr std::string_view kNames[] = {"copies", "products", "barriers"};
  return kNames[size_t(wait)];
}

bool IsSize(const ir::Var& var) { return var.kind == ir::VarKind::kSymbol || (var.kind == ir::VarKind::kScalar && ir::IsInteger(var.dtype)); }

Estimate EstimateOf(const ir::Module& module, const Context& context, const target::Board& board, const std::map<std::string, int64_t>& symbols) {
  Scalars scalars(module);
  for (size_t i = 0; i < module.vars.size(); ++i) {
    const ir::Var& var = module.vars[i];
    if (!IsSize(var)) continue;
    const auto given = symbols.find(var.name);
    scalars.Set(ir::VarId(i), given == symbols.end() ? kSomeExtent : given->second);
  }
  Estimator estimator(module, context, board, std::move(scalars));
  Estimate estimate;
  for (const ir::Kernel& kernel : module.kernels) {
    estimate.kernels.push_back(estimator.Of(kernel));
    estimate.microseconds += estimate.kernels.back().microseconds;
  }
  return estimate;
}

}  // namespace kiln::compiler
