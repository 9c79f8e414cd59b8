// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/functions/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::HasSubstr;

class LinkTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { InitializeTargets(); }

  std::expected<llvm::Function*, Fault> Link(std::string text, const char* target = "cuda:sm_80") {
    const target::Target& found = **target::Find(target);
    machine_ = MakeTargetMachine(found);
    out_ = std::make_unique<llvm::Module>("kiln", context_);
    Prepare(*out_, *machine_, found);
    const std::vector<llvm::Type*> types{llvm::PointerType::get(context_, 1), llvm::Type::getInt32Ty(context_)};
    return LinkText({ir::Language::kLlvm, "f", std::move(text)}, types, found, "kernel_0.f0.0", *out_);
  }
  Fault Refused(std::string text, const char* target = "cuda:sm_80") {
    const auto linked = Link(std::move(text), target);
    return linked ? Fault{"it was linked", ""} : linked.error();
  }

  llvm::LLVMContext context_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  std::unique_ptr<llvm::Module> out_;
};

constexpr const char* kPlain = R"(target triple = "nvptx64-nvidia-cuda"
target datalayout = "e-i64:64"
@table = internal constant [2 x i32] [i32 1, i32 2]
@unused = addrspace(3) global i32 poison
@llvm.used = appending global [1 x ptr] [ptr @other], section "llvm.metadata"
define internal i32 @pick(i32 %i) noinline "target-cpu"="sm_50" {
  %p = getelementptr i32, ptr @table, i32 %i
  %v = load i32, ptr %p
  ret i32 %v
}
define i32 @f(ptr %a, i32 %n) "target-features"="+ptx60" {
  %v = call i32 @pick(i32 %n)
  store i32 %v, ptr %a
  ret i32 %v
}
define void @other() {
  call void @nowhere()
  ret void
}
declare void @nowhere()
!nvvm.annotations = !{!0}
!0 = !{ptr @f, !"maxntidx", i32 1}
)";

TEST_F(LinkTest, OnlyWhatTheFunctionReachesIsTaken) {
  const auto linked = Link(kPlain);
  ASSERT_TRUE(linked) << linked.error().message;
  EXPECT_EQ((*linked)->getName(), "kernel_0.f0.0.f");
  EXPECT_TRUE((*linked)->hasInternalLinkage());
  EXPECT_TRUE((*linked)->hasFnAttribute(llvm::Attribute::AlwaysInline));
  EXPECT_FALSE((*linked)->hasFnAttribute("target-features"));
  std::vector<std::string> names;
  for (const llvm::GlobalObject& object : out_->global_objects()) names.push_back(object.getName().str());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("kernel_0.f0.0.f", "kernel_0.f0.0.pick", "kernel_0.f0.0.table"));
  EXPECT_EQ(out_->getNamedMetadata("nvvm.annotations"), nullptr);
}

TEST_F(LinkTest, FaultsHaveTheirLine) {
  const Fault parse = Refused("define void @f(ptr %a, i32 %n) {\n  ret vod\n}\n");
  EXPECT_EQ(parse.line, 2u);
  const Fault types = Refused("; a comment\ndefine void @f(i64 %a, i32 %n) {\n  ret void\n}\n");
  EXPECT_EQ(types.line, 2u);
  EXPECT_THAT(types.message, HasSubstr("parameter 1 of 'f' is i64, and the call gives ptr addrspace(1)"));
  EXPECT_THAT(Refused("define void @f(ptr addrspace(3) %a, i32 %n) {\n  ret void\n}\n").message, HasSubstr("is ptr addrspace(3)"));
  EXPECT_THAT(Refused("define void @f(ptr byval(i32) %a, i32 %n) {\n  ret void\n}\n").message, HasSubstr("to a value"));
  EXPECT_EQ(LineOf("one\ntwo\nthree", 2), "two");
  EXPECT_EQ(LineOf("one", 5), "");
}

TEST_F(LinkTest, WhatHasNoPlaceInAKernelIsRefusedByName) {
  const auto with = [](const std::string& statement, const std::string& more = "") {
    return more + "\ndefine void @f(ptr %a, i32 %n) {\n  " + statement + "\n  ret void\n}\n";
  };
  EXPECT_THAT(Refused(with("call void @f(ptr %a, i32 %n)")).message, HasSubstr("'f' calls itself"));
  EXPECT_THAT(Refused(with("call void %a()")).message, HasSubstr("by its address"));
  EXPECT_THAT(Refused(with("store ptr @g, ptr %a", "define void @g() { ret void }")).message, HasSubstr("takes the address of 'g'"));
  EXPECT_THAT(Refused(with("call void @g()", "declare void @g()")).message, HasSubstr("'g', which it does not define"));
  EXPECT_THAT(Refused(with("store i32 0, ptr @v", "@v = thread_local global i32 0")).message, HasSubstr("'v' is thread-local"));
  EXPECT_THAT(Refused(with("store i32 0, ptr @v", "@v = global i32 0")).message, HasSubstr("'v' keeps its value"));
  EXPECT_THAT(Refused(with("%v = load i32, ptr @v", "@v = external constant i32")).message, HasSubstr("'v' is not defined"));
  EXPECT_THAT(Refused(with("", "module asm \"nop\"")).message, HasSubstr("assembly outside of functions"));
  EXPECT_THAT(Refused(with("%v = call i32 @llvm.amdgcn.workitem.id.x()", "declare i32 @llvm.amdgcn.workitem.id.x()")).message,
              HasSubstr("is no instruction of cuda:sm_80"));
  EXPECT_THAT(Refused(with("%v = call float @llvm.tan.f32(float 1.0)", "declare float @llvm.tan.f32(float)")).message,
              HasSubstr("has no instruction"));
  EXPECT_TRUE(Link(with("%v = call float @llvm.exp.f32(float 1.0)", "declare float @llvm.exp.f32(float)")));
  EXPECT_TRUE(Link(with("call void asm sideeffect \"nop;\", \"\"()")));
  EXPECT_THAT(Refused(with("call void asm sideeffect \"nop;\", \"\"()"), "emu:sm_80").message, HasSubstr("inline assembly"));
  EXPECT_THAT(Refused(with("%v = atomicrmw add ptr %a, i32 1 monotonic"), "emu:sm_80").message, HasSubstr("atomics"));
  EXPECT_TRUE(Link(with("%v = call i32 @llvm.amdgcn.workitem.id.x()", "declare i32 @llvm.amdgcn.workitem.id.x()"), "emu:sm_80"));
}

}  // namespace
}  // namespace kiln::llvm_ir
