// SPDX-License-Identifier: Apache-2.0
//
// Where shared buffers go: those that never live together share bytes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ir/module.h"

namespace kiln::compiler {

// Statements, numbered in some order.
struct Lifetime {
  int64_t first, last;
  bool Overlaps(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

struct Packed {
  int64_t bytes, alignment;
  Lifetime life;
};

// An offset for each, and the bytes that all take. Each goes to the first place where it fits, in the order given: large ones first leave few gaps.
struct Packing {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};
Packing Pack(std::span<const Packed> buffers);

// The next multiple of the alignment.
int64_t Align(int64_t value, int64_t alignment);

// Swizzles repeat within 1024 bytes; 128 bytes is what the widest access and a row of banks need.
int64_t SharedAlignment(const ir::Buffer& shared);

// When each shared buffer of a kernel lives, as far as a pass before shared_memory can tell. What a statement of the body writes as a whole before
// anything reads it lives from there to the last statement of the body that uses it, also where blocks go over several tiles; all else lives
// from the start to the end.
using Lifetimes = std::map<ir::BufferId, Lifetime>;
Lifetimes LifetimesIn(const ir::Module& module, const ir::Block& body);

// Bytes that the buffers take; of more buffers than are packed for each question, their sum. `throughout`: these live from the start to the
// end, in so many versions.
int64_t SharedBytesOf(const ir::Module& module, const Lifetimes& lives, const std::map<ir::BufferId, int64_t>& throughout);

}  // namespace kiln::compiler
