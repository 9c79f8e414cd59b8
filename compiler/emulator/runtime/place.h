// SPDX-License-Identifier: Apache-2.0
//
// What places are called in reports.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "compiler/emulator/report.h"

namespace kiln::emulator {

class Block;

struct NamedPlace {
  std::string text;  // "shared memory at byte 4224 (b3[2, 17])"
  Place place;
};

// `from`: who looks at it, the same block or another of its cluster. Of buffers that share the bytes: those of the statement `location`,
// where it has some.
NamedPlace SharedPlace(const Block& owner, uint64_t offset, const Block& from, uint32_t location = 0);

// Outside of the block's memory: "shared memory at byte 16384; the block has 16384, and b3 ends 0 bytes before".
NamedPlace BeyondPlace(const Block& block, int64_t offset);

// "[2, 17]"
std::string IndexText(std::span<const int64_t> index);

}  // namespace kiln::emulator
