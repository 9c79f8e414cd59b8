// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::ir {

// What every target of every vendor shares. A tile of more elements fits no shared memory or register file.
inline constexpr int64_t kMaxTileElements = int64_t{1} << 24;
inline constexpr int64_t kMaxTensorElements = int64_t{1} << 60;
inline constexpr uint32_t kMaxThreads = 1024, kMaxNamedBarriers = 15;
inline constexpr uint32_t kMaxArrivals = (1 << 20) - 1;                         // PTX ISA, mbarrier: the range of its count
inline constexpr uint32_t kMaxResidentThreads = 2048, kMaxResidentBlocks = 32;  // of a multiprocessor of any target
inline constexpr uint32_t kMaxStages = 32;

// Whether the module has a meaning: types, spaces, scopes, shapes, and the rules of each operation. Independent of the target. Names every
// problem with its statement and source line. The module may come from Decode, Parse or a pass. A pass may find that a branch is always taken, and
// what is in it may be elements that a buffer does not have: `elements`: whether these are a problem.
Result Verify(const Module& module, Diagnostics& diagnostics, bool elements = true);

}  // namespace kiln::ir
