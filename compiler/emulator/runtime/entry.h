// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "compiler/emulator/abi.h"

namespace kiln::emulator {

struct EntryPoint {
  const char* name;
  void* address;
};
// Every function of abi.h.
std::span<const EntryPoint> EntryPoints();

}  // namespace kiln::emulator
