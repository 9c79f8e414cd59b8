// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/emit.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "compiler/llvm/ptx/for_ptxas.h"
#include "compiler/llvm/ptx/high_products.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using ir::ExprOp;
using llvm::Value;
using target::Family;
using target::Target;
using ::testing::HasSubstr;

// Tiles through shared memory, a matrix instruction in a loop and math at the end.
void BuildKernel(TestKernel& k) {
  llvm::IRBuilderBase& b = k.builder;
  const target::MmaInstruction& row = target::MmaInstructions(k.target)[0];
  llvm::BasicBlock* entry = b.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(k.context, "loop", k.kernel);
  auto* after = llvm::BasicBlock::Create(k.context, "after", k.kernel);
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  llvm::PHINode* i = b.CreatePHI(b.getInt32Ty(), 2);
  i->addIncoming(b.getInt32(0), entry);
  std::vector<Value*> c;
  llvm::Type* element = ValueType(k.context, row.c);
  for (int64_t r = 0; r < row.c_layout.Registers(); ++r) {
    llvm::PHINode* phi = b.CreatePHI(element, 2);
    phi->addIncoming(llvm::Constant::getNullValue(element), entry);
    c.push_back(phi);
  }
  Value* place = b.CreateGEP(b.getInt32Ty(), k.shared, k.device->ThreadIndex());
  k.device->Barrier();
  b.CreateStore(k.Load(b.getInt32Ty()), place);
  k.device->Barrier();
  const auto words = [&](const ir::Layout& layout, DType type) {
    const int64_t count = layout.Registers() * ir::Bits(type) / 32;
    return std::vector<Value*>(size_t(count), b.CreateLoad(b.getInt32Ty(), place));
  };
  const std::vector<Value*> d = k.device->Mma(row, words(row.a_layout, row.a), words(row.b_layout, row.b), c);
  Value* next = b.CreateAdd(i, b.getInt32(1));
  i->addIncoming(next, b.GetInsertBlock());
  for (size_t r = 0; r < c.size(); ++r) llvm::cast<llvm::PHINode>(c[r])->addIncoming(d[r], b.GetInsertBlock());
  b.CreateCondBr(b.CreateICmpSLT(next, k.kernel->getArg(2)), loop, after);
  b.SetInsertPoint(after);
  for (Value* v : d) {
    Value* x = k.device->Convert(v, row.c, DType::kF32);
    x = k.device->Math(ExprOp::kTanh, DType::kF32, std::array{x}, false);
    k.Store(k.device->Convert(x, DType::kF32, DType::kF16));
  }
}

std::string Emit(const Target& target) {
  TestKernel k(target);
  BuildKernel(k);
  EXPECT_EQ(k.Finish(), "");
  const auto code = target.family == Family::kNvptx ? EmitAssembly(k.module, *k.machine) : EmitHsaco(k.module, *k.machine);
  EXPECT_TRUE(code) << code.error();
  return *code;
}

int OpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

class EmitTest : public ::testing::TestWithParam<const Target*> {};

TEST_P(EmitTest, TwoCompilesGiveTheSameBytes) {
  const std::string first = Emit(*GetParam());
  const int open = OpenFiles();
  TestKernel other(*GetParam());  // memory is elsewhere the second time
  EXPECT_EQ(Emit(*GetParam()), first);
  EXPECT_EQ(OpenFiles(), open);
  EXPECT_EQ(first.find("/proc/"), std::string::npos);
}

TEST_P(EmitTest, ResourcesAreRead) {
  if (GetParam()->family == Family::kAmdgpu) {
    const auto resources = ReadHsacoResources(Emit(*GetParam()));
    ASSERT_TRUE(resources) << resources.error();
    ASSERT_EQ(resources->size(), 1u);
    const v1::KernelResources& kernel = (*resources)[0];
    EXPECT_EQ(kernel.entry(), "test_kernel");
    EXPECT_EQ(kernel.shared_bytes(), 4096u);
    EXPECT_GT(kernel.registers(), 8u);
    EXPECT_LE(kernel.registers(), GetParam()->registers_per_thread);
    EXPECT_GT(kernel.scalar_registers(), 4u);
    EXPECT_EQ(kernel.spill_bytes(), 0u);
    EXPECT_EQ(kernel.local_bytes(), 0u);
    return;
  }
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "NO PTXAS ON THIS MACHINE: registers and spills are not read";
  const std::string ptx = Emit(*GetParam());
  const auto first = RunPtxas(ptxas, *GetParam(), ptx);
  ASSERT_TRUE(first) << first.error().text;
  ASSERT_EQ(first->kernels.size(), 1u);
  const v1::KernelResources& kernel = first->kernels[0];
  EXPECT_EQ(kernel.entry(), "test_kernel");
  EXPECT_GT(kernel.registers(), 8u);
  EXPECT_GE(kernel.shared_bytes(), 4096u);
  EXPECT_TRUE(kernel.has_spill_bytes());
  EXPECT_EQ(kernel.spill_bytes(), 0u);
  EXPECT_EQ(kernel.local_bytes(), 0u);
  const auto second = RunPtxas(ptxas, *GetParam(), ptx);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->cubin, first->cubin);
}

