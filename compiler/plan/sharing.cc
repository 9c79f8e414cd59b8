// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/sharing.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/plan/traffic.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kMostBlocks = 264;  // that are looked at

// Where a block reads in the iterations of the innermost loop around it: at `first`, and in each of the further ones `step` bytes on.
struct Walk {
  int64_t first = 0, step = 0, count = 1;
};

// One access of a statement.
struct Read {
  ir::BufferId buffer{};
  double bytes = 0;         // of one iteration; 0: unknown
  bool even = true;         // no block's steps differ from each other
  std::vector<Walk> walks;  // of the blocks

  std::set<int64_t> Starts() const {
    std::set<int64_t> starts;
    for (const Walk& walk : walks) starts.insert(walk.first);
    return starts;
  }
};

// How many of all iterations of these walks read what no other reads. Those with the same step may meet; what one has read is there still for another
// that comes there at most `window` iterations later.
int64_t Distinct(const std::vector<Walk>& walks, double window) {
  using Span = std::pair<int64_t, int64_t>;                                               // of positions: the first one, and the one behind the last
  std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<int64_t, Span>>> lattices;  // by step and by what is left of it: where each begins
  const auto steps = std::ranges::find_if(walks, [](const Walk& walk) { return walk.step != 0; });
  for (const Walk& walk : walks) {
    const int64_t step = walk.step == 0 && walk.count == 1 && steps != walks.end() ? steps->step : walk.step;  // one that goes nowhere fits any
    if (step == 0) {
      lattices[{0, walk.first}].push_back({0, {0, 1}});
      continue;
    }
    const int64_t begin = walk.first / std::abs(step), end = begin + (step < 0 ? -1 : 1) * (walk.count - 1);
    lattices[{step, walk.first % step}].push_back({begin, {std::min(begin, end), std::max(begin, end) + 1}});
  }
  int64_t distinct = 0;
  for (auto& [lattice, group] : lattices) {
    std::ranges::sort(group);
    for (size_t i = 0; i < group.size();) {
      size_t j = i + 1;
      while (j < group.size() && double(group[j].first - group[j - 1].first) <= window) ++j;
      std::vector<Span> spans;
      for (; i < j; ++i) spans.push_back(group[i].second);
      std::ranges::sort(spans);
      int64_t reached = spans.front().first;
      for (const auto& [from, to] : spans) distinct += std::max<int64_t>(0, to - std::max(from, reached)), reached = std::max(reached, to);
    }
  }
  return distinct;
}

// Where each block reads: in the first iteration of all loops but the innermost ones.
class Places {
 public:
  Places(const ir::Module& module, Scalars& scalars) : module_(module), scalars_(scalars) {}

  void Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) {
        if (const auto value = scalars_.Of(let->value)) scalars_.Set(let->var, *value);
      }
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr)
        for (const ir::VarId var : loop->vars) scalars_.Set(var, 0);
      Note(stmt);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) continue;
      if (loop != nullptr && loop->vars.size() == 1 && time_ == Time::kFirst && !HoldsReadingLoop(loop->body)) VisitInnermost(*loop);
      else ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Visit(body); });
    }
  }

  std::map<const ir::Stmt*, std::vector<Read>> of;
  std::vector<const ir::Stmt*> order;  // of the program

 private:
  enum class Time : uint8_t { kFirst, kSecond, kLast };

  bool Reads(const ir::Block& block) const {
    bool reads = false;
    ir::Walk(block, [&](const ir::Stmt& stmt) {
      for (const Access& access : AccessesOf(module_, stmt)) reads |= !access.write && module_[access.buffer].space == ir::Space::kGlobal;
    });
    return reads;
  }

  // Whether a loop in the block reads, too.
  bool HoldsReadingLoop(const ir::Block& block) const {
    bool holds = false;
    ir::Walk(block, [&](const ir::Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      holds |= loop != nullptr && loop->kind != ir::LoopKind::kParallel && Reads(loop->body);
    });
    return holds;
  }

  void VisitInnermost(const ir::For& loop) {
    const int64_t count = scalars_.Or(loop.extents[0], 1);
    if (count == 0) return;
    Visit(loop.body);
    for (const Time time : {Time::kSecond, Time::kLast}) {
      if (count < 2) break;
      time_ = time;
      scalars_.Set(loop.vars[0], time == Time::kSecond ? 1 : count - 1);
      count_ = count;
      Visit(loop.body);
    }
    time_ = Time::kFirst;
  }

  void Note(const ir::Stmt& stmt) {
    size_t number = 0;
    for (const Access& access : AccessesOf(module_, stmt)) {
      if (access.write || module_[access.buffer].space != ir::Space::kGlobal) continue;
      const auto [at, added] = of.try_emplace(&stmt);
      if (added) order.push_back(&stmt);
      if (at->second.size() < ++number) at->second.push_back({.buffer = access.buffer, .bytes = BytesOf(access), .walks = {}});
      Put(at->second[number - 1], PlaceOf(module_, scalars_, access.buffer, access.indices).address);
    }
  }

  void Put(Read& read, int64_t address) const {
    if (time_ == Time::kFirst || read.walks.empty()) return read.walks.push_back({.first = address});
    Walk& walk = read.walks.back();
    if (time_ == Time::kSecond) walk.step = address - walk.first, walk.count = count_;
    else read.even &= address == walk.first + (walk.count - 1) * walk.step;
  }

  double BytesOf(const Access& access) const {
    if (!access.tile || access.extents.empty()) return 0;
    double bytes = ir::Bits(module_[access.buffer].dtype) / 8.0;
    for (const int64_t extent : access.extents) bytes *= double(extent);
    return bytes;
  }

  const ir::Module& module_;
  Scalars& scalars_;
  Time time_ = Time::kFirst;
  int64_t count_ = 1;  // iterations of the innermost loop
};

