// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/negations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using llvm::Value;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Way { kPlain, kNegated, kAcrossBlocks, kAlone };

// A kernel of the largest of three integers, the second of which is negated in one of these ways.
std::string Emit(const target::Target& target, unsigned bits, Way way) {
  TestKernel k(target);
  llvm::IRBuilderBase& b = k.builder;
  llvm::Type* type = b.getIntNTy(bits);
  Value* first = k.Load(type);
  Value* second = k.Load(type);
  Value* third = k.Load(type);
  if (way == Way::kAcrossBlocks) {
    llvm::BasicBlock* entry = b.GetInsertBlock();
    auto* then = llvm::BasicBlock::Create(k.context, "then", k.kernel);
    auto* after = llvm::BasicBlock::Create(k.context, "after", k.kernel);
    b.CreateCondBr(b.CreateICmpSLT(k.kernel->getArg(2), b.getInt32(5)), then, after);
    b.SetInsertPoint(then);
    Value* negated = b.CreateNeg(second);
    k.device->Barrier();
    b.CreateBr(after);
    b.SetInsertPoint(after);
    llvm::PHINode* either = b.CreatePHI(type, 2);
    either->addIncoming(second, entry);
    either->addIncoming(negated, then);
    second = either;
  } else if (way != Way::kPlain) {
    second = b.CreateNeg(second);
  }
  Value* result = way == Way::kAlone
                      ? b.CreateXor(b.CreateXor(first, second), third)
                      : b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, first, second), third);
  k.Store(result);
  EXPECT_EQ(k.Finish(), "");
  const auto code = EmitAssembly(k.module, *k.machine);
  EXPECT_TRUE(code) << code.error();
  return *code;
}

TEST(Negations, AreHiddenFromMinimaAndMaxima) {
  for (const target::Target& target : target::All()) {
    if (target.family != target::Family::kNvptx || target.emulated) continue;
    for (const unsigned bits : {16U, 32U}) {
      for (const Way way : {Way::kNegated, Way::kAcrossBlocks}) {
        const std::string ptx = Emit(target, bits, way);
        EXPECT_THAT(ptx, Not(HasSubstr("neg.s"))) << target.arch;
        EXPECT_THAT(ptx, ContainsRegex("sub.s(16|32)")) << target.arch;
      }
    }
  }
}

TEST(Negations, OthersStayAsTheyAre) {
  const target::Target& target = **target::Find("cuda:sm_90a");
  EXPECT_THAT(Emit(target, 32, Way::kAlone), HasSubstr("neg.s32"));
  EXPECT_THAT(Emit(target, 32, Way::kPlain), Not(HasSubstr("%smid")));
}

// Where ptxas loses a negation, its code is that of the kernel without one.
TEST(Negations, ReachTheMachineCode) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas";
  const target::Target& target = **target::Find("cuda:sm_90a");
  for (const unsigned bits : {16U, 32U}) {
    const auto plain = RunPtxas(ptxas, target, Emit(target, bits, Way::kPlain));
    const auto negated = RunPtxas(ptxas, target, Emit(target, bits, Way::kNegated));
    ASSERT_TRUE(plain) << plain.error().text;
    ASSERT_TRUE(negated) << negated.error().text;
    EXPECT_NE(plain->cubin, negated->cubin) << bits;
  }
}

}  // namespace
}  // namespace kiln::llvm_ir
