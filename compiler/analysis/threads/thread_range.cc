// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/thread_range.h"

#include "ir/op.h"

#include <fmt/format.h>

namespace kiln::compiler {

std::string WhyNoBarrier(const ir::ThreadRange& threads, const target::Target& target) {
  const int64_t warp = target.warp_size;
  if (IsWithinOneWarp(threads, warp)) return "";
  if (target.family != target::Family::kNvptx) {
    return fmt::format("{} has barriers for all threads of a block and for the threads of one warp of {}", target.name, warp);
  }
  if (!IsOfWholeWarps(threads, warp)) return fmt::format("a barrier for several warps takes whole warps of {}", warp);
  return "";
}

}  // namespace kiln::compiler
