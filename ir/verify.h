// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::ir {

// What every target of every vendor shares. A tile of more elements fits no shared memory or register file.
inline constexpr int64_t kMaxTileElements = int64_t{1} << 24;
inline constexpr int64_t kMaxTensorElements = int64_t{1} << 60;
inline constexpr uint32_t kMaxThreads = 1024, kMaxNamedBarriers = 15;
inline constexpr uint32_t kMaxResidentThreads = 2048, kMaxResidentBlocks = 32;  // of a multiprocessor of any target
inline constexpr uint32_t kMaxStages = 32;

// Whether the module means something: types, spaces, scopes, shapes, and what each operation demands. Knows no target.
// Names every problem with its statement and source line; the module may be anything that Decode or Parse gave, or a
// pass left.
Result Verify(const Module& module, Diagnostics& diagnostics);

}  // namespace kiln::ir
