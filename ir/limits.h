// SPDX-License-Identifier: Apache-2.0
//
// The most that one module may hold. A program written by hand stays below a hundredth of each limit. Readers enforce them, so walks may
// recurse.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln::ir {

inline constexpr size_t kMaxModuleBytes = 4 << 20;
inline constexpr size_t kMaxModuleMemory = 64 << 20;  // of the message, once parsed
inline constexpr size_t kMaxExprs = 250'000;
inline constexpr size_t kMaxVars = 50'000;
inline constexpr size_t kMaxBuffers = 10'000;
inline constexpr size_t kMaxBarriers = 256;  // of one buffer
inline constexpr size_t kMaxParams = 1'000;
inline constexpr size_t kMaxKernels = 64;
inline constexpr size_t kMaxFunctions = 64;
inline constexpr size_t kMaxFunctionBytes = 1 << 20;  // of one text
inline constexpr size_t kMaxArguments = 256;          // of a call
inline constexpr size_t kMaxStmts = 100'000;
inline constexpr size_t kMaxFiles = 1'000;
inline constexpr int kMaxNesting = 64;  // statements within statements
inline constexpr uint32_t kMaxExprDepth = 256;
inline constexpr uint64_t kMaxExprNodes = 16'384;   // one expression written out
inline constexpr uint64_t kMaxWritten = 2'000'000;  // all expressions of all statements written out

}  // namespace kiln::ir
