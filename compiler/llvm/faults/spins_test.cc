// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/spins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using llvm::Value;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A kernel whose threads each do this atomic to memory, as often as the third argument says, or once.
std::string Emit(const target::Target& target, DType dtype, AtomicOp op, unsigned space, bool in_loop) {
  TestKernel k(target);
  llvm::IRBuilderBase& b = k.builder;
  llvm::Type* type = ValueType(k.context, dtype);
  Value* value = k.Load(type);
  Value* place = space == kSharedSpace ? b.CreateGEP(type, k.shared, b.CreateURem(k.device->ThreadIndex(), b.getInt32(33)))
                                       : k.Place(k.kernel->getArg(1), type, 0);
  const auto atomic = [&] { k.device->Atomic({.op = op, .dtype = dtype, .order = ir::MemoryOrder::kRelaxed, .gives_old = false}, place, value); };
  if (in_loop) {
    llvm::BasicBlock* entry = b.GetInsertBlock();
    auto* loop = llvm::BasicBlock::Create(k.context, "loop", k.kernel);
    auto* after = llvm::BasicBlock::Create(k.context, "after", k.kernel);
    b.CreateBr(loop);
    b.SetInsertPoint(loop);
    llvm::PHINode* i = b.CreatePHI(b.getInt32Ty(), 2);
    i->addIncoming(b.getInt32(0), entry);
    atomic();
    Value* next = b.CreateAdd(i, b.getInt32(1));
    i->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpSLT(next, k.kernel->getArg(2)), loop, after);
    b.SetInsertPoint(after);
  } else {
    atomic();
  }
  k.device->Barrier();
  k.Store(b.CreateLoad(b.getInt32Ty(), k.shared));
  EXPECT_EQ(k.Finish(), "");
  const auto code = EmitAssembly(k.module, *k.machine);
  EXPECT_TRUE(code) << code.error();
  return *code;
}

constexpr const char* kGathers = "bar.warp.sync";

TEST(Spins, ArePartedFromTheirLoops) {
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
      const std::string ptx = Emit(target, dtype, AtomicOp::kAdd, kSharedSpace, true);
      EXPECT_THAT(ptx, ContainsRegex("activemask.b32 [^;]*;\n[^;]*bar.warp.sync [^;]*;\n[^;]*(atom|red).shared.add")) << target.arch;
      const std::string ptxas = FindPtxas();
      if (ptxas.empty()) continue;
      const auto made = RunPtxas(ptxas, target, ptx);
      ASSERT_TRUE(made) << made.error().text;
      EXPECT_THAT(made->warnings, IsEmpty()) << target.arch;
    }
  }
}

TEST(Spins, OthersStayAsTheyAre) {
  const target::Target& target = **target::Find("cuda:sm_90a");
  EXPECT_THAT(Emit(target, DType::kF32, AtomicOp::kAdd, kSharedSpace, false), Not(HasSubstr(kGathers))) << "in no loop";
  EXPECT_THAT(Emit(target, DType::kF32, AtomicOp::kAdd, kGlobalSpace, true), Not(HasSubstr(kGathers))) << "in global memory";
  for (const AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMin, AtomicOp::kXor})
    EXPECT_THAT(Emit(target, DType::kI32, op, kSharedSpace, true), Not(HasSubstr(kGathers))) << "an instruction of the GPU";
  EXPECT_THAT(Emit(target, DType::kI64, AtomicOp::kExchange, kSharedSpace, true), Not(HasSubstr(kGathers))) << "an exchange";
}

}  // namespace
}  // namespace kiln::llvm_ir
