// SPDX-License-Identifier: Apache-2.0
//
// What the threads of a range can do together. Warps are those of the block: their first threads have multiples of the warp's size.
#pragma once

#include <string>

#include "compiler/target/target.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

inline ir::ThreadRange AllThreads(const ir::Kernel& kernel) { return {0, kernel.threads}; }

// Matrix instructions, shuffles: of whole warps.
inline bool IsOfWholeWarps(const ir::ThreadRange& threads, int64_t warp) { return threads.begin % warp == 0 && threads.end % warp == 0; }
inline bool IsWithinOneWarp(const ir::ThreadRange& threads, int64_t warp) { return threads.begin / warp == (threads.end - 1) / warp; }

// Lanes that may exchange registers: a warp's, or 1, where some of its lanes are elsewhere.
inline int64_t LanesOf(const ir::ThreadRange& threads, int64_t warp) { return IsOfWholeWarps(threads, warp) ? warp : 1; }

// Why the target has no barrier of just these threads; "": it has one.
std::string WhyNoBarrier(const ir::ThreadRange& threads, const target::Target& target);

}  // namespace kiln::compiler