INSTANTIATE_TEST_SUITE_P(AllTargets, EmitTest, ::testing::ValuesIn([] {
                           std::vector<const Target*> targets;
                           for (const Target& target : target::All()) targets.push_back(&target);
                           return targets;
                         }()),
                         [](const auto& info) { return std::string(info.param->arch); });

const Target& Sm80() { return **target::Find("cuda:sm_80"); }

// PTX's atom and red are relaxed unless they say otherwise, and LLVM's do not: fences stand around them.
TEST(Atomics, KeepTheirOrder) {
  using ir::MemoryOrder;
  const auto fences = [](AtomicOp op, ir::DType type, MemoryOrder order) {
    TestKernel k(Sm80());
    Value* v = k.Load(ValueType(k.context, type));
    k.device->Atomic({op, type, order, /*gives_old=*/true}, k.Place(k.kernel->getArg(1), v->getType(), 0), v,
                     op == AtomicOp::kCompareExchange ? v : nullptr);
    EXPECT_EQ(k.Finish(), "");
    const auto code = EmitAssembly(k.module, *k.machine);
    EXPECT_TRUE(code) << code.error();
    std::string found;
    for (size_t at = 0; (at = std::min({code->find("fence.", at), code->find("atom.", at), code->find("red.", at)})) != std::string::npos; ++at)
      found += (*code)[at] == 'f' ? 'f' : 'a';
    return found;
  };
  for (const auto& [op, type] : {std::pair(AtomicOp::kAdd, ir::DType::kI32), std::pair(AtomicOp::kAdd, ir::DType::kF32),
                                 std::pair(AtomicOp::kMax, ir::DType::kU64), std::pair(AtomicOp::kExchange, ir::DType::kI32),
                                 std::pair(AtomicOp::kAdd, ir::DType::kF16), std::pair(AtomicOp::kCompareExchange, ir::DType::kI16)}) {
    EXPECT_EQ(fences(op, type, MemoryOrder::kRelaxed), "a");
    EXPECT_EQ(fences(op, type, MemoryOrder::kRelease), "fa");
    EXPECT_EQ(fences(op, type, MemoryOrder::kAcquire), "af");
    EXPECT_EQ(fences(op, type, MemoryOrder::kAcqRel), "faf");
    EXPECT_EQ(fences(op, type, MemoryOrder::kSeqCst), "faf");
  }
}

TEST(Atomics, LeaveOldValuesThatNobodyWants) {
  EXPECT_EQ(WithoutUnusedResults("\tatom.global.add.f32 \t%r1, [%rd1+4], %r2;\n"), "\tred.global.add.f32 \t[%rd1+4], %r2;\n");
  EXPECT_EQ(WithoutUnusedResults("\tatom.release.gpu.global.max.s32 \t%r1, [%rd1], 5;\n"), "\tred.release.gpu.global.max.s32 \t[%rd1], 5;\n");
}

TEST(Atomics, KeepOldValuesThatAreReadAndExchanges) {
  for (const char* text :
       {"\tatom.acq_rel.gpu.global.max.s32 \t%r1, [%rd1], 5;\n", "\tatom.global.add.f32 \t%r1, [%rd1], %r2;\n\tfence.acq_rel.gpu;\n",
        "\tatom.global.add.f32 \t%r1, [%rd1], %r2;\n\tst.global.b32 \t[%rd2], %r1;\n", "\tatom.global.exch.b32 \t%r1, [%rd1], %r2;\n",
        "\tatom.global.cas.b32 \t%r1, [%rd1], %r2, %r3;\n", "\tatom.global.add.u64 \t%rd3, [%rd1], %rd2;\n", "\tadd.s32 \t%r1, %r2, %r3;\n"})
    EXPECT_EQ(WithoutUnusedResults(text), text);
}

