// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/work.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/plan/traffic.h"
#include "compiler/rules/arithmetic.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/reduce.h"
#include "compiler/rules/stream_cost.h"
#include "compiler/rules/tensor.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Space;

constexpr double kRow = 128;        // bytes that shared memory moves in a turn
constexpr double kShuffle = 32;     // lanes that exchange in a cycle
constexpr double kStep = 25;        // cycles of a dependent exchange of lanes and its operation
constexpr double kMatrixRow = 512;  // bytes of an ldmatrix or stmatrix of four matrices

// Instructions around an access behind a condition.
constexpr double kGuard = 6;
// Instructions of a division by a constant.
constexpr double kDivision = 4;

// Cycles from the start of a product until its sum may be read, beside the products themselves: issuing, filling the pipeline, waiting.
constexpr double kGroupProduct = 60, kWarpProduct = 35;
// Cycles for which the matrix unit idles between the products of one group and the next, while its pipeline empties and fills.
constexpr double kFill = 32;

// Cycles of the unit that makes tensor copies: for a box, for a row of it in the tensor, and for one outside, which it fills with zeros.
// tests/plan, few_rows_bf16: blocks of 64 rows, of which the tensor has 16.
constexpr double kBox = 16, kRowInside = 1, kRowOutside = 11;

bool IsPlain(const ir::ExprPool& pool, ir::ExprId id) {
  while (pool[id].op == ir::ExprOp::kCast) id = pool[id].args[0];
  return pool[id].op == ir::ExprOp::kLoad || ir::Chooses(pool[id].op);
}

}  // namespace

double Work::Busiest() const {
  double most = 0;
  for (size_t u = 0; u < kUnits; ++u)
    if (Unit(u) < Unit::kCopier) most = std::max(most, cycles[u]);
  return most;
}

Worker::Worker(const ir::Module& module, const ir::Kernel& kernel, const Context& context)
    : module_(module), kernel_(kernel), target_(*context.target), machine_(target::MachineOf(*context.target)) {
  Facts facts(module);
  facts.EnterKernel(kernel);
  FindGuarded(kernel.body, facts);
}

void Worker::FindGuarded(const ir::Block& block, const Facts& around) {
  Facts facts = around;
  for (const ir::Stmt& stmt : block) {
    if (const auto* let = std::get_if<ir::Let>(&stmt.op)) facts.Bind(*let);
    if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) facts.Assume(assume->cond);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
      Facts inside = facts;
      inside.Assume(branch->cond);
      FindGuarded(branch->then_body, inside);
      FindGuarded(branch->else_body, facts);
    }
    if (const auto* loop = std::get_if<ir::While>(&stmt.op)) FindGuarded(loop->body, facts);
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr) continue;
    Facts inside = facts;
    inside.EnterLoop(*loop);
    if (loop->kind != ir::LoopKind::kParallel) {
      FindGuarded(loop->body, inside);
      continue;
    }
    if (!loop->layout) continue;
    const ThreadLoop thread(module_, inside, stmt);
    ir::Walk(loop->body, [&](const ir::Stmt& inner) {
      const auto* store = std::get_if<ir::Store>(&inner.op);
      if (store == nullptr) return;
      for (const ir::Read& read : ir::ReadsOf(module_.exprs, store->value)) {
        const ir::ExprNode& load = module_.exprs[read.load];
        if (module_[ir::BufferId(load.ref)].space != Space::kGlobal) continue;
        if (read.mask || !ProvablyInside(module_, inside, ir::BufferId(load.ref), load.Args())) guarded_.emplace(loop, read.load);
        if (!thread.Split(ir::BufferId(load.ref), load.Args())) indices_[{loop, read.load}] = IndexOperations(load.Args());
      }
    });
  }
}

// Each node once; a division by a constant is a product, shifts and a difference.
double Worker::IndexOperations(std::span<const ir::ExprId> indices) const {
  std::set<ir::ExprId> seen;
  std::vector<ir::ExprId> open(indices.begin(), indices.end());
  double operations = 0;
  while (!open.empty()) {
    const ir::ExprId id = open.back();
    open.pop_back();
    const ir::ExprNode& node = module_.exprs[id];
    if (node.arg_count == 0 || !seen.insert(id).second) continue;
    operations += node.op == ir::ExprOp::kFloorDiv || node.op == ir::ExprOp::kFloorMod ? kDivision : 1;
    open.insert(open.end(), node.Args().begin(), node.Args().end());
  }
  return operations;
}

