// SPDX-License-Identifier: Apache-2.0
//
// Where shared buffers go: those that never live together share bytes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "compiler/rewrite/lifetimes.h"
#include "ir/module.h"

namespace kiln::compiler {

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

// As how many of a buffer a pass wants to have, and when they live.
struct Held {
  int64_t versions;
  Lifetime life;
};

// Bytes that a kernel's shared buffers with layouts take; of more buffers than are packed for each question, their sum.
int64_t SharedBytesOf(const ir::Module& module, const Lifetimes& lives, const std::map<ir::BufferId, Held>& held);

}  // namespace kiln::compiler