// What one function names says nothing of another's registers.
TEST(Atomics, AreThoseOfOneFunction) {
  const char* other = "f()\n{\n\tst.global.b32 \t[%rd2], %r1;\n}\n";
  EXPECT_EQ(WithoutUnusedResults(std::string(other) + "g()\n{\n\tatom.global.or.b32 \t%r1, [%rd1], %r2;\n}\n"),
            std::string(other) + "g()\n{\n\tred.global.or.b32 \t[%rd1], %r2;\n}\n");
}

// NVPTX's code of pairs of neighbours that are loaded and stored one by one, each pair at a place of its own.
std::string NeighboursOneByOne(int pairs) {
  TestKernel k(**target::Find("cuda:sm_90a"));
  llvm::IRBuilderBase& b = k.builder;
  for (int i = 0; i < pairs; ++i) {
    Value* place = b.CreateAnd(b.CreateXor(k.device->ThreadIndex(), b.getInt32(uint32_t(i) * 77)), b.getInt32(0xfffffffe));
    Value* values[2];
    for (uint32_t j : {0, 1})
      values[j] = b.CreateAlignedLoad(b.getInt32Ty(), b.CreateGEP(b.getInt32Ty(), k.kernel->getArg(0), b.CreateAdd(place, b.getInt32(j))),
                                      llvm::Align(j == 0 ? 8 : 4));
    for (uint32_t j : {0, 1})
      b.CreateAlignedStore(values[j], b.CreateGEP(b.getInt32Ty(), k.kernel->getArg(1), b.CreateAdd(place, b.getInt32(j))),
                           llvm::Align(j == 0 ? 8 : 4));
  }
  EXPECT_EQ(k.Finish(), "");
  const auto code = EmitAssembly(k.module, *k.machine);
  EXPECT_TRUE(code) << code.error();
  return code.value_or("");
}

TEST(Nvptx, PairsOfLongCodeAreNotCompared) {
  EXPECT_THAT(NeighboursOneByOne(30), HasSubstr(".v2."));
  EXPECT_THAT(NeighboursOneByOne(1500), testing::Not(HasSubstr(".v2.")));
}

// ptxas loses the carry of a 64-bit difference from the upper word of a product: high_products.h.
TEST(HighProducts, AreNotWritten) {
  for (const Target& target : target::All()) {
    if (target.family != Family::kNvptx || target.emulated) continue;
    TestKernel k(target);
    llvm::IRBuilderBase& b = k.builder;
    Value* index = k.device->ThreadIndex();
    Value* shifted = b.CreateSub(b.getInt32(5), index);
    k.Store(b.CreateTrunc(b.CreateSub(b.CreateZExt(b.CreateUDiv(index, b.getInt32(3)), b.getInt64Ty()), k.Load(b.getInt64Ty())), b.getInt16Ty()));
    k.Store(b.CreateTrunc(b.CreateSub(b.CreateSExt(b.CreateSDiv(shifted, b.getInt32(3)), b.getInt64Ty()), k.Load(b.getInt64Ty())), b.getInt16Ty()));
    ASSERT_EQ(k.Finish(), "");
    const auto code = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(code) << code.error();
    EXPECT_THAT(*code, testing::Not(HasSubstr("mul.hi."))) << target.arch;
    EXPECT_THAT(*code, HasSubstr("mul.wide.u32 wide, ")) << target.arch;
    EXPECT_THAT(*code, HasSubstr("mul.wide.s32 wide, ")) << target.arch;
    const std::string ptxas = FindPtxas();
    if (ptxas.empty()) continue;
    const auto cubin = RunPtxas(ptxas, target, *code);
    EXPECT_TRUE(cubin) << cubin.error().text;
  }
}

TEST(HighProducts, AloneAreChanged) {
  EXPECT_EQ(WithoutHighProducts("\tmul.hi.u32 \t%r1, %r2, -7;\n"),
            "\t{ .reg .b32 low; .reg .b64 wide; mul.wide.u32 wide, %r2, -7; mov.b64 {low, %r1}, wide; }\n");
  for (const char* text : {"", "mul.hi.u64 \t%rd1, %rd2, %rd3;", "mul.lo.u32 \t%r1, %r2, 3;", "mul.hi.u32 \t%r1, %r2"}) {
    EXPECT_EQ(WithoutHighProducts(text), text);
  }
}

