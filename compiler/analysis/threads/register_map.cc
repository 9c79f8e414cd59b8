// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/register_map.h"

#include "ir/op.h"

#include <algorithm>
#include <numeric>

namespace kiln::compiler {
namespace {

using ir::Digit;
using ir::Indices;
using ir::Layout;
using ir::Place;

// If a dimension no longer feeds an index, threads along its digits hold copies.
void AddReplicas(std::vector<Digit>& replicas, const std::vector<Digit>& dim) {
  for (const Digit& digit : dim)
    if (digit.place == Place::kThread && digit.size > 1) replicas.push_back(digit);
}

// The digits of `extent` indices from `offset` on: whole digits, then part of a register digit. All higher digits have one value, which
// must be a register's.
std::optional<std::vector<Digit>> SliceOf(const std::vector<Digit>& dim, int64_t offset, int64_t extent) {
  std::vector<Digit> slice;
  int64_t left = extent;
  for (const Digit& digit : dim) {
    if (left % digit.size == 0 && offset % digit.size == 0) {
      slice.push_back(digit);
      left /= digit.size;
    } else if (digit.place == Place::kRegister && offset % digit.size + left <= digit.size) {
      if (left > 1) slice.push_back({left, digit.place, digit.stride});
      left = 1;
    } else {
      return std::nullopt;
    }
    offset /= digit.size;
  }
  return left == 1 ? std::optional(slice) : std::nullopt;
}

// How many of `threads`, which hold copies, share `count` units. All of them if the units divide evenly. Else a number such that each gets
// one unit and the last threads of a round get none: a copy of every unit in every thread would take as many registers as there are units.
int64_t SharedAmong(int64_t threads, int64_t count) {
  if (count % threads == 0) return threads;
  int64_t size = threads;
  for (int64_t fewer = threads; fewer >= count; --fewer)
    if (threads % fewer == 0) size = fewer;
  return size;
}

// The thread number with the digits that hold copies set to 0.
int64_t OwnerOf(const Layout& layout, int64_t thread) {
  for (const Digit& digit : layout.replicas()) thread -= thread / digit.stride % digit.size * digit.stride;
  return thread;
}

}  // namespace

bool Projection::Covers(const ir::For& loop, const ir::Module& module, ir::BufferId buffer) const {
  const std::vector<int64_t> shape = module.ShapeOf(buffer), extents = ExtentsOf(module, loop);
  std::vector<bool> used(loop.vars.size(), false);
  for (size_t d = 0; d < var.size(); ++d) {
    if (var[d] < 0) {
      if (shape[d] != 1) return false;
      continue;
    }
    if (used[var[d]] || offset[d] != 0 || shape[d] != extents[var[d]]) return false;
    used[var[d]] = true;
  }
  for (size_t v = 0; v < used.size(); ++v)
    if (!used[v] && extents[v] != 1) return false;
  return true;
}

bool Projection::Slices(std::span<const int64_t> extents) const {
  std::vector<int> feeds(extents.size(), 0);
  for (const int v : var)
    if (v >= 0) ++feeds[size_t(v)];
  for (size_t v = 0; v < extents.size(); ++v)
    if (feeds[v] > 1 || (feeds[v] == 0 && extents[v] != 1)) return false;
  return true;
}

std::optional<Projection> ProjectionOf(const ir::Module& module, const ir::For& loop, std::span<const ir::ExprId> indices) {
  Projection projection;
  for (ir::ExprId index : indices) {
    const Linear linear = LinearOf(module.exprs, index);
    if (linear.terms.size() > 1) return std::nullopt;
    int var = -1;
    if (!linear.terms.empty()) {
      const auto [term, coefficient] = *linear.terms.begin();
      const ir::ExprNode& node = module.exprs[ir::ExprId(term)];
      if (coefficient != 1 || node.op != ir::ExprOp::kVar) return std::nullopt;
      const auto it = std::ranges::find(loop.vars, ir::VarId(node.ref));
      if (it == loop.vars.end()) return std::nullopt;
      var = int(it - loop.vars.begin());
    }
    projection.var.push_back(var);
    projection.offset.push_back(linear.constant);
  }
  return projection;
}

std::optional<Layout> FragmentFromLoop(const Layout& loop, const Projection& projection) {
  std::vector<std::vector<Digit>> dims;
  std::vector<bool> used(loop.rank(), false);
  for (size_t d = 0; d < projection.var.size(); ++d) {
    const int var = projection.var[d];
    if (var < 0) {
      dims.emplace_back();
      continue;
    }
    if (used[var]) return std::nullopt;
    used[var] = true;
    dims.push_back(loop.dim(var));
  }
  std::vector<Digit> replicas = loop.replicas();
  for (int v = 0; v < loop.rank(); ++v)
    if (!used[v]) AddReplicas(replicas, loop.dim(v));
  std::ranges::sort(replicas, {}, &Digit::stride);
  // WithoutDim drops the empty dimension and renumbers the registers.
  dims.emplace_back();
  return Layout(std::move(dims), std::move(replicas)).WithoutDim(int(projection.var.size()));
}

Layout LoopFromFragment(const Layout& fragment, const Projection& projection, int loop_rank) {
  std::vector<std::vector<Digit>> dims(loop_rank);
  for (size_t d = 0; d < projection.var.size(); ++d)
    if (projection.var[d] >= 0) dims[projection.var[d]] = fragment.dim(int(d));
  return Layout(std::move(dims), fragment.replicas());
}

std::optional<Layout> LoopFromSlice(const Layout& fragment, const Projection& projection, std::span<const int64_t> extents) {
  std::vector<std::vector<Digit>> dims(extents.size());
  for (size_t d = 0; d < projection.var.size(); ++d) {
    const int var = projection.var[d];
    const std::optional<std::vector<Digit>> part = SliceOf(fragment.dim(int(d)), projection.offset[d], var < 0 ? 1 : extents[size_t(var)]);
    if (!part) return std::nullopt;
    if (var >= 0) dims[size_t(var)] = *part;
  }
  // WithoutDim drops the empty dimension and renumbers the registers.
  dims.emplace_back();
  return Layout(std::move(dims), fragment.replicas()).WithoutDim(int(extents.size()));
}

Layout LoopFromPart(const Layout& fragment, const Projection& projection, std::span<const int64_t> extents, int64_t vector) {
  const int rank = int(extents.size());
  std::vector<std::vector<Digit>> dims(rank);
  std::vector<bool> used(rank, false);
  for (size_t d = 0; d < projection.var.size(); ++d) {
    if (projection.var[d] < 0) continue;
    dims[projection.var[d]] = fragment.dim(int(d));
    used[projection.var[d]] = true;
  }
  int64_t registers = fragment.Registers();
  std::vector<Digit> replicas = fragment.replicas();
  for (int v = rank - 1; v >= 0; --v) {
    if (used[v]) continue;
    int64_t left = extents[v];
    const auto take = [&](Place place, int64_t size, int64_t stride) {
      dims[v].push_back({size, place, stride});
      left = (left + size - 1) / size;
    };
    if (const int64_t together = v == rank - 1 ? std::gcd(left, vector) : 1; together > 1) {
      take(Place::kRegister, together, registers);
      registers *= together;
    }
    std::vector<Digit> kept;
    for (const Digit& digit : replicas) {
      const int64_t size = SharedAmong(digit.size, left);
      if (size > 1) take(Place::kThread, size, digit.stride);
      if (size < digit.size) kept.push_back({digit.size / size, digit.place, digit.stride * size});
    }
    replicas = std::move(kept);
    if (left > 1) {
      const int64_t rest = left;
      take(Place::kRegister, rest, registers);
      registers *= rest;
    }
  }
  return Layout(std::move(dims), std::move(replicas));
}

std::optional<std::vector<int64_t>> RegisterMap(const Layout& loop, std::span<const int64_t> extents, const Layout& fragment,
                                                std::span<const int64_t> shape, const Projection& projection) {
  const auto index_of = [&](const Indices& thread, const Indices& reg, Indices& index) {
    for (size_t v = 0; v < extents.size(); ++v)
      if (thread[v] + reg[v] >= extents[v]) return false;
    for (size_t d = 0; d < projection.var.size(); ++d) {
      const int var = projection.var[d];
      index[d] = projection.offset[d] + (var < 0 ? 0 : thread[var] + reg[var]);
      if (index[d] < 0 || index[d] >= shape[d]) return false;
    }
    return true;
  };
  // If the fragment lies exactly as the loop needs it, a check of one thread holds for all.
  const std::optional<Layout> exact = FragmentFromLoop(loop, projection);
  const bool from_zero = std::ranges::all_of(projection.offset, [](int64_t offset) { return offset == 0; });
  const std::optional<Layout> slice = from_zero ? std::nullopt : LoopFromSlice(fragment, projection, extents);
  const bool same = from_zero ? exact && *exact == fragment : slice && *slice == loop;
  const int64_t threads = same ? 1 : loop.Threads();
  std::vector<Indices> parts;
  for (int64_t t = 0; t < threads; ++t) parts.push_back(loop.ThreadPart(t));
  std::vector<int64_t> map(loop.Registers(), 0);
  Indices index(projection.var.size());
  for (int64_t r = 0; r < int64_t(map.size()); ++r) {
    const Indices reg = loop.RegisterPart(r);
    bool first = true;
    for (int64_t t = 0; t < threads; ++t) {
      if (!index_of(parts[t], reg, index)) continue;
      if (!same && fragment.ThreadOf(index) != OwnerOf(fragment, t)) return std::nullopt;
      const int64_t found = fragment.RegisterOf(index);
      if (!first && found != map[r]) return std::nullopt;
      map[r] = found;
      first = false;
    }
  }
  return map;
}

std::vector<int64_t> ExtentsOf(const ir::Module& module, const ir::For& loop) {
  std::vector<int64_t> extents;
  for (ir::ExprId extent : loop.extents) extents.push_back(module.exprs.ConstInt(extent).value_or(0));
  return extents;
}

}  // namespace kiln::compiler
