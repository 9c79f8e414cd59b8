// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/memory_order.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/neighbourhood.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/analysis/threads/walk_together.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::Digit;
using ir::Layout;
using ir::Place;

constexpr int64_t kWidestAccess = 16;  // bytes
constexpr int64_t kSector = 32;        // bytes that memory moves at once
constexpr int64_t kIssue = 4;          // sectors that an instruction is worth

bool IsPowerOfTwo(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

// Whether the access goes to the next element in memory with the variable, at least from the first of two neighbours to the second.
bool GoesAlong(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t v, const Access& access) {
  const ir::Buffer& buffer = module[access.buffer];
  if (!buffer.strides.empty() && !module.exprs.IsConst(buffer.strides.back(), 1)) return false;
  const Neighbourhood neighbours(module, facts, loop.vars[v], 2);
  const std::optional<Steps> last = neighbours.Of(access.indices.back());
  return last && last->step == 1 &&
         std::all_of(access.indices.begin(), access.indices.end() - 1, [&](ir::ExprId index) { return neighbours.IsOne(index); });
}

bool DependsOn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t v, int64_t extent, const Access& access) {
  const Neighbourhood all(module, facts, loop.vars[v], IsPowerOfTwo(extent) ? extent : 1);
  return extent > 1 && !std::ranges::all_of(access.indices, [&](ir::ExprId index) { return IsPowerOfTwo(extent) && all.IsOne(index); });
}

MemoryRun RunOf(const ir::Module& module, const Facts& facts, const ir::For& loop, const Access& access, int64_t alignment) {
  const std::vector<int64_t> extents = ExtentsOf(module, loop);
  MemoryRun run{.bytes = std::max<int64_t>(1, ir::Bits(module[access.buffer].dtype) / 8)};
  for (size_t v = 0; v < extents.size(); ++v) {
    run.used.push_back(DependsOn(module, facts, loop, v, extents[v], access));
    if (extents[v] == 1 || !GoesAlong(module, facts, loop, v, access)) continue;
    run.variable = v;
    run.width = AccessWidth(module, facts, loop, v, access, std::gcd(int64_t{16}, extents[v]), alignment);
  }
  return run;
}

std::vector<MemoryRun> RunsOf(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt, int64_t alignment) {
  const auto& loop = std::get<ir::For>(stmt.op);
  Facts inner = facts;
  inner.EnterLoop(loop);
  std::vector<MemoryRun> runs;
  for (const Access& access : AccessesOf(module, stmt)) {
    if (module[access.buffer].space != ir::Space::kGlobal || access.tile || access.indices.empty()) continue;
    runs.push_back(RunOf(module, inner, loop, access, alignment));
  }
  return runs;
}

// Registers that follow each other along a variable.
int64_t RegistersAlong(const Layout& layout, size_t v) {
  const auto& digits = layout.dim(int(v));
  return digits.empty() || digits[0].place != Place::kRegister ? 1 : digits[0].size;
}

}  // namespace

MemoryRuns MemoryRunsOf(const ir::Module& module, ir::Kernel& kernel, const Context& context) {
  MemoryRuns runs;
  WalkTogether(module, kernel, [&](ir::Stmt& stmt, const Facts& facts, const ir::ThreadRange&) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->coalesced_width != 0) return;
    std::vector<MemoryRun> found = RunsOf(module, facts, stmt, context.pointer_alignment());
    if (!found.empty()) runs.emplace(loop, std::move(found));
  });
  return runs;
}

int64_t MemoryCost(const Layout& layout, const std::vector<MemoryRun>& runs, const Context& context) {
  std::vector<ir::Indices> lanes;
  for (int64_t lane = 0; lane < std::min<int64_t>(context.target->warp_size, layout.Threads()); ++lane) lanes.push_back(layout.ThreadPart(lane));
  int64_t cost = 0;
  for (const MemoryRun& run : runs) {
    std::set<ir::Indices> sectors;
    for (ir::Indices lane : lanes) {
      for (size_t v = 0; v < lane.size(); ++v) {
        if (run.variable == v) lane[v] = lane[v] * run.bytes / kSector;
        else if (!run.used[v]) lane[v] = 0;
      }
      sectors.insert(std::move(lane));
    }
    int64_t registers = 1;
    for (size_t v = 0; v < run.used.size(); ++v) {
      for (const Digit& digit : layout.dim(int(v)))
        if (run.used[v] && digit.place == Place::kRegister) registers *= digit.size;
    }
    const int64_t width = run.variable ? std::gcd(RegistersAlong(layout, *run.variable), std::min(run.width, kWidestAccess / run.bytes)) : 1;
    cost += registers / std::max<int64_t>(1, width) * (int64_t(sectors.size()) + kIssue);
  }
  return cost;
}

