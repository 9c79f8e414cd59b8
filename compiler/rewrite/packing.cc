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
constexpr size_t kMostPacked = 64;  // Pack compares each with each, and passes ask for each loop

}  // namespace

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

int64_t SharedBytesOf(const ir::Module& module, const Lifetimes& lives, const std::map<BufferId, Held>& held) {
  std::vector<Packed> buffers;
  for (const auto& [id, life] : lives.buffers) {
    if (!module[id].layout) continue;
    const auto found = held.find(id);
    const Held as = found == held.end() ? Held{1, life} : found->second;
    buffers.push_back({VersionBytes(module, id) * as.versions, SharedAlignment(module[id]), as.life});
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
