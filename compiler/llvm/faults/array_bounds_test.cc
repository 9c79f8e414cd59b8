// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/array_bounds.h"

#include <gtest/gtest.h>

#include <ranges>
#include <string_view>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

// Choices in a kernel that stores and loads elements of an array of a thread's own, so many times, wherever its input says.
size_t Choices(int times) {
  TestKernel k(**target::Find("hip:gfx1100"));
  llvm::IRBuilderBase& b = k.builder;
  llvm::Type* array = llvm::ArrayType::get(b.getHalfTy(), 64);
  llvm::Value* own = b.CreateAlloca(array, k.module.getDataLayout().getAllocaAddrSpace());
  const auto place = [&] { return b.CreateGEP(array, own, {b.getInt32(0), b.CreateAnd(k.Load(b.getInt32Ty()), 63)}); };
  b.CreateStore(llvm::Constant::getNullValue(array), own);
  for (int i = 0; i < times; ++i) {
    b.CreateStore(k.Load(b.getHalfTy()), place());
    k.Store(b.CreateLoad(b.getHalfTy(), place()));
  }
  EXPECT_EQ(k.Finish(), "");
  const auto code = EmitAssembly(k.module, *k.machine);
  EXPECT_TRUE(code) << code.error();
  return size_t(std::ranges::distance(*code | std::views::split(std::string_view("v_cndmask"))) - 1);
}

TEST(ArrayBounds, ArraysOfThousandsOfChoicesStayInMemory) {
  EXPECT_GE(Choices(4), 4u * 64);
  EXPECT_LT(Choices(100), 100u);
}

}  // namespace
}  // namespace kiln::llvm_ir
