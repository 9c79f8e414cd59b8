// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/constant_operands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/ptx/machine_code_testing.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using llvm::Value;
using ::testing::HasSubstr;

TEST(ConstantOperands, OfByteProductsAreHidden) {
  TestKernel k(**target::Find("cuda:sm_90a"));
  llvm::IRBuilderBase& b = k.builder;
  Value *zero = b.getInt32(0), *word = k.Load(b.getInt32Ty()), *sum = llvm::ConstantFP::get(b.getFloatTy(), 0);
  const auto product = llvm::Intrinsic::lookupIntrinsicID("llvm.nvvm.mma.m16n8k32.row.col.f32.e4m3.e4m3.f32");
  for (int i = 0; i < 2; ++i) {
    Value* sums = b.CreateIntrinsic(product, {zero, zero, zero, zero, word, word, sum, sum, sum, sum});
    k.Store(b.CreateExtractValue(sums, 0));
    word = b.CreateAdd(word, b.getInt32(1));
  }
  ASSERT_EQ(k.Finish(), "");
  const auto code = EmitAssembly(k.module, *k.machine);
  ASSERT_TRUE(code) << code.error();
  const size_t first = code->find("%smid");
  ASSERT_NE(first, std::string::npos) << *code;
  EXPECT_EQ(code->find("%smid", first + 1), std::string::npos) << "one serves both products";
}

TEST(ConstantOperands, OfShortProductsAreNotNegated) {
  const std::string ptxas = FindPtxas();
  for (const bool on_one_way : {false, true}) {
    TestKernel k(**target::Find("cuda:sm_90a"));
    llvm::IRBuilderBase& b = k.builder;
    auto* half = llvm::FixedVectorType::get(b.getHalfTy(), 2);
    Value *first = k.Load(half), *second = llvm::ConstantFP::get(half, -2), *sum = llvm::ConstantFP::get(b.getFloatTy(), 0);
    if (on_one_way) second = b.CreateSelect(b.CreateICmpEQ(k.Load(b.getInt32Ty()), b.getInt32(7)), second, k.Load(half));
    const auto product = llvm::Intrinsic::lookupIntrinsicID("llvm.nvvm.mma.m16n8k8.row.col.f32.f32");
    k.Store(b.CreateExtractValue(b.CreateIntrinsic(product, {first, first, second, sum, sum, sum, sum}), 0));
    ASSERT_EQ(k.Finish(), "");
    const auto code = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(code) << code.error();
    EXPECT_THAT(*code, HasSubstr("%smid"));
    if (ptxas.empty()) continue;
    const auto made = RunPtxas(ptxas, k.target, *code);
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(CountInstructions(made->cubin, [](SassInstruction i) { return i.Opcode() == kHalfProduct && i.NegatesB(); }), 0u);
    EXPECT_EQ(CountInstructions(made->cubin, [](SassInstruction i) { return i.Opcode() == kHalfProduct; }), 1u);
  }
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
}

}  // namespace
}  // namespace kiln::llvm_ir
