// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/sass/torn_registers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/sass/sass_test_code.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr uint64_t kAttempt = 0x38d;  // ATOMS.CAST

Bits Attempt(uint64_t d, uint64_t opcode = kAttempt) { return Bits(opcode).D(d).A(200); }
Bits Compare(uint64_t predicate, uint64_t a) {
  Bits bits = Bits(0x80c).A(a);
  bits.high |= predicate << 17;
  return bits;
}
Bits CountDown(uint64_t d, uint64_t a) { return Bits(0x890).D(d).A(a).C(63); }  // UIADD3 of a constant
Bits Gather() { return Bits(0x941); }
Bits Nop() { return Bits(0x918); }

// ptxas's loop of two loops.
std::vector<Bits> Loop(bool hopper = true) {
  return {Nop(), Attempt(7), Compare(0, 7), Branch(-4, hopper).If(0), CountDown(4, 4), Branch(-6, hopper).If(1), Gather(), Exit()};
}
constexpr const char* kOfLoop = "kernel computes UR4 at 0x40, where threads of a warp that repeat an attempt still read it";

std::string Found(const std::vector<Bits>& code, const char* arch = "sm_90a") {
  const auto torn = FindTornRegister(Cubin(code), arch);
  return torn ? torn->Text() : "";
}
std::string With(size_t i, const Bits& instruction) {
  std::vector<Bits> code = Loop();
  code[i] = instruction;
  return Found(code);
}

TEST(TornRegisters, ACountOfThreadsThatAreApart) {
  EXPECT_EQ(Found(Loop()), kOfLoop);
  for (const char* arch : {"sm_75", "sm_80", "sm_86", "sm_89"}) EXPECT_EQ(Found(Loop(false), arch), kOfLoop);
  EXPECT_EQ(With(1, Attempt(7, 0x3a9)), kOfLoop) << "ATOMG.CAS";
  EXPECT_EQ(With(1, Attempt(6)), kOfLoop) << "the upper word of its result";
  EXPECT_EQ(With(0, CountDown(5, 4)), kOfLoop) << "another register";
}

TEST(TornRegisters, ACountOfTheWholeWarp) {
  std::vector<Bits> code = Loop();
  code.insert(code.begin() + 4, Gather());
  EXPECT_EQ(Found(code), "");
  code = Loop();
  code.insert(code.begin() + 4, Bits(0x348));
  EXPECT_EQ(Found(code), "") << "WARPSYNC";
}

TEST(TornRegisters, WhatIsHarmless) {
  EXPECT_EQ(With(4, CountDown(5, 6)), "") << "nobody else reads it";
  EXPECT_EQ(With(4, Bits(0x882).D(4)), "") << "the same value for each";
  EXPECT_EQ(With(4, Bits(0x221).D(4).A(4).B(4)), "") << "a register of each thread";
  EXPECT_EQ(With(4, CountDown(63, 4)), "") << "no register";
  EXPECT_EQ(With(0, CountDown(4, 5)), "") << "read only after it is written again";
  EXPECT_EQ(With(1, Nop()), "") << "no attempt";
  EXPECT_EQ(With(1, Attempt(9)), "") << "another result is compared";
  EXPECT_EQ(With(2, Compare(1, 7)), "") << "another predicate";
  EXPECT_EQ(With(3, Branch(-4)), "") << "all threads go back";
  EXPECT_EQ(With(3, Branch(0).If(0)), "") << "no loop";
}

TEST(TornRegisters, OfWhatIsNotKnownNothingIsSaid) {
  EXPECT_EQ(Found(Loop(), "sm_100a"), "");
  EXPECT_EQ(FindTornRegister("", "sm_90a"), std::nullopt);
  EXPECT_EQ(FindTornRegister("no ELF file", "sm_90a"), std::nullopt);
  EXPECT_EQ(Found({Attempt(7), Compare(0, 7), Branch(-1000).If(0), CountDown(4, 4)}), "") << "a branch to the outside";
}

TEST(TornRegisters, TimeIsProportionalToLength) {
  std::vector<Bits> code;
  for (int i = 0; i < 4000; ++i) {
    for (const Bits& bits : {Attempt(7), Compare(0, 7), Branch(-3).If(0), CountDown(5, 6)}) code.push_back(bits);
  }
  EXPECT_EQ(Found(code), "");
}

// Twice the same sum of each thread, counted down as LLVM counts.
std::string TwoSums(const std::string& arch) {
  return ".version 8.4\n.target " + arch + R"(
.address_size 64
.extern .shared .align 16 .b8 shared[];
.visible .entry kernel(.param .u64 out) .reqntid 256 {
.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
ld.param.b64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2; ld.global.b32 %r3, [%rd2];
mov.b64 %rd4, shared; rem.u32 %r4, %r1, 33; mul.wide.u32 %rd5, %r4, 4; add.s64 %rd4, %rd4, %rd5;
mov.b32 %r5, 1;
$again: atom.shared.add.f32 %r6, [%rd4], %r3; add.s32 %r5, %r5, -1; setp.eq.s32 %p1, %r5, 0; @%p1 bra $again;
bar.sync 0; ld.shared.b32 %r7, [%rd4]; st.global.b32 [%rd2], %r7; ret; }
)";
}

TEST(TornRegisters, OfThisPtxas) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "NO PTXAS ON THIS MACHINE: nothing is known of its fault";
  size_t faults = 0;
  for (const char* arch : {"sm_75", "sm_80", "sm_89", "sm_90a"}) {
    const target::Target& target = **target::Find(std::string("cuda:") + arch);
    const auto made = RunPtxas(ptxas, target, TwoSums(arch));
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(FindTornRegister(made->cubin, arch), std::nullopt);
    for (const std::string& warning : made->warnings) faults += warning.find("kernel computes UR") != std::string::npos;
  }
  if (faults == 0) GTEST_SKIP() << "THIS PTXAS HAS NO SUCH FAULT: the check is not tried with real code";
  EXPECT_EQ(faults, 4u);
}

}  // namespace
}  // namespace kiln::llvm_ir
