// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/crossed_loop.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/memory_runs.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/vector_width.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Digit;
using ir::Layout;
using ir::Place;

constexpr int64_t kMost = 16;  // elements of one access

// The variable in which an access is contiguous, and how many neighbouring elements one access may take; width 1: no variable.
struct Run {
  size_t variable = 0;
  int64_t width = 1;
};

Run RunOf(const ir::Module& module, const Facts& facts, const ir::For& loop, const Access& access, int64_t alignment) {
  const std::vector<int64_t> extents = ExtentsOf(module, loop);
  for (size_t v = 0; v < loop.vars.size(); ++v) {
    const int64_t most = std::gcd(kMost, extents[v]);
    const int64_t width = OwnWidth(module, facts, loop, v, access, most, alignment);
    if (width > 1) return {v, width};
  }
  return {};
}

bool IsMemory(const ir::Module& module, const Access& access) {
  const ir::Space space = module[access.buffer].space;
  return !access.tile && (space == ir::Space::kGlobal || space == ir::Space::kShared);
}

// The largest power of two that divides `units`, at most `most`.
int64_t Part(int64_t units, int64_t most) {
  int64_t part = 1;
  while (2 * part <= most && units % (2 * part) == 0) part *= 2;
  return part;
}

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

void PutStoresLast(const ir::Module& module, const Facts& facts, ir::Stmt& stmt, int64_t alignment) {
  auto& loop = std::get<ir::For>(stmt.op);
  for (const Access& access : AccessesOf(module, stmt)) {
    if (!access.write || !IsMemory(module, access)) continue;
    const Run run = RunOf(module, facts, loop, access, alignment);
    if (run.width == 1) continue;
    std::swap(loop.vars[run.variable], loop.vars.back());
    std::swap(loop.extents[run.variable], loop.extents.back());
    return;
  }
}

std::optional<ir::Layout> CrossedLayout(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt, int64_t threads, const Context& context) {
  const auto& loop = std::get<ir::For>(stmt.op);
  const size_t last = loop.vars.size() - 1;
  int64_t wide = 1;
  Run across;
  // A warp reads one line of a row at a time, or two lines where its stores go to shared memory, which serves short runs as well as long
  // ones.
  int64_t bytes = 1, lines = 1;
  for (const Access& access : AccessesOf(module, stmt)) {
    if (!IsMemory(module, access)) continue;
    if (access.write && module[access.buffer].space == ir::Space::kShared) lines = 2;
    const Run run = RunOf(module, facts, loop, access, context.pointer_alignment());
    if (run.width == 1) continue;
    if (run.variable == last) {
      wide = std::max(wide, run.width);
    } else if (!access.write && run.width > across.width) {
      across = run, bytes = ir::Bytes(module[access.buffer].dtype);
    }
  }
  if (wide == 1 || across.width == 1) return std::nullopt;
  const std::vector<int64_t> extents = ExtentsOf(module, loop);
  for (size_t v = 0; v < last; ++v)
    if (v != across.variable && extents[v] != 1) return std::nullopt;
  const int64_t columns = extents[across.variable] / across.width, rows = extents[last] / wide;
  // Lanes, then warps: first along what is read, then along what is written.
  const int64_t lanes = std::min(threads, int64_t(context.target->warp_size));
  const int64_t lane_columns = Part(columns, std::min(lanes, lines * context.target->costs.line / (across.width * bytes))),
                lane_rows = Part(rows, lanes / lane_columns);
  const int64_t warps = threads / (lane_columns * lane_rows);
  const int64_t warp_columns = Part(columns / lane_columns, warps), warp_rows = Part(rows / lane_rows, warps / warp_columns);
  if (lane_columns * lane_rows * warp_columns * warp_rows != threads) return std::nullopt;
  const int64_t more_columns = columns / (lane_columns * warp_columns), more_rows = rows / (lane_rows * warp_rows);
  const int64_t block = wide * across.width;
  std::vector<std::vector<Digit>> dims(loop.vars.size());
  const auto push = [&](size_t v, int64_t size, Place place, int64_t stride) {
    if (size > 1) dims[v].push_back({size, place, stride});
  };
  push(last, wide, Place::kRegister, 1);
  push(last, lane_rows, Place::kThread, lane_columns);
  push(last, warp_rows, Place::kThread, lane_columns * lane_rows * warp_columns);
  push(last, more_rows, Place::kRegister, block);
  push(across.variable, across.width, Place::kRegister, wide);
  push(across.variable, lane_columns, Place::kThread, 1);
  push(across.variable, warp_columns, Place::kThread, lane_columns * lane_rows);
  push(across.variable, more_columns, Place::kRegister, block * more_rows);
  return ir::Layout(std::move(dims), {});
}

std::vector<Layout> OrdersAlong(const std::vector<int64_t>& shape, int dim, int64_t threads, const Context& context) {
  const int last = int(shape.size()) - 1;
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t lanes = context.target->warp_size, warps = threads / lanes;
  if (dim == last || elements < threads || threads % lanes != 0 || !std::has_single_bit(uint64_t(warps))) return {};
  if (!std::ranges::all_of(shape, [](int64_t extent) { return std::has_single_bit(uint64_t(extent)); })) return {};
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

void PutRunsLast(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const MemoryRuns runs = MemoryRunsOf(module, kernel, context.pointer_alignment());
  ir::Walk(kernel.body, [&](ir::Stmt& stmt) {
    auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || !loop->layout || !runs.contains(loop)) return;
    std::vector<int64_t> saved(loop->vars.size(), 0);  // accesses that vectors along the variable save
    for (const MemoryRun& run : runs.at(loop)) {
      if (run.variable) saved[*run.variable] += run.Width(*loop->layout) - 1;
    }
    const size_t best = size_t(std::ranges::max_element(saved) - saved.begin());
    if (saved[best] > saved.back()) PutLast(*loop, best);
    // A layout that a fragment of rows gave counts the rows' registers first.
    else if (saved.back() > 0 && loop->layout->dims().back().front().stride != 1)
      loop->layout = WithRegistersAlong(*loop->layout, loop->vars.size() - 1).Normalized();
  });
}

}  // namespace kiln::compiler