TEST(Ptxas, SpillsAreSeen) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "NO PTXAS ON THIS MACHINE";
  TestKernel k(Sm80(), 128, 24);
  std::vector<Value*> v;
  for (int i = 0; i < 64; ++i) v.push_back(k.Load(k.builder.getFloatTy()));
  k.device->Barrier();
  for (int i = 0; i < 64; ++i) k.Store(k.builder.CreateFMul(v[size_t(i)], v[size_t(63 - i)]));
  ASSERT_EQ(k.Finish(), "");
  const auto output = RunPtxas(ptxas, Sm80(), *EmitAssembly(k.module, *k.machine));
  ASSERT_TRUE(output) << output.error().text;
  EXPECT_GT(output->kernels[0].spill_bytes(), 0u);
  EXPECT_GT(output->kernels[0].local_bytes(), 0u);
  EXPECT_LE(output->kernels[0].registers(), 24u);
}

TEST(Ptxas, ErrorsAreItsOwn) {
  EXPECT_THAT(RunPtxas("/no/such/ptxas", Sm80(), "").error().text, HasSubstr("/no/such/ptxas"));
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "NO PTXAS ON THIS MACHINE";
  EXPECT_THAT(RunPtxas(ptxas, Sm80(), ".version 7.5\n.target sm_80\n.address_size 64\nnonsense\n").error().text, HasSubstr("error"));
}

TEST(Ptxas, WhatHappensToItFromOutsideIsNoFaultOfTheProgram) {
  EXPECT_TRUE(RunPtxas("/no/such/ptxas", Sm80(), "").error().from_outside);
  std::string script = ::testing::TempDir() + "ptxas-XXXXXX";
  const int file = ::mkstemp(script.data());
  ASSERT_GE(file, 0);
  ::fchmod(file, 0700);
  ::close(file);
  const auto ends = [&](const std::string& how) {
    std::ofstream(script) << "#!/bin/sh\n" << how << "\n";
    return RunPtxas(script, Sm80(), "").error();
  };
  EXPECT_TRUE(ends("kill -KILL $$").from_outside);
  EXPECT_FALSE(ends("kill -SEGV $$").from_outside) << "it fell over this program";
  const PtxasFailure less = ends("case \"$*\" in *-O3*) kill -SEGV $$ ;; *-O1*) echo less; exit 1 ;; esac");
  EXPECT_THAT(less.text, testing::EndsWith("-O1: less\n")) << "less optimization may do";
  EXPECT_TRUE(less.from_outside) << "more may, too";
  EXPECT_THAT(ends("case \"$*\" in *-O3*) kill -TERM $$ ;; *-O1*) echo less; exit 1 ;; esac").text, testing::Not(HasSubstr("less"))) << "ended";
  EXPECT_THAT(ends("case \"$*\" in *-O3*) kill -XCPU $$ ;; *-O1*) echo less; exit 1 ;; esac").text,
              testing::AllOf(HasSubstr("took more than 5 s of processor time"), testing::EndsWith("-O1: less\n")));
  EXPECT_EQ(ends("ulimit -St; ulimit -Ht; exit 1").text, "5\n7\n") << "seconds of processor time";
  EXPECT_THAT(ends("case \"$*\" in *-O0*) ulimit -t; exit 1 ;; *) kill -XCPU $$ ;; esac").text, testing::EndsWith("unlimited\n"));
  const PtxasFailure refused = ends("echo it is wrong; exit 1");
  EXPECT_FALSE(refused.from_outside);
  EXPECT_EQ(refused.text, "it is wrong\n");
  ::unlink(script.c_str());
}

TEST(Optimize, RefusesWhatWouldBeASilentCall) {
  TestKernel unknown(Sm80());
  auto* type = llvm::FunctionType::get(unknown.builder.getInt32Ty(), false);
  unknown.Store(unknown.builder.CreateCall(unknown.module.getOrInsertFunction("llvm.nvvm.no.such.thing", type)));
  unknown.builder.CreateRetVoid();
  EXPECT_THAT(Optimize(unknown.module, *unknown.machine).error(), HasSubstr("llvm.nvvm.no.such.thing"));

  TestKernel library(Sm80());
  library.Store(library.builder.CreateCall(library.module.getOrInsertFunction("expf", type)));
  library.builder.CreateRetVoid();
  EXPECT_THAT(Optimize(library.module, *library.machine).error(), HasSubstr("expf"));

  TestKernel aborts(Sm80());
  aborts.Store(aborts.builder.CreateUnaryIntrinsic(llvm::Intrinsic::log2, aborts.Load(aborts.builder.getFloatTy())));
  EXPECT_THAT(aborts.Finish(), HasSubstr("llvm.log2.f32 has no instruction"));
}

