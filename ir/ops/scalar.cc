// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "ir/op.h"
#include "ir/verify/verifier.h"

namespace kiln::ir {
namespace {

bool IsMemory(Space space) { return space == Space::kGlobal || space == Space::kShared; }

// Whether an access of so many elements is one that the hardware makes.
bool IsAccess(const Buffer& buffer, int32_t width) { return std::has_single_bit(uint32_t(width)) && width * Bits(buffer.dtype) <= 128; }
// Instructions that say how long a cache keeps what they touch are of 16 bytes.
bool MayChooseCache(const Buffer& buffer, int32_t width) { return buffer.space == Space::kGlobal && width * Bits(buffer.dtype) == 128; }

bool HasVectorsAround(const Buffer& buffer, int32_t width) {
  const int bits = Bits(buffer.dtype);
  return buffer.space == Space::kGlobal && (bits == 8 || bits == 16) && width * bits >= 32;
}

void CheckLoadPlan(Verifier& verifier, const LoadPlan& plan) {
  const Buffer& buffer = verifier.module()[plan.buffer];
  const bool wide = plan.form >= LoadForm::kVector, gathered = plan.form == LoadForm::kGathered;
  if (!IsAccess(buffer, plan.width) || (!wide && plan.width != 1) || (gathered && buffer.space != Space::kShared)) {
    verifier.Error(fmt::format("a plan to load {} elements of {} as '{}'", plan.width, verifier.Name(plan.buffer), Name(plan.form)),
                   "an access takes 1, 2, 4, 8 or 16 elements, of 16 bytes or less; what is gathered is in shared memory");
  }
  if (plan.form == LoadForm::kClipped && plan.width == 1) {
    verifier.Error(fmt::format("a plan to load {} elements of {} as 'clipped'", plan.width, verifier.Name(plan.buffer)),
                   "what a row's end or a mask clips are vectors");
  }
  if (plan.form == LoadForm::kAround && (!HasVectorsAround(buffer, plan.width) || plan.once)) {
    verifier.Error(fmt::format("a plan to load the vectors around {} elements of {}", plan.width, verifier.Name(plan.buffer)),
                   "they are 4 bytes or more of a tensor, of elements of one or two, and not past the cache");
  }
  if (plan.once && !MayChooseCache(buffer, plan.width))
    verifier.Error(fmt::format("a load of {} past the cache", verifier.Name(plan.buffer)), "such loads are of 16 bytes of global memory");
}

void CheckLoads(Verifier& verifier, const Store& op) {
  std::vector<BufferId> loaded, planned;
  std::vector<bool> masked;
  for (const Read& read : ReadsOf(verifier.exprs(), op.value)) {
    const BufferId buffer{verifier.exprs()[read.load].ref};
    if (IsMemory(verifier.module()[buffer].space)) loaded.push_back(buffer), masked.push_back(read.mask.has_value());
  }
  for (const LoadPlan& plan : op.plan->loads) {
    const bool scattered = IsScattered(plan.form) && planned.size() < masked.size() && masked[planned.size()];
    if (scattered)
      verifier.Error(fmt::format("a plan to load masked elements of {} as '{}'", verifier.Name(plan.buffer), Name(plan.form)),
                     "such a load takes elements of other iterations, whose masks may differ");
    planned.push_back(plan.buffer);
    CheckLoadPlan(verifier, plan);
  }
  if (loaded != planned)
    verifier.Error(fmt::format("a plan of {} loads for a value with {}", planned.size(), loaded.size()),
                   "name each load of global and shared memory, in the order of the value");
}

void CheckPlan(Verifier& verifier, const Store& op) {
  const StorePlan& plan = *op.plan;
  const Buffer& buffer = verifier.module()[op.buffer];
  if (verifier.loops.empty() || (verifier.loops.back() != LoopKind::kParallel && verifier.loops.back() != LoopKind::kVectorized))
    verifier.Error("a plan for a store outside of a parallel or vectorized loop", "only there, threads store several elements");
  CheckLoads(verifier, op);
  const bool to_registers = plan.form == StoreForm::kRegisters, by_vector = plan.form == StoreForm::kVector;
  const bool fits = to_registers ? buffer.space == Space::kFragment
                    : by_vector  ? IsMemory(buffer.space) && IsAccess(buffer, plan.width)
                                 : buffer.space == Space::kShared && Bits(buffer.dtype) == 16;
  if (!std::has_single_bit(uint32_t(plan.packed)))
    verifier.Error(fmt::format("a plan to compute {} neighbours at once", plan.packed), "a register holds 1, 2 or 4");
  if (!fits || (!by_vector && plan.width != 1)) {
    verifier.Error(fmt::format("a plan to store {} elements of {} as '{}'", plan.width, verifier.Name(op.buffer), Name(plan.form)),
                   "fragments lie in registers, vectors of up to 16 bytes in memory, matrices of 16-bit elements in shared memory");
  }
  if (plan.parted && !by_vector)
    verifier.Error(fmt::format("a plan to store '{}' in parts", Name(plan.form)),
                   "vectors alone may be stored element by element where some are left out");
  if (plan.kept && !(by_vector && MayChooseCache(buffer, plan.width)))
    verifier.Error(fmt::format("lines of {} that the L2 keeps", verifier.Name(op.buffer)), "such stores are of 16 bytes of global memory");
}

}  // namespace

void Check(Verifier& verifier, const Let& op) {
  verifier.CheckTyped(op.value, verifier.module()[op.var].dtype, "the value");
  verifier.Bind(op.var, VarKind::kLet, "by let");  // even with a wrong value, or every use would be reported
}

void Check(Verifier& verifier, const Store& op) {
  verifier.CheckElement(op.buffer, op.indices);
  verifier.CheckTyped(op.value, verifier.module()[op.buffer].dtype, "the stored value");
  if (op.plan) CheckPlan(verifier, op);
}

void Check(Verifier& verifier, const Assume& op) { verifier.CheckCondition(op.cond); }

namespace {

void CheckOld(Verifier& verifier, const Atomic& op) {
  if (op.kind == AtomicKind::kLoad && !op.old) verifier.Error("an atomic load of nothing", "say where the value goes: -> %x[0], of a local");
  if (op.kind == AtomicKind::kLoad && (op.order == MemoryOrder::kRelease || op.order == MemoryOrder::kAcqRel)) {
    verifier.Error(fmt::format("an atomic load of order {}, which has nothing to release", Name(op.order)), "use relaxed, acquire or seq_cst");
  }
  if (!op.old) return;
  const Buffer& buffer = verifier.module()[op.old->buffer];
  verifier.CheckElement(op.old->buffer, op.old->indices);
  if (buffer.space != Space::kLocal || buffer.dtype != verifier.module()[op.buffer].dtype) {
    verifier.Error(fmt::format("the value from before goes to {}, which is {} in {} memory", verifier.Name(op.old->buffer), Name(buffer.dtype),
                               Name(buffer.space)),
                   "it goes to a local of the element's type");
  }
  if (!op.each_thread && std::ranges::find(verifier.loops, LoopKind::kParallel) == verifier.loops.end())
    verifier.Error("a value from before that only one thread of the block has", "say each_thread, or write the atomic in a parallel loop");
}

// A store to another block is no atomic step, so it may be narrower.
void CheckBlock(Verifier& verifier, const Atomic& op) {
  if (op.kind == AtomicKind::kStore && (!op.block || op.old)) {
    verifier.Error("a store that goes to no other block or gives a value", "write a plain store, or an exchange");
  }
  if (!op.block) return;
  verifier.CheckCluster(op.block, "an atomic of a block of the cluster");
  if (op.order != MemoryOrder::kRelaxed) {
    verifier.Error(fmt::format("an atomic of order {} at a block of the cluster, which would order accesses of global memory only", Name(op.order)),
                   "use relaxed, and a barrier of the cluster or an arrive to order what the blocks do");
  }
  const Buffer& buffer = verifier.module()[op.buffer];
  if (buffer.space == Space::kShared) return;
  verifier.Error(fmt::format("{} of another block, in {} memory", verifier.Name(op.buffer), Name(buffer.space)),
                 "the blocks of a cluster reach each other's shared memory");
}

}  // namespace

void Check(Verifier& verifier, const Atomic& op) {
  const Buffer& buffer = verifier.module()[op.buffer];
  verifier.CheckElement(op.buffer, op.indices);
  if (op.TakesValue()) verifier.CheckTyped(op.value, buffer.dtype, "the value");
  if (op.Compares()) verifier.CheckTyped(op.compare, buffer.dtype, "the value to compare with");
  if (buffer.space != Space::kGlobal && buffer.space != Space::kShared) {
    verifier.Error(fmt::format("an atomic on {}, which is in {} memory", verifier.Name(op.buffer), Name(buffer.space)),
                   "threads share global and shared memory only; use store");
  }
  const bool narrow = op.kind == AtomicKind::kStore ? Bits(buffer.dtype) < 8 : buffer.dtype == DType::kBool || Bits(buffer.dtype) < 16;
  if (narrow) {
    verifier.Unsupported(fmt::format("an atomic on elements of type {}", Name(buffer.dtype)), "use 16 bits or more");
  }
  const bool bitwise = op.kind >= AtomicKind::kBitAnd && op.kind <= AtomicKind::kBitXor;
  if (bitwise && IsFloat(buffer.dtype))
    verifier.Error(fmt::format("an atomic {} on elements of type {}", Name(op.kind), Name(buffer.dtype)), "bits are those of integers");
  CheckOld(verifier, op);
  CheckBlock(verifier, op);
}

}  // namespace kiln::ir
