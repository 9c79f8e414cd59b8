// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "compiler/emulator/abi.h"

namespace kiln::emulator {

struct EntryPoint {
  const char* name;
  void* address;
};
// Every function of abi.h.
std::span<const EntryPoint> EntryPoints();

// Its letters.
namespace calls {

using i = uint32_t;
using l = uint64_t;
using p = void*;
using g = std::byte*;
using s = std::byte*;
using d = std::byte*;
using v = void;

extern "C" {
#define KILN_EMU_CALL(name, result, effect, ...) result kiln_emu_##name(__VA_ARGS__);
KILN_EMU_CALLS(KILN_EMU_CALL)
#undef KILN_EMU_CALL
}

}  // namespace calls

}  // namespace kiln::emulator
