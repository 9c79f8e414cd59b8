// SPDX-License-Identifier: Apache-2.0
//
// Buffers that lie on the same shared memory one after another. What a statement finds there that another statement left, and that
// is in no buffer of both, belongs to a buffer whose time is over: nobody wrote the reader's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compiler/emulator/runtime/grid.h"

namespace kiln::emulator {

// Do any have bytes in common?
bool ShareBytes(std::span<const SharedSlot> slots);

// The bytes where statement `reader` finds what `writer` left in another buffer.
std::vector<SharedRange> LeftByOthers(std::span<const SharedSlot> slots, uint32_t reader, uint32_t writer);

}  // namespace kiln::emulator
