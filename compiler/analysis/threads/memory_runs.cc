// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/memory_runs.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/neighbourhood.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/analysis/threads/walk_together.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Layout;

constexpr int64_t kWord = 4;              // bytes of a register
constexpr int64_t kSector = 32;           // bytes that memory moves at once
constexpr int64_t kLine = 128;            // bytes of the first cache, which takes one line of a store at a time
constexpr int64_t kSectorsForALine = 2;   // that the second cache takes meanwhile
constexpr int64_t kIssue = 4;             // sectors that an instruction is worth
constexpr int64_t kBarrier = 32;          // sectors that a barrier is worth
constexpr int64_t kBytesForASector = 64;  // that shared memory moves while the second cache gives a multiprocessor a sector

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
  if (extent == 1) return false;
  if (!std::has_single_bit(uint64_t(extent))) return true;
  const Neighbourhood all(module, facts, loop.vars[v], extent);
  return !std::ranges::all_of(access.indices, [&](ir::ExprId index) { return all.IsOne(index); });
}

MemoryRun RunOf(const ir::Module& module, const Facts& facts, const ir::For& loop, const Access& access, const std::set<ir::BufferId>& stored,
                int64_t alignment) {
  const std::vector<int64_t> extents = ExtentsOf(module, loop);
  MemoryRun run{.write = access.write, .bytes = std::max<int64_t>(1, ir::Bits(module[access.buffer].dtype) / 8)};
  for (size_t v = 0; v < extents.size(); ++v) {
    run.used.push_back(DependsOn(module, facts, loop, v, extents[v], access));
    if (extents[v] == 1 || !GoesAlong(module, facts, loop, v, access)) continue;
    run.variable = v;
    const int64_t most = std::gcd(int64_t{16}, extents[v]);
    run.width = OwnWidth(module, facts, loop, v, access, most, alignment);
    if (access.write) run.whole = AccessWidth(module, facts, loop, v, access, most, alignment);
    const bool last = v + 1 == extents.size();
    if (last && !access.write && !stored.contains(access.buffer))
      run.around = AroundWidthIn(module, facts, loop, v, access.buffer, access.indices, most);
  }
  return run;
}

// That follow each other along a loop's variable.
int64_t RegistersOf(const Layout& layout, size_t variable) {
  const auto& digits = layout.dim(int(variable));
  return digits.empty() || digits[0].place != ir::Place::kRegister ? 1 : digits[0].size;
}

}  // namespace

int64_t MemoryRun::Width(const Layout& layout) const {
  return variable ? std::max<int64_t>(1, std::gcd(RegistersOf(layout, *variable), std::min(width, kWidestAccess / bytes))) : 1;
}

int64_t MemoryRun::Accesses(const Layout& layout, int64_t registers) const {
  const int64_t plain = registers / Width(layout);
  return variable ? std::min(plain, kLoadsAround * registers / std::gcd(RegistersOf(layout, *variable), around)) : plain;
}

std::vector<MemoryRun> MemoryRunsOf(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt, int64_t alignment) {
  const auto& loop = std::get<ir::For>(stmt.op);
  Facts inner = facts;
  inner.EnterLoop(loop);
  std::vector<MemoryRun> runs;
  const std::vector<Access> accesses = AccessesOf(module, stmt);
  std::set<ir::BufferId> stored;
  for (const Access& access : accesses)
    if (access.write) stored.insert(access.buffer);
  for (const Access& access : accesses) {
    if (module[access.buffer].space != ir::Space::kGlobal || access.tile || access.indices.empty()) continue;
    runs.push_back(RunOf(module, inner, loop, access, stored, alignment));
  }
  return runs;
}

MemoryRuns MemoryRunsOf(const ir::Module& module, ir::Kernel& kernel, int64_t alignment) {
  MemoryRuns runs;
  WalkTogether(module, kernel, [&](ir::Stmt& stmt, const Facts& facts, const ir::ThreadRange&) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->coalesced_width != 0) return;
    std::vector<MemoryRun> found = MemoryRunsOf(module, facts, stmt, alignment);
    if (!found.empty()) runs.emplace(loop, std::move(found));
  });
  return runs;
}

int64_t WidestAround(std::span<const MemoryRun> runs) { return runs.empty() ? 1 : std::ranges::max(runs, {}, &MemoryRun::around).around; }

int64_t NarrowestBytes(std::span<const MemoryRun> runs) { return std::ranges::min(runs, {}, &MemoryRun::bytes).bytes; }

bool GoesAlongLast(const ir::Module& module, const ir::For& loop, std::span<const MemoryRun> runs) {
  const size_t last = loop.vars.size() - 1;
  if (runs.empty() || std::ranges::any_of(runs, [&](const MemoryRun& run) { return run.variable && *run.variable != last; })) return false;
  bool tiles = false;
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    for (const Access& access : AccessesOf(module, stmt)) tiles |= module[access.buffer].space == ir::Space::kShared;
  });
  return !tiles;
}

int64_t MemoryCost(const Layout& layout, std::span<const MemoryRun> runs, int64_t lanes) {
  std::vector<ir::Indices> parts;
  for (int64_t lane = 0; lane < std::min(lanes, layout.Threads()); ++lane) parts.push_back(layout.ThreadPart(lane));
  int64_t cost = 0;
  const auto pieces = [&](const MemoryRun& run, int64_t bytes) {  // of so many bytes, that the lanes touch at once
    std::set<ir::Indices> found;
    for (ir::Indices lane : parts) {
      for (size_t v = 0; v < lane.size(); ++v) {
        if (run.variable == v) lane[v] = lane[v] * run.bytes / bytes;
        else if (!run.used[v]) lane[v] = 0;
      }
      found.insert(std::move(lane));
    }
    return int64_t(found.size());
  };
  for (const MemoryRun& run : runs) {
    const int64_t moved = std::max(pieces(run, kSector), run.write ? kSectorsForALine * pieces(run, kLine) : 0);
    int64_t registers = 1;
    for (size_t v = 0; v < run.used.size(); ++v) {
      for (const ir::Digit& digit : layout.dim(int(v)))
        if (run.used[v] && digit.place == ir::Place::kRegister) registers *= digit.size;
    }
    cost += run.Accesses(layout, registers) * (moved + kIssue);
  }
  return cost;
}

int64_t PassageCost(int64_t written, int64_t read, int64_t lanes) {
  const int64_t one = lanes * kWidestAccess / kBytesForASector + kIssue;
  const auto accesses = [&](int64_t bytes) { return (bytes + kWidestAccess - 1) / kWidestAccess * one; };
  return accesses(written) + 2 * kBarrier + accesses(read);
}

int64_t CheapestVector(int64_t most, int64_t bytes, const std::function<int64_t(int64_t)>& cost) {
  int64_t best = most, least = cost(most);
  for (int64_t vector = most / 2; vector * bytes >= kWord && most % vector == 0; vector /= 2)
    if (const int64_t found = cost(vector); found < least) best = vector, least = found;
  return best;
}

}  // namespace kiln::compiler
