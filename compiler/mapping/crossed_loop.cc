// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/crossed_loop.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/vector_width.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::Digit;
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
    const int64_t width = AccessWidth(module, facts, loop, v, access, most, alignment);
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

}  // namespace kiln::compiler
