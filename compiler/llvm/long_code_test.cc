// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/long_code.h"

#include <gtest/gtest.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/STLExtras.h>
#include <llvm/Analysis/PostDominators.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/OptBisect.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <vector>

#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using llvm::BasicBlock;
using llvm::Value;

const target::Target& Of(const char* name) { return **target::Find(name); }

// Branches, each of which stores what was loaded before it.
void BuildConditions(TestKernel& k, int count) {
  llvm::IRBuilderBase& b = k.builder;
  for (int i = 0; i < count; ++i) {
    auto* then = BasicBlock::Create(k.context, "then", k.kernel);
    auto* after = BasicBlock::Create(k.context, "after", k.kernel);
    Value* x = k.Load(b.getInt32Ty());
    b.CreateCondBr(b.CreateICmpSLT(x, b.getInt32(i)), then, after);
    b.SetInsertPoint(then);
    k.Store(x);
    b.CreateBr(after);
    b.SetInsertPoint(after);
  }
}

void BuildSums(TestKernel& k, int count) {
  Value* sum = k.Load(k.builder.getInt32Ty());
  for (int i = 0; i < count; ++i) sum = k.builder.CreateXor(k.builder.CreateAdd(sum, k.builder.getInt32(i + 1)), k.kernel->getArg(2));
  k.Store(sum);
}

// Branches around stores of what is known, by comparisons of one value with zero.
void BuildBranchesOn(TestKernel& k, Value* value, int count) {
  llvm::IRBuilderBase& b = k.builder;
  for (int i = 0; i < count; ++i) {
    auto* then = BasicBlock::Create(k.context, "then", k.kernel);
    auto* after = BasicBlock::Create(k.context, "after", k.kernel);
    b.CreateCondBr(b.CreateICmpEQ(value, b.getInt32(0)), then, after);
    b.SetInsertPoint(then);
    k.Store(b.getInt32(i));
    b.CreateBr(after);
    b.SetInsertPoint(after);
  }
}