std::vector<Layout> OrdersAlong(const std::vector<int64_t>& shape, int dim, int64_t threads, const Context& context) {
  const int last = int(shape.size()) - 1;
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t lanes = context.target->warp_size, warps = threads / lanes;
  if (dim == last || elements < threads || threads % lanes != 0 || !IsPowerOfTwo(warps) || !std::ranges::all_of(shape, IsPowerOfTwo)) return {};
  std::vector<Layout> orders;
  for (int64_t wide = 1; wide <= 8; wide *= 2) {
    for (int64_t high = 1; high <= 8 && wide * high <= elements / threads; high *= 2) {
      for (int64_t across = 1; across <= lanes; across *= 2) {
        std::vector<std::vector<Digit>> dims(shape.size());
        std::vector<int64_t> left = shape;
        int64_t registers = 1, taken = 1;
        const auto take = [&](int d, int64_t size, Place place) {
          if (size == 1 || left[size_t(d)] % size != 0) return size == 1;
          int64_t& stride = place == Place::kRegister ? registers : taken;
          dims[size_t(d)].push_back({size, place, stride});
          stride *= size, left[size_t(d)] /= size;
          return true;
        };
        if (!take(last, wide, Place::kRegister) || !take(dim, high, Place::kRegister)) continue;
        if (!take(last, across, Place::kThread) || !take(dim, lanes / across, Place::kThread)) continue;
        int64_t idle = warps;
        const auto spread = [&](int d) {
          const int64_t size = std::min(idle, left[size_t(d)]);
          take(d, size, Place::kThread), idle /= size;
        };
        spread(last), spread(dim);
        for (int d = 0; d < last; ++d)
          if (d != dim) spread(d);
        if (idle != 1) continue;
        for (int d = 0; d <= last; ++d) take(d, left[size_t(d)], Place::kRegister);
        orders.emplace_back(std::move(dims));
      }
    }
  }
  return orders;
}

namespace {

// The registers renumbered so that those along a variable follow each other.
Layout WithRegistersAlong(const Layout& layout, size_t v) {
  std::vector<std::vector<Digit>> dims = layout.dims();
  std::vector<Digit*> digits;
  for (std::vector<Digit>& dim : dims)
    for (Digit& digit : dim)
      if (digit.place == Place::kRegister) digits.push_back(&digit);
  std::ranges::sort(digits, {}, [&](const Digit* digit) { return std::pair(digit != &dims[v].front(), digit->stride); });
  int64_t stride = 1;
  for (Digit* digit : digits) digit->stride = stride, stride *= digit->size;
  return Layout(std::move(dims), layout.replicas(), layout.swizzle());
}

void PutLast(ir::For& loop, size_t v) {
  std::vector<int> order(loop.vars.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[v], order.back());
  loop.layout = WithRegistersAlong(*loop.layout, v).Permuted(order).Normalized();
  std::swap(loop.vars[v], loop.vars.back());
  std::swap(loop.extents[v], loop.extents.back());
}

}  // namespace

void PutRunsLast(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const MemoryRuns runs = MemoryRunsOf(module, kernel, context);
  ir::Walk(kernel.body, [&](ir::Stmt& stmt) {
    auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || !loop->layout || !runs.contains(loop)) return;
    std::vector<int64_t> saved(loop->vars.size(), 0);  // accesses that vectors along the variable save
    for (const MemoryRun& run : runs.at(loop)) {
      if (!run.variable) continue;
      const int64_t width = std::gcd(RegistersAlong(*loop->layout, *run.variable), std::min(run.width, kWidestAccess / run.bytes));
      saved[*run.variable] += width - 1;
    }
    const size_t best = size_t(std::ranges::max_element(saved) - saved.begin());
    if (saved[best] > saved.back()) PutLast(*loop, best);
  });
}

}  // namespace kiln::compiler
