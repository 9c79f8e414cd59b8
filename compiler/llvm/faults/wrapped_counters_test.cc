// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/wrapped_counters.h"

#include <gtest/gtest.h>

#include <string>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using llvm::Value;

struct Loop {
  unsigned bits;
  int64_t first, step;
  llvm::CmpInst::Predicate stays;
  int64_t bound;
  bool behind_another = false;  // the condition is one of two
};

// PTX of a kernel with the loop, as LLVM's optimizer may have left it.
std::string Emit(const Loop& loop) {
  TestKernel k(**target::Find("cuda:sm_90a"));
  llvm::IRBuilderBase& b = k.builder;
  llvm::Type* type = b.getIntNTy(loop.bits);
  const auto number = [&](int64_t value) { return llvm::ConstantInt::getSigned(type, value); };
  llvm::BasicBlock* entry = b.GetInsertBlock();
  auto* body = llvm::BasicBlock::Create(k.context, "body", k.kernel);
  auto* after = llvm::BasicBlock::Create(k.context, "after", k.kernel);
  b.CreateBr(body);
  b.SetInsertPoint(body);
  llvm::PHINode* i = b.CreatePHI(type, 2);
  i->addIncoming(number(loop.first), entry);
  k.device->Barrier();
  k.Store(i);
  Value* next = b.CreateAdd(i, number(loop.step));
  i->addIncoming(next, body);
  Value* goes_on = b.CreateICmp(loop.stays, next, number(loop.bound));
  if (loop.behind_another) goes_on = b.CreateAnd(b.CreateICmpNE(k.kernel->getArg(2), b.getInt32(7)), goes_on);
  b.CreateCondBr(goes_on, body, after);
  b.SetInsertPoint(after);
  b.CreateRetVoid();
  KeepWrappedCounters(*k.kernel);
  const auto code = EmitAssembly(k.module, *k.machine);
  EXPECT_TRUE(code) << code.error();
  return *code;
}

constexpr const char* kNotUnrolled = ".pragma \"nounroll\"";

TEST(WrappedCounters, UnsignedComparisonsOfNegativeCountersStay) {
  for (const Loop& loop : {Loop{32, -2, 1, llvm::CmpInst::ICMP_ULT, 5}, Loop{64, -20, 1, llvm::CmpInst::ICMP_ULT, 100},
                           Loop{32, -3, 2, llvm::CmpInst::ICMP_ULE, 9}, Loop{32, -2, 1, llvm::CmpInst::ICMP_ULT, 5, true}}) {
    const std::string ptx = Emit(loop);
    EXPECT_NE(ptx.find(kNotUnrolled), std::string::npos) << ptx;
  }
}

TEST(WrappedCounters, OthersMayBeUnrolled) {
  for (const Loop& loop : {Loop{32, 0, 1, llvm::CmpInst::ICMP_ULT, 5}, Loop{32, -2, 1, llvm::CmpInst::ICMP_SLT, 5},
                           Loop{32, -2, 1, llvm::CmpInst::ICMP_NE, 5}, Loop{64, 7, -1, llvm::CmpInst::ICMP_ULT, 9}}) {
    const std::string ptx = Emit(loop);
    EXPECT_EQ(ptx.find(kNotUnrolled), std::string::npos) << ptx;
  }
}

}  // namespace
}  // namespace kiln::llvm_ir