// Code generation of an unrolled body stays linear in its length.
TEST(Optimize, CutsLongBlocksForAmdgpuSchedulers) {
  for (const char* name : {"hip:gfx942", "cuda:sm_80"}) {
    TestKernel k(**target::Find(name));
    Value* v = k.Load(k.builder.getFloatTy());
    for (int i = 0; i < 3000; ++i) v = k.builder.CreateFMul(k.builder.CreateFAdd(v, v), v);
    k.Store(v);
    ASSERT_EQ(k.Finish(), "");
    int cuts = 0;
    for (const llvm::Instruction& instruction : k.kernel->getEntryBlock()) {
      const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      cuts += call != nullptr && call->getIntrinsicID() == llvm::Intrinsic::amdgcn_sched_barrier;
    }
    EXPECT_EQ(cuts, k.target.family == Family::kAmdgpu ? 11 : 0);
  }
}

// Waits for memory are LLVM's: nothing of ours asks for one, and each use of what was loaded and each barrier behind a store has one
// before it. So the emulator has none to model.
TEST(Waits, OfAmdgpuAreInsertedByLlvm) {
  for (const char* name : {"hip:gfx942", "hip:gfx1100"}) {
    TestKernel k(**target::Find(name));
    Value* place = k.builder.CreateGEP(k.builder.getInt32Ty(), k.shared, k.device->ThreadIndex());
    k.builder.CreateStore(k.Load(k.builder.getInt32Ty()), place);
    k.device->Barrier();
    Value* other = k.builder.CreateXor(k.device->ThreadIndex(), k.builder.getInt32(1));
    k.Store(k.builder.CreateLoad(k.builder.getInt32Ty(), k.builder.CreateGEP(k.builder.getInt32Ty(), k.shared, other)));
    ASSERT_EQ(k.Finish(), "");
    for (const llvm::Function& function : k.module) EXPECT_FALSE(function.getName().contains("wait")) << function.getName().str();
    const auto text = EmitAssembly(k.module, *k.machine);
    ASSERT_TRUE(text) << text.error();
    size_t at = 0;
    for (const char* next : {"global_load", "s_waitcnt", "ds_", "s_waitcnt", "s_barrier", "ds_", "s_waitcnt", "global_store"}) {
      at = text->find(next, at);
      ASSERT_NE(at, std::string::npos) << name << ": no " << next << " where it is awaited\n" << *text;
      ++at;
    }
  }
}

TEST(Optimize, RefusesRecursion) {
  TestKernel k(Sm80());
  auto* type = llvm::FunctionType::get(k.builder.getInt32Ty(), {k.builder.getInt32Ty()}, false);
  auto* f = llvm::Function::Create(type, llvm::Function::InternalLinkage, "again", k.module);
  f->addFnAttr(llvm::Attribute::AlwaysInline);
  llvm::IRBuilder<> inner(llvm::BasicBlock::Create(k.context, "entry", f));
  Value* called = inner.CreateCall(f, {inner.CreateMul(f->getArg(0), f->getArg(0))});
  inner.CreateRet(inner.CreateAdd(called, inner.getInt32(1)));
  k.Store(k.builder.CreateCall(f, {k.Load(k.builder.getInt32Ty())}));
  EXPECT_THAT(k.Finish(), HasSubstr("function again is left"));
}

TEST(Hsaco, MalformedElfIsAnError) {
  EXPECT_FALSE(ReadHsacoResources(""));
  EXPECT_FALSE(
      ReadHsacoResources("\x7f"
                         "ELF"));
  const std::string good = Emit(**target::Find("hip:gfx942"));
  for (size_t size = 0; size < 1024; size += 61) EXPECT_FALSE(ReadHsacoResources(good.substr(0, size))) << size;
  for (size_t i = 0; i < 64; ++i) {
    std::string bad = good;
    bad[i] = char(bad[i] ^ 0x5a);
    const auto result = ReadHsacoResources(bad);  // bytes that do not matter here are not missed
    EXPECT_TRUE(result ? result->size() <= 1 : !result.error().empty());
  }
  std::string other = good;
  other.replace(other.find("test_kernel.kd"), 4, "best");  // the first copy is the metadata's or the symbol's
  EXPECT_THAT(ReadHsacoResources(other).error(), HasSubstr("no kernel descriptor"));
}

}  // namespace
}  // namespace kiln::llvm_ir
