// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/short_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using llvm::Value;

// PTX of a kernel that loads `count` values, f16 or of `bits` bits, and puts others in their place in a branch, or at the end of each iteration
// of a loop.
std::string Emit(size_t count, bool in_loop, unsigned bits = 0) {
  TestKernel k(**target::Find("cuda:sm_90a"));
  llvm::IRBuilderBase& b = k.builder;
  llvm::Type* half = bits == 0 ? b.getHalfTy() : static_cast<llvm::Type*>(b.getIntNTy(bits));
  std::vector<Value*> loaded;
  for (size_t i = 0; i < count; ++i) loaded.push_back(b.CreateLoad(half, k.Place(k.kernel->getArg(0), half, int(i))));
  llvm::BasicBlock* entry = b.GetInsertBlock();
  auto* branch = llvm::BasicBlock::Create(k.context, "branch", k.kernel);
  auto* after = llvm::BasicBlock::Create(k.context, "after", k.kernel);
  const auto changed = [&](Value* value) {
    k.device->Barrier();
    return bits == 0 ? b.CreateFMul(value, value) : b.CreateMul(value, value);
  };
  if (in_loop) {
    b.CreateBr(branch);
  } else {
    b.CreateCondBr(b.CreateICmpEQ(k.kernel->getArg(2), b.getInt32(7)), branch, after);
  }
  b.SetInsertPoint(branch);
  std::vector<llvm::PHINode*> phis;
  if (in_loop)
    for (Value* value : loaded) phis.push_back(b.CreatePHI(half, 2)), phis.back()->addIncoming(value, entry);
  std::vector<Value*> made;
  for (size_t i = 0; i < count; ++i) made.push_back(changed(in_loop ? phis[i] : loaded[i]));
  if (in_loop) {
    for (size_t i = 0; i < count; ++i) phis[i]->addIncoming(made[i], branch);
    b.CreateCondBr(b.CreateICmpEQ(k.device->ThreadIndex(), k.kernel->getArg(2)), branch, after);
    b.SetInsertPoint(after);
  } else {
    b.CreateBr(after);
    b.SetInsertPoint(after);
    for (size_t i = 0; i < count; ++i) {
      llvm::PHINode* phi = b.CreatePHI(half, 2);
      phi->addIncoming(loaded[i], entry);
      phi->addIncoming(made[i], branch);
      made[i] = phi;
    }
  }
  for (size_t i = 0; i < count; ++i) b.CreateStore(made[i], k.Place(k.kernel->getArg(1), half, int(i)));
  EXPECT_EQ(k.Finish(), "");
  const auto code = EmitAssembly(k.module, *k.machine);
  EXPECT_TRUE(code) << code.error();
  return *code;
}

// How many registers of 16 bits are written more than once, as PTX writes what branches choose between.
size_t Chosen(const std::string& ptx) {
  std::map<std::string, size_t> written;
  const std::regex write(R"(\n\s*(?:@!?%p\d+ +)?(?!st\.)[a-z0-9_.:]+\s+(%rs\d+),)");
  for (std::sregex_iterator it(ptx.begin(), ptx.end(), write), end; it != end; ++it) ++written[(*it)[1]];
  return size_t(std::ranges::count_if(written, [](const auto& reg) { return reg.second > 1; }));
}

TEST(ShortValues, BranchesAndLoopsChooseInRegistersOf32Bits) {
  for (const bool in_loop : {false, true}) {
    for (const size_t count : {1, 2, 3, 8}) {
      const std::string ptx = Emit(count, in_loop);
      EXPECT_EQ(Chosen(ptx), 0u) << ptx;
      EXPECT_EQ(ptx.find(", {%rs") != std::string::npos, count > 1) << "two together\n" << ptx;
    }
  }
}

// f8 are among them.
TEST(ShortValues, IntegersStayAlone) {
  for (const unsigned bits : {8u, 16u}) {
    for (const bool in_loop : {false, true}) {
      const std::string ptx = Emit(8, in_loop, bits);
      EXPECT_EQ(Chosen(ptx), 0u) << ptx;
      EXPECT_EQ(ptx.find("{%rs"), std::string::npos) << ptx;
      EXPECT_EQ(ptx.find("shl.b32"), std::string::npos) << "two together\n" << ptx;
    }
  }
}

}  // namespace
}  // namespace kiln::llvm_ir
