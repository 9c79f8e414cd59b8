// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ir/op.h"
#include "ir/verify/verifier.h"

namespace kiln::ir {
namespace {

std::vector<int64_t> NonUnit(const std::vector<int64_t>& extents) {
  std::vector<int64_t> result;
  std::ranges::copy_if(extents, std::back_inserter(result), [](int64_t extent) { return extent != 1; });
  return result;
}

void CheckSignalled(Verifier& verifier, const Copy& op) {
  verifier.CheckSignal(op.signals->buffer, op.signals->indices);
  const Module& module = verifier.module();
  if (module[op.src.buffer].space == Space::kGlobal && module[op.dst.buffer].space == Space::kShared) return;
  verifier.Error(fmt::format("a copy from {} to {} memory signals a barrier", Name(module[op.src.buffer].space), Name(module[op.dst.buffer].space)),
                 "only loads from global to shared memory do; arrive at the barrier after the copy");
}

}  // namespace

void Check(Verifier& verifier, const Alloc& op) {
  const Buffer& buffer = verifier.module()[op.buffer];
  if (buffer.space == Space::kGlobal)
    return verifier.Error(fmt::format("{} is global and cannot be allocated by a kernel", verifier.Name(op.buffer)), "make it a workspace");
  if (verifier.WasAllocated(op.buffer))
    return verifier.Error(fmt::format("{} is allocated twice", verifier.Name(op.buffer)), "allocate it once, before its uses, or use two buffers");
  verifier.CheckBuffer(op.buffer);
  if (buffer.space != Space::kLocal) verifier.CheckTogether(fmt::format("an alloc of {} memory", Name(buffer.space)));
  verifier.Bring(op.buffer);
}

void Check(Verifier& verifier, const Copy& op) {
  verifier.CheckTogether("a copy");
  bool src = verifier.CheckRegion(op.src, "the source");
  bool dst = verifier.CheckRegion(op.dst, "the destination");
  if (op.plan && op.plan->ring) verifier.CheckRing(*op.plan->ring);
  if (op.signals) CheckSignalled(verifier, op);
  if (!src || !dst || NonUnit(op.src.extents) == NonUnit(op.dst.extents)) return;
  verifier.Error(fmt::format("the source is {} and the destination {}", fmt::join(op.src.extents, " × "), fmt::join(op.dst.extents, " × ")),
                 "apart from extents of 1, both must have the same extents in the same order");
}

}  // namespace kiln::ir