// Elements that are read where a condition of all threads holds, each from an address that it chooses.
void BuildChoices(TestKernel& k, int count) {
  llvm::IRBuilderBase& b = k.builder;
  Value *from = k.kernel->getArg(0), *holds = b.CreateICmpULT(k.kernel->getArg(2), b.getInt32(64));
  std::vector<Value*> elements;
  for (int i = 0; i < count; ++i) {
    Value* place = b.CreateSelect(holds, b.CreateConstGEP1_64(b.getInt32Ty(), from, uint64_t(10'000 + i * 33)), k.kernel->getArg(1));
    elements.push_back(b.CreateSelect(holds, b.CreateLoad(b.getInt32Ty(), place), b.getInt32(0)));
  }
  for (Value* element : elements) k.Store(element);
}

// Conditions of all threads by the hundred, each on what the threads read at one address, with the sums of each behind it.
void BuildConversions(TestKernel& k, int count) {
  llvm::IRBuilderBase& b = k.builder;
  std::vector<Value*> results;
  for (int i = 0; i < count; ++i) {
    Value* word = b.CreateLoad(b.getInt32Ty(), b.CreateConstGEP1_64(b.getInt32Ty(), k.kernel->getArg(0), uint64_t(i * 33)));
    Value* small = b.CreateSelect(b.CreateICmpULT(word, b.getInt32(8)), b.CreateMul(word, b.getInt32(3)), b.CreateShl(word, 2));
    results.push_back(b.CreateAdd(b.CreateSelect(b.CreateICmpEQ(word, b.getInt32(128)), b.getInt32(77), small), b.getInt32(i + 1)));
  }
  for (Value* result : results) k.Store(result);
}

bool IsAssembly(const llvm::Instruction& i) { return llvm::isa<llvm::CallInst>(i) && llvm::cast<llvm::CallInst>(i).isInlineAsm(); }

// What hip:gfx942 runs of the kernel that `build` makes `count` times, and whether the vector unit has its conditions.
std::string TextOf(void (*build)(TestKernel&, int), int count, bool by_vector_unit) {
  TestKernel k(Of("hip:gfx942"));
  build(k, count);
  EXPECT_EQ(k.Finish(), "");
  EXPECT_EQ(k.machine->getOptLevel(), llvm::CodeGenOptLevel::Default);
  EXPECT_EQ(llvm::any_of(llvm::instructions(*k.kernel), IsAssembly), by_vector_unit);
  return EmitAssembly(k.module, *k.machine).value_or("");
}

TEST(LongCode, OfAnEndlessLoopEndsSomewhere) {
  for (const char* target : {"cuda:sm_80", "hip:gfx942"}) {
    TestKernel k(Of(target));
    BuildConditions(k, 1600);
    auto* loop = BasicBlock::Create(k.context, "loop", k.kernel);
    k.builder.CreateBr(loop);
    k.builder.SetInsertPoint(loop);
    BuildConditions(k, 4);
    k.builder.CreateBr(loop);
    k.builder.SetInsertPoint(BasicBlock::Create(k.context, "unreachable", k.kernel));
    ASSERT_EQ(k.Finish(), "");
    const llvm::PostDominatorTree behind(*k.kernel);
    EXPECT_EQ(behind.root_size(), 1u) << target;
    EXPECT_TRUE(llvm::any_of(*k.kernel, [](const BasicBlock& block) { return llvm::isa<llvm::ReturnInst>(block.getTerminator()); })) << target;
    ASSERT_FALSE(llvm::verifyModule(k.module, &llvm::errs())) << target;
  }
}

// One exit is enough for all that come to it, and what ends anyway needs none.
TEST(LongCode, ThatEndsStaysAsItIs) {
  TestKernel k(Of("cuda:sm_80"));
  BuildConditions(k, 3);
  ASSERT_EQ(k.Finish(), "");
  const size_t blocks = k.kernel->size();
  GiveExits(*k.kernel);
  EXPECT_EQ(k.kernel->size(), blocks);
}

TEST(LongCode, ThatReturnsAValueStaysAsItIs) {
  TestKernel k(Of("cuda:sm_80"));
  auto* type = llvm::FunctionType::get(k.builder.getInt32Ty(), false);
  auto* function = llvm::Function::Create(type, llvm::Function::InternalLinkage, "endless", k.module);
  auto* loop = BasicBlock::Create(k.context, "loop", function);
  llvm::BranchInst::Create(BasicBlock::Create(k.context, "body", function), loop);
  llvm::BranchInst::Create(&function->back(), &function->back());
  GiveExits(*function);
  EXPECT_FALSE(llvm::verifyFunction(*function, &llvm::errs()));
  EXPECT_EQ(function->size(), 2u);
}

TEST(LongCode, OfOneBlockIsCutForAmdsSelection) {
  TestKernel k(Of("hip:gfx942"));
  BuildSums(k, 13'000);
  ASSERT_EQ(k.Finish(), "");
  ASSERT_EQ(k.machine->getOptLevel(), llvm::CodeGenOptLevel::None);
  const size_t instructions = k.kernel->getInstructionCount();
  ASSERT_GT(k.kernel->getEntryBlock().size(), 40 * kMostOfBlock);
  CutLongBlocks(*k.kernel);
  ASSERT_TRUE(EmitHsaco(k.module, *k.machine));
  size_t most = 0;
  for (const BasicBlock& block : *k.kernel) most = std::max(most, block.size());
  EXPECT_LT(most, 2 * kMostOfBlock) << "the backend adds some";
  EXPECT_GE(k.kernel->getInstructionCount(), instructions) << "no instruction is lost";
}

TEST(LongCode, WithManySumsIsNotSearchedForPairsOfThem) {
  for (const int sums : {100, 2000}) {
    TestKernel k(Of("hip:gfx942"));
    BuildSums(k, sums);
    ASSERT_EQ(k.Finish(), "");
    ASSERT_EQ(k.machine->getOptLevel(), llvm::CodeGenOptLevel::Default);
    ASSERT_TRUE(EmitHsaco(k.module, *k.machine));
    llvm::OptPassGate& gate = k.context.getOptPassGate();
    EXPECT_EQ(!gate.isEnabled() || gate.shouldRunPass("slsr", "function"), sums == 100);
    EXPECT_TRUE(!gate.isEnabled() || gate.shouldRunPass("early-cse", "function"));
  }
}

// Branches that all test the same value, each by a comparison of its own: they stay, because each walk over the blocks would lead one past another.
TEST(LongCode, OfBranchesOnOneValueKeepsThem) {
  TestKernel k(Of("cuda:sm_80"));
  BuildBranchesOn(k, k.Load(k.builder.getInt32Ty()), 1600);
  ASSERT_EQ(k.Finish(), "");
  ASSERT_EQ(k.machine->getOptLevel(), llvm::CodeGenOptLevel::None);
  const auto branches = [](const BasicBlock& block) { return llvm::succ_size(&block) == 2; };
  EXPECT_EQ(llvm::count_if(*k.kernel, branches), 1600);
}

TEST(LongCode, ThatChoosesByConditionsOfAllThreadsHasRoomForWhatItChooses) {
  for (const auto build : {BuildChoices, BuildConversions}) {
    for (const bool many : {false, true}) {
      const std::string text = TextOf(build, many ? 256 : 40, many);
      EXPECT_NE(text, "");
      EXPECT_EQ(text.find("v_writelane"), std::string::npos) << "scalar registers are spilled";
    }
  }
}

}  // namespace
}  // namespace kiln::llvm_ir