// Reads of as many bytes from one tensor each: iterations apart of one loop may be several statements, and one block reads by one of them what
// another reads by another.
using Kind = std::pair<ir::BufferId, double>;

// Part of what the blocks read in all iterations that no other of them reads at that time. `walks`: of all such reads.
double FreshOf(const Read& read, const std::map<Kind, std::vector<Walk>>& walks, double window) {
  const auto like = walks.find({read.buffer, read.bytes});
  if (!read.even || read.bytes == 0 || like == walks.end() || like->second.empty()) return double(read.Starts().size()) / double(read.walks.size());
  int64_t count = 0;
  for (const Walk& walk : like->second) count += walk.count;
  return double(Distinct(like->second, window)) / double(count);
}

// In how many iterations of all blocks they read as much as is kept.
double WindowOf(const Places& places, double kept) {
  double bytes = 0;
  for (const auto& [stmt, reads] : places.of)
    for (const Read& read : reads)
      if (std::ranges::any_of(read.walks, [](const Walk& walk) { return walk.count > 1; })) bytes += read.bytes * double(read.walks.size());
  return bytes == 0 ? 0 : kept / bytes;
}

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
  // Groups of warps that begin a loop in different iterations take as long together as if all began where the middle one does.
  if (kernel.producers != 0) scalars.SetThread(int64_t(kernel.threads) / 2);
}

std::map<const ir::Stmt*, Reading> ReadingsOf(const ir::Module& module, const ir::Kernel& kernel, const Scalars& scalars, int64_t blocks,
                                              double kept) {
  Scalars values = scalars;
  Places places(module, values);
  const std::vector<int64_t> grid = GridOf(kernel, values);
  const int64_t looked_at = std::clamp<int64_t>(blocks, 1, kMostBlocks);
  for (int64_t number = 0; number < looked_at; ++number) {
    EnterBlock(kernel, grid, number, values);
    places.Visit(kernel.body);
  }
  const double window = WindowOf(places, kept);
  std::map<const ir::Stmt*, Reading> readings;
  std::map<Kind, std::vector<Walk>> walks;
  std::set<std::pair<ir::BufferId, std::set<int64_t>>> known;
  for (const ir::Stmt* stmt : places.order) {
    Reading& reading = readings[stmt] = {.fresh = 0, .again = true};
    std::set<std::pair<ir::BufferId, std::set<int64_t>>> read_here;
    for (const Read& read : places.of.at(stmt)) {
      const std::set<int64_t> starts = read.Starts();
      reading.again &= known.contains({read.buffer, starts});
      read_here.emplace(read.buffer, starts);
    }
    known.merge(read_here);
    if (reading.again) continue;
    for (const Read& read : places.of.at(stmt)) {
      std::vector<Walk>& all = walks[{read.buffer, read.bytes}];
      if (read.even) all.insert(all.end(), read.walks.begin(), read.walks.end());
    }
  }
  for (auto& [stmt, reading] : readings) {
    const std::vector<Read>& reads = places.of.at(stmt);
    for (const Read& read : reads) reading.fresh += FreshOf(read, walks, window) / double(reads.size());
  }
  return readings;
}

}  // namespace kiln::compiler
