// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/sharing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/plan/traffic.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kMostBlocks = 264;  // that are looked at

// Where each block reads in the first iteration of all loops.
class Places {
 public:
  Places(const ir::Module& module, Scalars& scalars) : module_(module), scalars_(scalars) {}

  void Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) {
        if (const auto value = scalars_.Of(let->value)) scalars_.Set(let->var, *value);
      }
      if (loop != nullptr)
        for (const ir::VarId var : loop->vars) scalars_.Set(var, 0);
      Note(stmt);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) continue;
      ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Visit(body); });
    }
  }

  using Read = std::pair<ir::BufferId, std::set<int64_t>>;  // from where on
  std::map<const ir::Stmt*, std::vector<Read>> of;
  std::vector<const ir::Stmt*> order;  // of the program

 private:
  void Note(const ir::Stmt& stmt) {
    size_t number = 0;
    for (const Access& access : AccessesOf(module_, stmt)) {
      if (access.write || module_[access.buffer].space != ir::Space::kGlobal) continue;
      const auto [at, added] = of.try_emplace(&stmt);
      if (added) order.push_back(&stmt);
      if (at->second.size() < ++number) at->second.push_back({access.buffer, {}});
      at->second[number - 1].second.insert(PlaceOf(module_, scalars_, access.buffer, access.indices).address);
    }
  }

  const ir::Module& module_;
  Scalars& scalars_;
};

}  // namespace

std::vector<int64_t> GridOf(const ir::Kernel& kernel, const Scalars& scalars) {
  std::vector<int64_t> grid;
  for (const ir::ExprId extent : kernel.grid) grid.push_back(std::max<int64_t>(0, scalars.Or(extent, 1)));
  return grid;
}

void EnterBlock(const ir::Kernel& kernel, std::span<const int64_t> grid, int64_t number, Scalars& scalars) {
  for (size_t axis = 0; axis < kernel.block_vars.size(); ++axis) {
    const int64_t extent = axis < grid.size() ? std::max<int64_t>(1, grid[axis]) : 1;
    scalars.Set(kernel.block_vars[axis], number % extent);
    number /= extent;
  }
}

std::map<const ir::Stmt*, Reading> ReadingsOf(const ir::Module& module, const ir::Kernel& kernel, const Scalars& scalars, int64_t blocks) {
  Scalars values = scalars;
  Places places(module, values);
  const std::vector<int64_t> grid = GridOf(kernel, values);
  const int64_t looked_at = std::clamp<int64_t>(blocks, 1, kMostBlocks);
  for (int64_t number = 0; number < looked_at; ++number) {
    EnterBlock(kernel, grid, number, values);
    places.Visit(kernel.body);
  }
  std::map<const ir::Stmt*, Reading> readings;
  std::set<Places::Read> known;
  for (const ir::Stmt* stmt : places.order) {
    const std::vector<Places::Read>& reads = places.of.at(stmt);
    Reading reading{.fresh = 0, .again = true};
    for (const Places::Read& read : reads) {
      reading.fresh += double(read.second.size()) / double(looked_at) / double(reads.size());
      reading.again &= known.contains(read);
    }
    known.insert(reads.begin(), reads.end());
    readings[stmt] = reading;
  }
  return readings;
}

}  // namespace kiln::compiler
