// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/barriers.h"

#include <algorithm>

#include "compiler/analysis/threads/thread_range.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using compiler::kGroupThreads;

namespace {

constexpr int kRoleBarrier = 1;  // barrier of the threads that compute; 0 is the whole block's, those of warp groups follow

}  // namespace

Barriers::Barriers(KernelContext& context) : Part(context), fences_(module(), kernel(), target()) {
  ir::Walk(kernel().body, [&](const ir::Stmt& stmt) {
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    has_wgmma_ |= gemm != nullptr && RowOf(*gemm, target()).in_flight;
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    has_stores_ |= copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor && !copy->plan->ring;
  });
}

void Barriers::Wait(const ir::Stmt& barrier) {
  const auto& op = std::get<ir::Barrier>(barrier.op);
  Wait(fences_.NeededBefore(barrier), op.by_group, op.shared_only);
}

void Barriers::WaitForScratch(std::span<const ir::Stmt> reduces) {
  const bool fenced = std::ranges::any_of(reduces, [&](const ir::Stmt& reduce) { return fences_.NeededBefore(reduce); });
  Wait(fenced, /*by_group=*/false, target().Has(target::Feature::kFencesByMemory));
}

void Barriers::Wait(bool fenced, bool by_group, bool shared_only) {
  // wgmma of other warps or tensor stores may read what this thread wrote.
  if (fenced && (has_wgmma_ || has_stores_)) device().FenceAsyncProxy();
  if (!threads().range.IsSame(compiler::AllThreads(kernel()))) return WaitOfRange();
  if (kernel().threads == 1 && kernel().producers == 0) return;  // a thread sees what it did
  if (kernel().producers == 0 && IsOneWarp()) return device().LanesBarrier(0, kernel().threads);
  if (kernel().producers == 0) return device().Barrier(shared_only);
  if (!by_group) return device().NamedBarrier(kRoleBarrier, kernel().threads);
  Value* group = device().Uniform(b().CreateUDiv(thread(), I32(kGroupThreads)));
  for (uint32_t g = 0; g < kernel().threads / kGroupThreads; ++g) {
    When(b().CreateICmpEQ(group, I32(g)), [&] { device().NamedBarrier(kRoleBarrier + 1 + int(g), kGroupThreads); });
  }
}

bool Barriers::IsOneWarp() const { return compiler::IsWithinOneWarp(compiler::AllThreads(kernel()), target().warp_size); }

// Products and tensor copies after it may read what any thread of any block wrote before.
void Barriers::WaitForGrid(Value* counter) {
  WaitForOthers([&] { device().GridBarrier(counter); });
}

void Barriers::WaitForCluster() {
  WaitForOthers([&] { device().ClusterBarrier(); });
}

void Barriers::WaitForOthers(const std::function<void()>& wait) {
  const bool async = has_wgmma_ || has_stores_;
  if (async) device().FenceAsyncProxy();
  wait();
  if (async) device().FenceAsyncProxy();
}

// A barrier of the threads of the branch only.
void Barriers::WaitOfRange() {
  const ir::ThreadRange& range = threads().range;
  const uint32_t lanes = target().warp_size;
  if (range.barrier != 0) return device().NamedBarrier(int(range.barrier), range.Count());
  if (compiler::IsWithinOneWarp(range, lanes)) return device().LanesBarrier(range.begin % lanes, range.Count());
  Internal("threads of a branch meet and have no barrier");
}

void Barriers::FinishStores() {
  if (has_stores_) device().TensorStoreWait(0, /*read_only=*/true);
}

}  // namespace kiln::llvm_ir
