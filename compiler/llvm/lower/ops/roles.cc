// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/roles.h"

#include <algorithm>
#include <optional>

#include "compiler/rules/roles.h"

namespace kiln::llvm_ir {

using compiler::kFewRegisters;
using compiler::kGroupThreads;
using compiler::kMostRegisters;

namespace {

int64_t Floor8(int64_t n) { return n / 8 * 8; }

class Roles : Part {
 public:
  explicit Roles(KernelContext& context) : Part(context) {}

  void Lower(Rings& rings, TensorCopies& copies, const std::function<void()>& produce, const std::function<void()>& compute);

 private:
  std::optional<int64_t> MoreRegisters() const;
  void Produce(const std::function<void()>& body);
  void Compute(const std::function<void()>& body);
};

void Roles::Lower(Rings& rings, TensorCopies& copies, const std::function<void()>& produce, const std::function<void()>& compute) {
  When(b().CreateICmpEQ(thread(), I32(kernel().threads)), [&] { copies.Prefetch(); });
  rings.Init();
  llvm::BasicBlock *fill = NewBlock("fill"), *work = NewBlock("work"), *end = NewBlock("roles.end");
  Value* warp = device().Uniform(b().CreateUDiv(thread(), I32(target().warp_size)));
  b().CreateCondBr(b().CreateICmpUGE(warp, I32(kernel().threads / target().warp_size)), fill, work);
  b().SetInsertPoint(fill);
  Produce(produce);
  b().CreateBr(end);
  b().SetInsertPoint(work);
  Compute(compute);
  b().CreateBr(end);
  b().SetInsertPoint(end);
  // The other block may write to this one's shared memory until then.
  if (rings.multicast()) device().ClusterBarrier();
}

// What each computing thread has, where producers give registers away to them.
std::optional<int64_t> Roles::MoreRegisters() const {
  const int64_t groups = kernel().threads / kGroupThreads, all = groups + kernel().producers / kGroupThreads;
  // As in CreateKernel: max_registers takes precedence over min_blocks.
  const int64_t given = context().request().options.max_registers(), limit = given == 0 ? 256 : Floor8(given);
  const int64_t blocks = given == 0 ? std::max(kernel().min_blocks, 1u) : 1;
  // Of each thread as the kernel starts, and as the roles share them afterwards.
  const int64_t start = std::min(Floor8(int64_t(target().registers_per_multiprocessor) / (all * kGroupThreads * blocks)), limit);
  const int64_t more = std::min(Floor8((start * all - kFewRegisters) / groups), kMostRegisters);
  return start > kFewRegisters && start < kMostRegisters && more > start ? std::optional(more) : std::nullopt;
}

void Roles::Produce(const std::function<void()>& body) {
  const std::function<bool(const ir::Stmt&)> fills = compiler::FillsRing;
  const compiler::ProducerSlice slice(module(), kernel(), fills);
  if (MoreRegisters()) device().SetRegisters(int(kFewRegisters), /*more=*/false);
  const FactsScope scope(context());
  Threads producers = threads();
  producers.slice = &slice;
  const Threads outer = context().SetThreads(producers);
  When(b().CreateICmpEQ(thread(), I32(kernel().threads)), body);
  context().SetThreads(outer);
}

void Roles::Compute(const std::function<void()>& body) {
  if (const auto more = MoreRegisters()) device().SetRegisters(int(*more), /*more=*/true);
  Threads computing = threads();
  computing.warp_group = device().Uniform(b().CreateUDiv(thread(), I32(kGroupThreads)));
  const Threads outer = context().SetThreads(computing);
  body();
  context().SetThreads(outer);
}

}  // namespace

void LowerRoles(KernelContext& context, Rings& rings, TensorCopies& copies, const std::function<void()>& produce,
                const std::function<void()>& compute) {
  Roles(context).Lower(rings, copies, produce, compute);
}

}  // namespace kiln::llvm_ir
