// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/packing.h"

#include <algorithm>
#include <cstdint>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/rewrite/versions.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Space;

bool IsPlaced(const ir::Module& module, BufferId id) { return module[id].space == Space::kShared && module[id].layout; }

// Whether the statement gives each element of the tile a value that is not made from it.
bool Writes(const ir::Module& module, const ir::Stmt& stmt, BufferId tile) {
  if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) return copy->dst.buffer == tile && copy->dst.extents == module.ShapeOf(tile);
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1 || !CoversElements(module, *loop, tile)) return false;
  const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
  return store != nullptr && store->buffer == tile && IsOwnElement(module, *loop, store->indices);
}

bool Reads(const ir::Module& module, const ir::Stmt& stmt, BufferId tile) {
  bool reads = false;
  ir::WalkWithin(stmt, [&](const ir::Stmt& inner) {
    for (const Access& access : AccessesOf(module, inner)) reads |= access.buffer == tile && !access.write;
  });
  return reads;
}

constexpr Lifetime kThroughout{0, INT64_MAX};
constexpr size_t kMostPacked = 64;  // Pack compares each with each, and passes ask for each loop

}  // namespace

Lifetimes LifetimesIn(const ir::Module& module, const ir::Block& body) {
  Lifetimes lives;
  for (int64_t i = 0; i < int64_t(body.size()); ++i) {
    const ir::Stmt& stmt = body[size_t(i)];
    const auto touch = [&](BufferId id) {
      if (!IsPlaced(module, id)) return;
      const auto [at, added] = lives.try_emplace(id, Lifetime{i, i});
      if (added && (!Writes(module, stmt, id) || Reads(module, stmt, id))) at->second = kThroughout;
      at->second.last = std::max(at->second.last, i);
    };
    ir::WalkWithin(stmt, [&](const ir::Stmt& inner) {
      for (const Access& access : AccessesOf(module, inner)) touch(access.buffer);
      const auto* reduce = std::get_if<ir::Reduce>(&inner.op);
      if (reduce != nullptr && reduce->scratch) touch(*reduce->scratch);
    });
  }
  return lives;
}

int64_t Align(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

int64_t SharedAlignment(const ir::Buffer& shared) { return shared.layout->swizzle().bits > 0 ? 1024 : 128; }

Packing Pack(std::span<const Packed> buffers) {
  struct Placed {
    int64_t begin, end;
    Lifetime life;
  };
  std::vector<Placed> placed;  // by where they begin
  Packing packing;
  for (const Packed& buffer : buffers) {
    int64_t offset = 0;
    for (const Placed& other : placed) {
      if (other.begin >= offset + buffer.bytes) break;
      if (offset < other.end && other.life.Overlaps(buffer.life)) offset = Align(other.end, buffer.alignment);
    }
    placed.insert(std::ranges::upper_bound(placed, offset, {}, &Placed::begin), Placed{offset, offset + buffer.bytes, buffer.life});
    packing.offsets.push_back(offset);
    packing.bytes = std::max(packing.bytes, offset + buffer.bytes);
  }
  return packing;
}

int64_t SharedBytesOf(const ir::Module& module, const Lifetimes& lives, const std::map<BufferId, int64_t>& throughout) {
  std::vector<Packed> buffers;
  for (const auto& [id, life] : lives) {
    const auto versions = throughout.find(id);
    const bool always = versions != throughout.end();
    buffers.push_back({VersionBytes(module, id) * (always ? versions->second : 1), SharedAlignment(module[id]), always ? kThroughout : life});
  }
  if (buffers.size() > kMostPacked) {
    int64_t sum = 0;
    for (const Packed& buffer : buffers) sum += Align(buffer.bytes, buffer.alignment);
    return sum;
  }
  std::ranges::stable_sort(buffers, std::ranges::greater(), &Packed::bytes);
  return Pack(buffers).bytes;
}

}  // namespace kiln::compiler
