// SPDX-License-Identifier: Apache-2.0
//
// One launch: what all its blocks share. Read-only while blocks run, except the recorder and the shadow, which lock.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "compiler/emulator/runtime/recorder.h"

namespace kiln::emulator {

class GlobalShadow;

// A buffer in shared memory; several may share bytes at different times.
struct SharedSlot {
  std::string name;
  uint32_t offset, bytes;
};

struct Grid {
  void (*kernel)(const uint64_t* args) = nullptr;
  const uint64_t* args = nullptr;
  std::array<uint32_t, 3> size{1, 1, 1};
  uint32_t threads = 0;
  uint32_t warp_size = 32;
  uint32_t shared_bytes = 0;
  std::array<uint32_t, 3> cluster{1, 1, 1};
  uint64_t seed = 0;
  Recorder* recorder = nullptr;
  std::span<const SharedSlot> slots;
  GlobalShadow* shadow = nullptr;  // null: accesses are not checked
  bool clocks = false;             // checked, and threads meet in other ways than at barriers of the block

  uint32_t cluster_blocks() const { return cluster[0] * cluster[1] * cluster[2]; }
  uint64_t clusters() const { return uint64_t(size[0]) * size[1] * size[2] / cluster_blocks(); }
  // Of block `rank` of a cluster: both count along the first axis first.
  std::array<uint32_t, 3> BlockIndex(uint64_t number, uint32_t rank) const {
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
  std::string BlockName(uint64_t number, uint32_t rank) const { return IndexName(BlockIndex(number, rank)); }
};

}  // namespace kiln::emulator