Work Worker::Of(const ir::Stmt& stmt, Scalars& scalars) const {
  return std::visit(ir::Overloaded{
                        [&](const ir::For& op) { return op.kind == ir::LoopKind::kParallel ? Loop(op, scalars) : Work{}; },
                        [&](const ir::Gemm& op) { return Product(op); },
                        [&](const ir::Reduce& op) { return Reduction(op); },
                        [&](const ir::Copy& op) { return Copy(op, scalars); },
                        [&](const ir::PairSum& op) { return Exchange(op.sum, 1); },
                        [&](const ir::StreamSum& op) { return Exchange(op.sum, scalars.Or(op.parts, 1)); },
                        [&](const auto&) { return Work{}; },
                    },
                    stmt.op);
}

Work Worker::Loop(const ir::For& loop, Scalars& scalars) const {
  Work work;
  if (!loop.layout) return work;
  const double warps = std::max(1.0, double(loop.layout->Threads()) / target_.warp_size);
  const double registers = double(loop.layout->Registers()), lanes = registers * double(std::max<int64_t>(loop.layout->Threads(), target_.warp_size));
  const Operations each = OperationsOf(module_, loop);
  double instructions = 0, one_by_one = 0, indexing = 0;  // of a warp
  bool reads_global = false, plain = true, to_registers = true;
  int64_t packed = 1;
  const auto touch = [&](ir::BufferId buffer, std::span<const ir::ExprId> indices, int64_t width, bool store, bool matrix) {
    const Space space = module_[buffer].space;
    if (space != Space::kGlobal && space != Space::kShared) return;
    const Traffic traffic = TrafficOf(module_, scalars, loop, *loop.layout, buffer, indices, width, store, target_.warp_size);
    const double element = double(ir::Bits(module_[buffer].dtype)) / 8;
    const double bytes = registers * target_.warp_size * element;  // of a warp
    const double count = matrix ? bytes / kMatrixRow : traffic.instructions;
    const double turns = matrix ? bytes / kRow : traffic.turns;
    instructions += count;
    work[Unit::kShared] += turns * warps;
    if (space != Space::kGlobal) return;
    (store ? work.written : work.read) += traffic.sectors * double(kSector);
    if (!store) work.asked += traffic.sectors * double(kSector);
    reads_global |= !store;
  };
  ir::Walk(loop.body, [&](const ir::Stmt& inner) {
    if (const auto* store = std::get_if<ir::Store>(&inner.op)) {
      const std::vector<ir::Read> reads = ir::ReadsOf(module_.exprs, store->value);
      std::vector<const ir::Read*> planned;
      for (const ir::Read& read : reads) {
        const Space space = module_[ir::BufferId(module_.exprs[read.load].ref)].space;
        if (space == Space::kGlobal || space == Space::kShared) planned.push_back(&read);
      }
      for (size_t i = 0; i < planned.size(); ++i) {
        const ir::ExprNode& load = module_.exprs[planned[i]->load];
        const bool known = store->plan && i < store->plan->loads.size();
        const int64_t width = known ? store->plan->loads[i].width : 1;
        const double before = instructions;
        touch(ir::BufferId(load.ref), load.Args(), width, false, false);
        if (const auto apart = indices_.find({&loop, planned[i]->load}); apart != indices_.end()) indexing += (instructions - before) * apart->second;
        if (!guarded_.contains({&loop, planned[i]->load})) continue;
        const double guarded = instructions - before;
        instructions += kGuard * guarded;
        // What is loaded is joined with what is there otherwise, and waited for where it is used: by the store.
        const bool together = store->plan && store->plan->form == ir::StoreForm::kVector;
        if (!store->async) one_by_one += guarded / (together ? std::max(1.0, double(store->plan->width) / double(width)) : 1.0);
      }
      const bool matrix = store->plan && (store->plan->form == ir::StoreForm::kMatrix || store->plan->form == ir::StoreForm::kTransposed);
      // An asynchronous copy is one instruction, counted as the load; its elements still pass to shared memory.
      const double before = instructions;
      const int64_t width = store->plan ? store->plan->width : 1;
      touch(store->buffer, store->indices, width, true, matrix);
      if (store->async) instructions = before;
      packed = std::max<int64_t>(packed, store->plan ? store->plan->packed : 1);
      plain &= IsPlain(module_.exprs, store->value);
      to_registers &= module_[store->buffer].space == Space::kFragment;
    }
    if (const auto* atomic = std::get_if<ir::Atomic>(&inner.op)) {
      touch(atomic->buffer, atomic->indices, 1, true, false);
      to_registers = plain = false;
    }
  });
  const double share = 1.0 / double(packed);
  const double full = (each.full * share + each.around) * lanes, half = each.half * share * lanes, special = each.special * lanes;
  work[Unit::kLanes] = full / machine_.lanes + half / machine_.half;
  work[Unit::kSpecial] = special / machine_.special;
  work[Unit::kLanes] += indexing * warps * target_.warp_size / machine_.half;
  work[Unit::kIssue] = Issued(instructions + indexing, warps) + (full + half + special) / target_.warp_size / machine_.issue;
  work.loads_only = reads_global && plain && to_registers && one_by_one == 0;
  work.latency = std::max(0.0, one_by_one - 1) * machine_.far;
  return work;
}

