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
  uint64_t seed = 0;
  Recorder* recorder = nullptr;
  std::span<const SharedSlot> slots;
  GlobalShadow* shadow = nullptr;  // null: accesses are not checked

  uint64_t blocks() const { return uint64_t(size[0]) * size[1] * size[2]; }
};

}  // namespace kiln::emulator
