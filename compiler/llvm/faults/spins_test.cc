// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/spins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

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
std::string Emit(const target::Target& target, DType dtype, AtomicOp op, unsigned space, bool in_loop, bool flushes = false) {
  TestKernel k(target);
  if (flushes) FlushSubnormals(*k.kernel);
  llvm::IRBuilderBase& b = k.builder;
  llvm::Type* type = ValueType(k.context, dtype);
  Value* value = k.Load(type);
  Value* place = space == kSharedSpace ? b.CreateGEP(type, k.shared, b.CreateURem(k.device->ThreadIndex(), b.getInt32(33)))
                                       : k.Place(k.kernel->getArg(1), type, 0);
  const auto atomic = [&] {
    k.device->Atomic({.op = op, .dtype = dtype, .order = ir::MemoryOrder::kRelaxed, .gives_old = true}, place, value,
                     op == AtomicOp::kCompareExchange ? value : nullptr);
  };
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

const target::Target& Hopper() { return **target::Find("cuda:sm_90a"); }

TEST(Spins, AreLoopsOfThePtx) {
  const std::string ptxas = FindPtxas();
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    for (const auto& [dtype, space] : {std::pair{DType::kF32, kSharedSpace},
                                       {DType::kF64, kSharedSpace},
                                       {DType::kI64, kSharedSpace},
                                       {DType::kF16, kSharedSpace},
                                       {DType::kF16, kGlobalSpace},
                                       {DType::kBF16, kGlobalSpace}}) {
      SCOPED_TRACE(std::string(target.arch) + " " + std::string(ir::Name(dtype)));
      const std::string ptx = Emit(target, dtype, AtomicOp::kAdd, space, true);
      EXPECT_THAT(ptx, ContainsRegex("atom[.a-z]*[.]cas[.]b(32|64)"));
      EXPECT_THAT(ptx, Not(ContainsRegex("(atom|red)[.:a-z]*[.](add|min|max|cas[.]b16)")));
      if (ptxas.empty()) continue;
      const auto made = RunPtxas(ptxas, target, ptx);
      ASSERT_TRUE(made) << made.error().text;
      EXPECT_THAT(made->warnings, IsEmpty());
    }
  }
}

TEST(Spins, AreOfAnyOperation) {
  for (const AtomicOp op : {AtomicOp::kMin, AtomicOp::kMax, AtomicOp::kExchange, AtomicOp::kCompareExchange})
    EXPECT_THAT(Emit(Hopper(), DType::kF16, op, kGlobalSpace, false), Not(HasSubstr("cas.b16")));
}

TEST(Spins, SumsOfHalvesKeepSubnormals) {
  EXPECT_THAT(Emit(Hopper(), DType::kF16, AtomicOp::kAdd, kGlobalSpace, false), HasSubstr("add.f16"));
  EXPECT_THAT(Emit(Hopper(), DType::kF16, AtomicOp::kAdd, kGlobalSpace, false, true), Not(HasSubstr("ftz.f16")));
}

TEST(Spins, WhatTheGpuHasStays) {
  constexpr const char* kLoop = "atom[.a-z]*[.]cas";
  EXPECT_THAT(Emit(Hopper(), DType::kF32, AtomicOp::kAdd, kGlobalSpace, true), Not(ContainsRegex(kLoop))) << "in global memory";
  for (const AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMin, AtomicOp::kXor})
    EXPECT_THAT(Emit(Hopper(), DType::kI32, op, kSharedSpace, true), Not(ContainsRegex(kLoop))) << "an instruction of the GPU";
  EXPECT_THAT(Emit(Hopper(), DType::kI64, AtomicOp::kExchange, kSharedSpace, true), Not(ContainsRegex(kLoop))) << "an exchange";
}

TEST(Spins, OfALongBlockTakeTimeInProportion) {
  TestKernel k(Hopper());
  Value* value = k.Load(k.builder.getFloatTy());
  for (int i = 0; i < 160'000; ++i)
    k.builder.CreateAtomicRMW(llvm::AtomicRMWInst::FAdd, k.shared, value, llvm::Align(4), llvm::AtomicOrdering::Monotonic);
  k.builder.CreateRetVoid();
  const std::clock_t before = std::clock();
  WriteSpins(*k.kernel);
  EXPECT_LT(std::clock() - before, 5 * CLOCKS_PER_SEC);
  EXPECT_EQ(k.kernel->size(), 320'001u);
}

}  // namespace
}  // namespace kiln::llvm_ir
