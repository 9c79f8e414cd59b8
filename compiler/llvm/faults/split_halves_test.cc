// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/split_halves.h"

#include <gtest/gtest.h>

#include <string>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using llvm::Value;

TEST(SplitHalves, FloatsOfAThreadsArrayAreStoredWhole) {
  TestKernel k(**target::Find("cuda:sm_90a"));
  llvm::IRBuilderBase& b = k.builder;
  llvm::Type* type = b.getBFloatTy();
  Value* array = b.CreateAlloca(llvm::ArrayType::get(type, 4));
  Value* number = b.CreateSIToFP(k.Load(b.getInt16Ty()), type);
  b.CreateAlignedStore(number, array, llvm::Align(1));
  Value* place = b.CreateGEP(type, array, b.CreateAnd(k.device->ThreadIndex(), 3));
  k.Store(b.CreateAlignedLoad(type, place, llvm::Align(1)));
  b.CreateRetVoid();
  KeepHalvesWhole(*k.kernel);
  const auto code = EmitAssembly(k.module, *k.machine);
  ASSERT_TRUE(code) << code.error();
  EXPECT_NE(code->find("st.local.b16"), std::string::npos) << *code;
  EXPECT_EQ(code->find("st.local.b8"), std::string::npos) << *code;
  EXPECT_EQ(code->find("ld.local.b8"), std::string::npos) << *code;
}

}  // namespace
}  // namespace kiln::llvm_ir
