// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/outline.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using llvm::Value;

const target::Target& Sm80() { return **target::Find("cuda:sm_80"); }

int Count(const std::string& text, std::string_view word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// Branches, each of which stores what was loaded before it.
void BuildConditions(TestKernel& k, int count) {
  llvm::IRBuilderBase& b = k.builder;
  for (int i = 0; i < count; ++i) {
    auto* then = llvm::BasicBlock::Create(k.context, "then", k.kernel);
    auto* after = llvm::BasicBlock::Create(k.context, "after", k.kernel);
    Value* x = k.Load(b.getInt32Ty());
    b.CreateCondBr(b.CreateICmpSLT(x, b.getInt32(i)), then, after);
    b.SetInsertPoint(then);
    k.Store(x);
    b.CreateBr(after);
    b.SetInsertPoint(after);
  }
}

// As many branches in a loop as before it.
void BuildLongKernel(TestKernel& k, int count) {
  llvm::IRBuilderBase& b = k.builder;
  BuildConditions(k, count);
  llvm::BasicBlock* before = b.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(k.context, "loop", k.kernel);
  auto* end = llvm::BasicBlock::Create(k.context, "end", k.kernel);
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  llvm::PHINode* i = b.CreatePHI(b.getInt32Ty(), 2);
  i->addIncoming(b.getInt32(0), before);
  BuildConditions(k, count);
  Value* next = b.CreateAdd(i, b.getInt32(1));
  i->addIncoming(next, b.GetInsertBlock());
  b.CreateCondBr(b.CreateICmpSLT(next, k.kernel->getArg(2)), loop, end);
  b.SetInsertPoint(end);
}

TEST(LongKernels, BecomeFunctions) {
  TestKernel k(Sm80());
  BuildLongKernel(k, 1500);
  ASSERT_EQ(k.Finish(), "");
  const size_t blocks = k.kernel->size();
  OutlineLongKernels(k.module);
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  ASSERT_FALSE(llvm::verifyModule(k.module, &stream)) << problem;
  size_t sum = 0, most = 0;
  for (const llvm::Function& function : k.module) sum += function.size(), most = std::max(most, function.size());
  EXPECT_GE(sum, blocks) << "no block is lost";
  EXPECT_LE(most, 3 * kLongPart);
  const auto ptx = EmitAssembly(k.module, *k.machine);
  ASSERT_TRUE(ptx) << ptx.error();
  EXPECT_EQ(Count(*ptx, ".entry"), 1);
  EXPECT_GT(Count(*ptx, "call.uni"), 10);
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "NO PTXAS ON THIS MACHINE";
  const auto output = RunPtxas(ptxas, Sm80(), *ptx, false);
  ASSERT_TRUE(output) << output.error().text;
  ASSERT_EQ(output->kernels.size(), 1u) << "functions are no kernels";
  EXPECT_EQ(output->kernels[0].entry(), "test_kernel");
  EXPECT_GT(output->kernels[0].registers(), 0u);
}

TEST(LongKernels, OfOneBlockBecomeFunctionsToo) {
  TestKernel k(Sm80());
  for (int i = 0; i < 4000; ++i) k.Store(k.builder.CreateFAdd(k.Load(k.builder.getFloatTy()), llvm::ConstantFP::get(k.builder.getFloatTy(), 1.0)));
  ASSERT_EQ(k.Finish(), "");
  const size_t instructions = k.kernel->getInstructionCount();
  OutlineLongKernels(k.module);
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  ASSERT_FALSE(llvm::verifyModule(k.module, &stream)) << problem;
  size_t sum = 0;
  for (const llvm::Function& function : k.module) {
    sum += function.getInstructionCount();
    EXPECT_LT(function.getInstructionCount(), instructions / 3) << function.getName().str();
  }
  EXPECT_GE(sum, instructions) << "no instruction is lost";
}

TEST(LongKernels, ExtremesOfDoubleCountAsWhatTheyBecome) {
  for (const bool wide : {true, false}) {
    TestKernel k(Sm80());
    llvm::Type* type = wide ? k.builder.getDoubleTy() : k.builder.getFloatTy();
    Value* most = k.Load(type);
    for (int i = 0; i < 3000; ++i) most = k.builder.CreateBinaryIntrinsic(llvm::Intrinsic::maximumnum, most, k.Load(type));
    k.Store(most);
    EXPECT_EQ(IsLong(k.module), wide);
  }
}

TEST(LongKernels, WhatTheirFunctionsSpillIsTheirs) {
  std::string script = ::testing::TempDir() + "ptxas-XXXXXX";
  const int file = ::mkstemp(script.data());
  ASSERT_GE(file, 0);
  ::fchmod(file, 0700);
  ::close(file);
  std::ofstream(script) << R"(#!/bin/sh
cat <<'END'
ptxas info    : Compiling entry function 'kernel_1' for 'sm_80'
ptxas info    : Function properties for kernel_1
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
ptxas info    : Compiling entry function 'kernel_10' for 'sm_80'
ptxas info    : Function properties for kernel_10
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Function properties for kernel_1_$_extracted
    296 bytes stack frame, 292 bytes spill stores, 300 bytes spill loads
ptxas info    : Function properties for kernel_1_$_extracted_$_extracted1
    0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
END
)";
  const auto output = RunPtxas(script, Sm80(), "", false);
  ::unlink(script.c_str());
  ASSERT_TRUE(output) << output.error().text;
  ASSERT_EQ(output->kernels.size(), 2u);
  EXPECT_EQ(output->kernels[0].spill_bytes(), 4u + 292 + 8);
  EXPECT_EQ(output->kernels[0].registers(), 24u);
  EXPECT_EQ(output->kernels[1].spill_bytes(), 0u);
}

TEST(LongKernels, ShortOnesStayWhole) {
  TestKernel k(Sm80());
  BuildConditions(k, 50);
  ASSERT_EQ(k.Finish(), "");
  OutlineLongKernels(k.module);
  EXPECT_EQ(std::ranges::count_if(k.module, [](const llvm::Function& function) { return !function.isDeclaration(); }), 1);
}

}  // namespace
}  // namespace kiln::llvm_ir