Work Worker::Product(const ir::Gemm& gemm) const {
  Work work;
  const target::MmaInstruction& row = target::RowOf(gemm, target_);
  const GemmShape shape = ShapeOf(gemm);
  const WarpGrid grid = GridOf(gemm, kernel_.threads, target_);
  const double element = double(ir::Bits(module_[gemm.a.buffer].dtype)) / 8, other = double(ir::Bits(module_[gemm.b.buffer].dtype)) / 8;
  const double a = double(shape.m * shape.k / row.k * row.KeptK()) * element, b = double(shape.n * shape.k) * other;
  const bool a_shared = module_[gemm.a.buffer].space == Space::kShared, b_shared = module_[gemm.b.buffer].space == Space::kShared;
  if (row.IsScalar()) {
    const double products = double(shape.m * shape.n) * double(shape.k) / double(row.k);
    work[Unit::kLanes] = products / machine_.lanes;
    // Four columns of a row are one thread's (ScalarAccumulatorLayout): it reads a row's element for all of them.
    const double reads = products / target_.warp_size * (1.0 / 4 + 1.0 / 4);
    work[Unit::kIssue] = (products / target_.warp_size + reads) / machine_.issue;
    work[Unit::kShared] = reads;
    work.latency = machine_.near;
    return work;
  }
  const double m = double(shape.m) / row.m, n = double(shape.n) / row.n, k = double(shape.k) / row.k;
  const double count = m * n * k;
  const double warps_m = double(std::max<int64_t>(1, grid.warps_m)), warps_n = double(std::max<int64_t>(1, grid.warps_n));
  if (row.IsByGroup() && !gemm.plan->by_warps) {
    // Each instruction reads its operands from shared memory anew.
    const double rows = double(row.swapped ? row.n : row.m), columns = double(row.swapped ? row.m : row.n);
    const bool first_shared = row.swapped ? b_shared : a_shared, second_shared = row.swapped ? a_shared : b_shared;
    const double bytes = (first_shared ? row.KeptK() * rows * (row.swapped ? other : element) : 0) +
                         (second_shared ? row.k * columns * (row.swapped ? element : other) : 0);
    const double groups = warps_m * warps_n * double(std::max<int64_t>(1, grid.warps_k));
    // Sums that are added in float32 wait for their instruction before the next one begins.
    const double starts = gemm.plan->promoted ? m * n / (warps_m * warps_n) : 1;
    work[Unit::kMatrix] = count * std::max(row.cycles, bytes / kRow) + kFill * groups * starts;
    work.products = count * row.cycles;
    work[Unit::kShared] = count * bytes / kRow;
    work[Unit::kIssue] = Issued(count * 4, 1);
    work.latency = kGroupProduct * starts;
    if (gemm.plan->promoted) {
      const double sums = double(shape.m * shape.n);
      work[Unit::kLanes] += sums / machine_.lanes;
      work[Unit::kIssue] += sums / target_.warp_size / machine_.issue;
    }
    return work;
  }
  const bool by_warps = gemm.plan->by_warps;
  // Four warps compute a group's rows side by side; what they take was measured with them.
  const double cycles = by_warps ? double(row.swapped ? row.m : row.n) / 8 * target_.costs.eight_columns : row.cycles / machine_.warp_products;
  work[Unit::kMatrix] = work.products = count * cycles / double(std::max(1, row.units));
  // Each warp loads the rows and columns that its instructions need.
  const double loaded = (a_shared ? a * warps_n : 0) + (b_shared ? b * warps_m : 0);
  work[Unit::kShared] = loaded / kRow;
  work[Unit::kIssue] = (count * (by_warps ? 4 : 1) + loaded / kMatrixRow) / machine_.issue;
  // An instruction waits for the one before it that adds to the same sum, unless the warp has others to issue.
  const double independent = m / warps_m * n / warps_n;
  work.latency = std::max(0.0, k / double(std::max(1, gemm.plan->warps_k)) * kWarpProduct - independent * k * cycles) + machine_.near + kWarpProduct;
  return work;
}

