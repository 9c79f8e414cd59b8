// SPDX-License-Identifier: Apache-2.0
//
// One launch: what all its blocks share. Read-only while blocks run, except the recorder, the turns and the shadow, which lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "compiler/emulator/runtime/check/recorder.h"
#include "compiler/emulator/runtime/turns.h"
#include "ir/layout.h"

namespace kiln::emulator {

class GlobalShadow;
class Owners;

// A buffer in shared memory; several may share bytes at different times.
struct SharedSlot {
  std::string name;
  uint32_t number = 0;  // in the module
  uint32_t offset = 0, bytes = 0;
  uint32_t element_bytes = 1, versions = 1;  // versions: of which the outermost index counts, where there are several
  ir::Layout layout;                         // index → element
  std::vector<int64_t> shape;
  std::set<uint32_t> statements;  // that read or write it; with 0: any

  bool HasTo(uint32_t statement) const { return statements.contains(statement) || statements.contains(0); }
};

// Bytes of shared memory.
struct SharedRange {
  uint32_t first = 0, end = 0;
};

struct Grid {
  void (*kernel)(const uint64_t* args) = nullptr;
  const uint64_t* args = nullptr;
  std::array<uint32_t, 3> size{1, 1, 1};
  uint32_t threads = 0;
  uint32_t warp_size = 32;
  uint32_t shared_bytes = 0;
  uint64_t own_bytes = 0;  // of each thread
  std::array<uint32_t, 3> cluster{1, 1, 1};
  uint64_t seed = 0;
  Recorder* recorder = nullptr;
  Turns* turns = nullptr;
  std::span<const SharedSlot> slots;
  std::span<const std::vector<SharedRange>> touched;  // by number of the statement: its buffers; none: not known
  GlobalShadow* shadow = nullptr;                     // null: accesses are not checked
  Owners* owners = nullptr;                           // null: gangs run one after another, or are checked
  bool clocks = false;                                // checked, and threads meet in other ways than at barriers of the block
  bool waits_for_all = false;                         // blocks wait for each other all over the grid: they run together
  bool orders_atomics = false;                        // atomics of different kinds change one tensor: even those of integers happen in turns
  bool follows = false;                               // blocks wait for flags of earlier ones: they run one after another
  const std::atomic<bool>* time_over = nullptr;

  // Does the statement have to do with these bytes of shared memory, as far as is known?
  bool MayTouch(uint32_t location, uint32_t offset, uint32_t bytes) const {
    if (location == 0 || location >= touched.size() || touched[location].empty()) return true;
    return std::ranges::any_of(touched[location], [&](const SharedRange& r) { return offset >= r.first && offset + bytes <= r.end; });
  }
  bool notes_global() const { return shadow != nullptr || owners != nullptr; }
  uint32_t cluster_blocks() const { return cluster[0] * cluster[1] * cluster[2]; }
  uint64_t blocks() const { return uint64_t(size[0]) * size[1] * size[2]; }
  // Blocks that run together: those of a cluster, or all.
  uint32_t gang_blocks() const { return waits_for_all ? uint32_t(blocks()) : cluster_blocks(); }
  uint64_t gangs() const { return blocks() / gang_blocks(); }
  // Index of block `rank` of a gang. Clusters are numbered along the first axis first, and so are the blocks of a cluster.
  std::array<uint32_t, 3> BlockIndex(uint64_t gang, uint32_t rank) const {
    uint64_t number = (gang * gang_blocks() + rank) / cluster_blocks();
    rank %= cluster_blocks();
    std::array<uint32_t, 3> index;
    for (size_t axis = 0; axis < 3; ++axis) {
      const uint32_t clusters = size[axis] / cluster[axis];
      index[axis] = uint32_t(number % clusters) * cluster[axis] + rank % cluster[axis];
      number /= clusters;
      rank /= cluster[axis];
    }
    return index;
  }
  static std::string IndexName(const std::array<uint32_t, 3>& index) {
    return "(" + std::to_string(index[0]) + ", " + std::to_string(index[1]) + ", " + std::to_string(index[2]) + ")";
  }
  std::string BlockName(uint64_t gang, uint32_t rank) const { return IndexName(BlockIndex(gang, rank)); }
};

}  // namespace kiln::emulator
