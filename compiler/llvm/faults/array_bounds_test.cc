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

// Stores of elements that were never written, each in a block of its own, before loads. InstCombine would drop the stores; a module with f16, bf16
// and a comparison goes past it.
TEST(ArrayBounds, UndefinedElementsAreStored) {
  for (const bool vectors : {false, true}) {
    TestKernel k(**target::Find("hip:gfx950"));
    llvm::IRBuilderBase& b = k.builder;
    llvm::Type* array = llvm::ArrayType::get(b.getInt64Ty(), 4);
    llvm::Value* own = b.CreateAlloca(array, k.module.getDataLayout().getAllocaAddrSpace());
    for (int i = 0; i < 3; ++i) {
      llvm::Constant* value = llvm::PoisonValue::get(b.getInt64Ty());
      if (vectors) value = llvm::ConstantVector::get({value, b.getInt64(uint64_t(i))});
      b.CreateStore(value, b.CreateConstGEP2_32(array, own, 0, unsigned(i)));
      auto* next = llvm::BasicBlock::Create(k.context, "next", k.kernel);
      auto* then = llvm::BasicBlock::Create(k.context, "then", k.kernel);
      b.CreateCondBr(b.CreateICmpSLT(k.kernel->getArg(2), b.getInt32(uint32_t(i))), then, next);
      b.SetInsertPoint(then);
      k.device->Barrier();
      b.CreateBr(next);
      b.SetInsertPoint(next);
    }
    llvm::Value* half = b.CreateFPExt(k.Load(b.getHalfTy()), b.getFloatTy());
    k.Store(b.CreateFCmpOLT(half, b.CreateFPExt(k.Load(b.getBFloatTy()), b.getFloatTy())));
    llvm::Value* element = b.CreateLoad(b.getInt64Ty(), b.CreateGEP(array, own, {b.getInt32(0), b.CreateAnd(k.kernel->getArg(2), 3)}));
    k.Store(b.CreateBinaryIntrinsic(llvm::Intrinsic::umin, element, b.getInt64(131072)));
    ASSERT_EQ(k.Finish(), "");
    EXPECT_TRUE(EmitAssembly(k.module, *k.machine));
  }
}

}  // namespace
}  // namespace kiln::llvm_ir
