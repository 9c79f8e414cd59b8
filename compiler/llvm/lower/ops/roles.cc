// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/roles.h"

#include <algorithm>

#include "compiler/rules/roles.h"

namespace kiln::llvm_ir {

using compiler::kGroupThreads;

namespace {

class Roles : Part {
 public:
  explicit Roles(KernelContext& context) : Part(context) {}

  void Lower(Rings& rings, TensorCopies& copies, const std::function<void()>& produce, const std::function<void()>& compute);

 private:
  compiler::RoleRegisters Registers() const;
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

// What the threads of each role have, where those that fill rings give registers away.
compiler::RoleRegisters Roles::Registers() const {
  const int64_t at_start = compiler::RegistersAtStart(kernel(), target(), context().request().options.max_registers());
  return compiler::RegistersOfRoles(module(), kernel(), at_start);
}

void Roles::Produce(const std::function<void()>& body) {
  const std::function<bool(const ir::Stmt&)> fills = compiler::FillsRing;
  const compiler::ProducerSlice slice(module(), kernel(), fills);
  if (const int64_t few = Registers().filling; few != 0) device().SetRegisters(int(few), /*more=*/false);
  const FactsScope scope(context());
  Threads producers = threads();
  producers.slice = &slice;
  const Threads outer = context().SetThreads(producers);
  When(b().CreateICmpEQ(thread(), I32(kernel().threads)), body);
  context().SetThreads(outer);
}

void Roles::Compute(const std::function<void()>& body) {
  if (const int64_t more = Registers().computing; more != 0) device().SetRegisters(int(more), /*more=*/true);
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