Work Worker::Reduction(const ir::Reduce& reduce) const {
  Work work;
  const ir::Buffer& source = module_[reduce.src.buffer];
  const ir::Buffer& result = module_[reduce.dst.buffer];
  if (!source.layout) return work;
  const double warps = std::max(1.0, double(source.layout->Threads()) / target_.warp_size), lanes = warps * target_.warp_size;
  const bool sums = reduce.kind == ir::ReduceKind::kSum && ir::IsFloat(source.dtype);
  const double registers = double(source.layout->Registers()), kept = result.layout ? double(result.layout->Registers()) : 1;
  const ReduceSteps steps = StepsOf(*source.layout, reduce.dim, target_.warp_size);
  const double exchanged = kept * double(steps.masks.size());
  work[Unit::kLanes] = lanes * (registers + exchanged) / (sums ? machine_.lanes : machine_.half);
  work[Unit::kShared] = lanes * exchanged / kShuffle;
  work[Unit::kIssue] = Issued(registers + 2 * exchanged, warps);
  work.latency = kStep * double(steps.masks.size()) + 4 * std::log2(std::max(1.0, registers / kept));
  if (reduce.scratch) {
    const double partials = double(std::max<int64_t>(1, steps.Partials()));
    work[Unit::kShared] += warps * kept * (1 + partials);
    work[Unit::kIssue] += Issued(kept * (1 + 2 * partials), warps);
    work.latency += 2 * machine_.near + 4 * partials;
  }
  return work;
}

// Only tensor copies are still copies.
Work Worker::Copy(const ir::Copy& copy, Scalars& scalars) const {
  Work work;
  const ir::Region& global = GlobalSide(module_, copy);
  const ir::Buffer& buffer = module_[global.buffer];
  const bool store = module_[copy.dst.buffer].space == Space::kGlobal;
  const double element = double(ir::Bits(buffer.dtype)) / 8;
  // Rows of the box, cut where the tensor ends, as whole sectors.
  double rows = 1, all_rows = 1, row = 0;
  int64_t start = 0;
  for (size_t d = 0; d < global.extents.size(); ++d) {
    const int64_t begin = scalars.Or(global.offsets[d], 0), size = scalars.Or(buffer.shape[d], begin + global.extents[d]);
    const int64_t inside = std::clamp<int64_t>(size - begin, 0, global.extents[d]);
    if (d + 1 == global.extents.size()) {
      row = double(inside) * element, start = int64_t(double(begin) * element);
    } else {
      rows *= double(inside), all_rows *= double(global.extents[d]);
    }
  }
  const int64_t pitch = int64_t(double(scalars.Or(buffer.shape.back(), 0)) * element);
  const bool aligned = pitch % kSector == 0 && start % kSector == 0;
  const double sectors = std::ceil(row / double(kSector)) + (aligned || row == 0 ? 0 : 1);
  (store ? work.written : work.read) = rows * sectors * double(kSector);
  // A tensor copy asks for lines, also where it needs a part of each.
  const bool in_lines = pitch % int64_t(kRow) == 0 && start % int64_t(kRow) == 0;
  work.asked = rows * (std::ceil(row / kRow) + (in_lines || row == 0 ? 0 : 1)) * kRow;
  work[Unit::kShared] = rows * row / kRow;
  const TensorTile tile = TileOf(module_, copy);
  const double boxes = double(tile.rows * tile.columns);
  work.latency = boxes * double(target_.costs.large_box) / machine_.port / 2;  // to issue them
  if (!store) work[Unit::kCopier] = boxes * kBox + rows * kRowInside + (all_rows - rows) * kRowOutside;
  work[Unit::kIssue] = Issued(boxes * 4, 1);
  return work;
}

// The owner of a tile takes the others' sums one after the other: each has a flag, and then its bytes come.
Work Worker::Exchange(ir::BufferId sum, int64_t others) const {
  Work work;
  const ir::Buffer& buffer = module_[sum];
  double elements = 1;
  for (const int64_t extent : module_.ShapeOf(sum)) elements *= double(extent);
  const double bytes = elements * ir::Bits(buffer.dtype) / 8;
  const int64_t together = buffer.layout ? PartsTogether(buffer.layout->Registers()) : 1;
  work.latency = 2 * target_.costs.meet + FurtherPartsCycles(target_, bytes, double(others), together);
  work[Unit::kShared] = 2 * bytes / kRow;
  work[Unit::kIssue] = Issued(2 * elements / kernel_.threads, double(kernel_.threads) / target_.warp_size);
  work[Unit::kPort] = bytes / target_.costs.sum_bytes;
  return work;
}

}  // namespace kiln::compiler
