// SPDX-License-Identifier: Apache-2.0
//
// Instructions against what the PTX ISA says of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "tests/ptx/numbers.h"
#include "tests/ptx/program.h"

namespace kiln::ptx {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRegisters =
    ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %d<9>; .reg .b64 %out; .reg .b64 %result; .reg .b64 %at;\n";

struct Result {
  std::string error;
  std::vector<uint64_t> values;  // %result of each thread
};

// Of a kernel of one block whose body gives each thread its %result.
Result After(const std::string& body, uint32_t threads = 1, uint64_t seed = 0, const std::string& before = "") {
  const std::string text =
      ".version 8.4\n.target sm_90a\n.address_size 64\n" + before +
      "\n.extern .shared .align 16 .b8 tile[];\n.visible .entry kernel(.param .u64 kernel_param_0, .param .u32 kernel_param_1)\n{\n" + kRegisters +
      "ld.param.b64 %out, [kernel_param_0]; mov.u32 %r30, %tid.x; mul.wide.u32 %at, %r30, 8;\n" + "add.s64 %at, %out, %at; mov.b64 %result, 0;\n" +
      body + "\nst.global.b64 [%at], %result; ret;\n}\n";
  auto program = Load(text);
  if (!program) return {program.error(), {}};
  Result result{.error = {}, .values = std::vector<uint64_t>(threads)};
  const emulator::LaunchArgs launch{.entry = "kernel", .threads = threads, .shared_bytes = 4096, .args = {uint64_t(result.values.data()), 5}};
  const emulator::Memory memory{result.values.data(), threads * 8, 8, "results"};
  const auto report = (*program)->Run(launch, std::span(&memory, 1), {.seed = seed});
  if (!report) result.error = report.error();
  return result;
}

uint64_t Value(const std::string& body) {
  const Result result = After(body);
  EXPECT_EQ(result.error, "") << body;
  return result.values.empty() ? ~uint64_t{0} : result.values.at(0);
}
// Of an instruction `name d, operands` with a 32-bit result, or one of 16 bits.
uint32_t Word(const std::string& name, const std::string& operands) {
  return uint32_t(Value(name + " %r1, " + operands + "; cvt.u64.u32 %result, %r1;"));
}
uint32_t Short(const std::string& name, const std::string& operands) {
  return uint32_t(Value(name + " %h1, " + operands + "; cvt.u64.u16 %result, %h1;"));
}
uint64_t Long(const std::string& name, const std::string& operands) { return Value(name + " %result, " + operands + ";"); }
bool Holds(const std::string& name, const std::string& operands) { return Value(name + " %p1, " + operands + "; selp.b64 %result, 1, 0, %p1;") != 0; }
std::string Single(float value) {
  char text[16];
  std::snprintf(text, sizeof text, "0f%08X", std::bit_cast<uint32_t>(value));
  return text;
}
float SingleOf(const std::string& name, const std::string& operands) { return std::bit_cast<float>(Word(name, operands)); }

TEST(Ptx, Integers) {
  EXPECT_EQ(Word("add.s32", "-1, 3"), 2u);
  EXPECT_EQ(Word("sub.u32", "2, 3"), 0xffffffffu);
  EXPECT_EQ(Short("add.s16", "32767, 1"), 0x8000u);
  EXPECT_EQ(Word("mul.lo.s32", "-3, 7"), uint32_t(-21));
  EXPECT_EQ(Word("mul.hi.u32", "-1, -1"), 0xfffffffeu);
  EXPECT_EQ(Word("mul.hi.s32", "-2, 3"), 0xffffffffu);
  EXPECT_EQ(Long("mul.wide.s32", "-2, 3"), uint64_t(-6));
  EXPECT_EQ(Long("mul.wide.u32", "-2, 3"), 0x2fffffffaull);
  EXPECT_EQ(Long("mad.wide.s32", "-2, 3, 10"), 4u);
  EXPECT_EQ(Word("mad.lo.s32", "-2, 3, 10"), 4u);
  EXPECT_EQ(Long("mul.hi.u64", "-1, -1"), uint64_t(-2));
  EXPECT_EQ(Word("div.s32", "-7, 2"), uint32_t(-3));
  EXPECT_EQ(Word("rem.s32", "-7, 2"), uint32_t(-1));
  EXPECT_EQ(Word("div.u32", "-7, 2"), 0x7ffffffcu);
  EXPECT_EQ(Word("min.s32", "-7, 2"), uint32_t(-7));
  EXPECT_EQ(Word("min.u32", "-7, 2"), 2u);
  EXPECT_EQ(Word("max.relu.s32", "-7, -2"), 0u);
  EXPECT_EQ(Short("abs.s16", "-7"), 7u);
  EXPECT_EQ(Long("neg.s64", "7"), uint64_t(-7));
  EXPECT_EQ(Word("dp4a.s32.s32", "0x01ff0203, 0x02030405, 100"), uint32_t(100 + 2 - 3 + 8 + 15));
  EXPECT_EQ(Word("dp4a.u32.s32", "0x000000ff, 0x000000ff, 0"), uint32_t(-255));
}

TEST(Ptx, Carries) {
  EXPECT_EQ(Value("add.cc.u32 %r1, -1, 1; addc.u32 %r2, 5, 6; mov.b64 %result, {%r1, %r2};"), 12ull << 32);
  EXPECT_EQ(Value("add.cc.u32 %r1, -2, 1; addc.u32 %r2, 5, 6; mov.b64 %result, {%r1, %r2};"), 11ull << 32 | 0xffffffff);
  EXPECT_EQ(Value("sub.cc.u32 %r1, 0, 1; subc.u32 %r2, 5, 1; mov.b64 %result, {%r1, %r2};"), 3ull << 32 | 0xffffffff);
  EXPECT_EQ(Value("mad.lo.cc.u32 %r1, -1, -1, -1; madc.hi.u32 %r2, -1, -1, 0; mov.b64 %result, {%r1, %r2};"), 0xffffffffull << 32);
  EXPECT_EQ(Value("add.cc.u32 %r1, -1, 1; addc.cc.u32 %r2, -1, 0; addc.u32 %r3, 0, 0; mov.b64 %result, {%r2, %r3};"), 1ull << 32);
}

TEST(Ptx, Bits) {
  EXPECT_EQ(Word("shl.b32", "1, 31"), 0x80000000u);
  EXPECT_EQ(Word("shl.b32", "1, 32"), 0u);
  EXPECT_EQ(Word("shr.u32", "-1, 40"), 0u);
  EXPECT_EQ(Word("shr.s32", "-16, 2"), uint32_t(-4));
  EXPECT_EQ(Word("shr.s32", "-16, 99"), uint32_t(-1));
  EXPECT_EQ(Short("shr.u16", "0xff00, 8"), 0xffu);
  EXPECT_EQ(Word("shf.l.wrap.b32", "0x80000000, 1, 33"), 3u);
  EXPECT_EQ(Word("shf.r.wrap.b32", "2, 1, 1"), 0x80000001u);
  EXPECT_EQ(Word("shf.r.clamp.b32", "2, 1, 40"), 1u);
  EXPECT_EQ(Word("bfe.u32", "0xabcd, 4, 8"), 0xbcu);
  EXPECT_EQ(Word("bfe.s32", "0xabcd, 4, 8"), 0xffffffbcu);
  EXPECT_EQ(Word("bfe.s32", "0x80000000, 28, 16"), 0xfffffff8u);
  EXPECT_EQ(Word("bfe.u32", "-1, 3, 0"), 0u);
  EXPECT_EQ(Word("bfi.b32", "0x5, 0xff00, 4, 4"), 0xff50u);
  EXPECT_EQ(Word("prmt.b32", "0x33221100, 0x77665544, 0x7510"), 0x77551100u);
  EXPECT_EQ(Word("prmt.b32", "0x80, 0, 0x0008"), 0x808080ffu) << "the sign of a byte";
  EXPECT_EQ(Word("prmt.b32.f4e", "0x33221100, 0x77665544, 7"), 0x66554433u);
  EXPECT_EQ(Word("lop3.b32", "0xf0, 0xcc, 0xaa, 0xEA"), 0xeau);
  EXPECT_EQ(Word("popc.b32", "0xf1"), 5u);
  EXPECT_EQ(Word("clz.b32", "0xf1"), 24u);
  EXPECT_EQ(Word("brev.b32", "1"), 0x80000000u);
  EXPECT_EQ(Word("not.b32", "1"), 0xfffffffeu);
  EXPECT_EQ(Long("mov.b64", "{0x11, 0x22}"), 0x2200000011ull);
  EXPECT_EQ(Value("mov.b32 %r1, 0x22221111; mov.b32 {%h1, %h2}, %r1; cvt.u64.u16 %result, %h2;"), 0x2222u);
}

TEST(Ptx, Floats) {
  EXPECT_EQ(SingleOf("add.f32", Single(1.5f) + "," + Single(2)), 3.5f);
  EXPECT_EQ(SingleOf("fma.rn.f32", Single(1 + 0x1p-12f) + "," + Single(1 + 0x1p-12f) + "," + Single(-1)), 0x1p-11f + 0x1p-24f) << "rounded once";
  EXPECT_EQ(SingleOf("min.f32", "0f7FC00000," + Single(2)), 2) << "NaN is the other's";
  EXPECT_TRUE(std::isnan(SingleOf("min.NaN.f32", "0f7FC00000," + Single(2))));
  EXPECT_EQ(Word("min.f32", "0f00000000, 0f80000000"), 0x80000000u);
  EXPECT_EQ(Word("max.f32", "0f80000000, 0f00000000"), 0u);
  EXPECT_EQ(Word("mul.ftz.f32", "0f00000001," + Single(-1)), 0x80000000u);
  EXPECT_EQ(Word("mul.f32", "0f00000001," + Single(-1)), 0x80000001u);
  EXPECT_EQ(Word("add.sat.f32", Single(3) + "," + Single(2)), 0x3f800000u);
  EXPECT_EQ(Word("sub.f32", "0f7F800000, 0f7F800000"), 0x7fffffffu) << "the canonical NaN";
  EXPECT_EQ(Short("add.f16", "0x3c00, 0x1000"), 0x3c00u) << "1 + 2^-11, a tie, to even";
  EXPECT_EQ(Short("add.f16", "0x3c01, 0x1000"), 0x3c02u);
  EXPECT_EQ(Short("max.bf16", "0xbf80, 0x4000"), 0x4000u);
  EXPECT_EQ(Word("add.f16x2", "0x3c004000, 0x3c003c00"), 0x40004200u);
  EXPECT_EQ(Word("max.relu.f16x2", "0xbc00bc00, 0xc0003c00"), 0x00003c00u);
  EXPECT_EQ(Long("min.f64", "0d4018000000000000, 0d7FF8000000000000"), 0x4018000000000000u);
  EXPECT_EQ(Word("abs.f32", Single(-3)), std::bit_cast<uint32_t>(3.0f));
}

TEST(Ptx, Comparisons) {
  const std::string nan = "0f7FC00000", one = Single(1), two = Single(2);
  EXPECT_TRUE(Holds("setp.lt.f32", one + "," + two));
  for (const char* ordered : {"eq", "ne", "lt", "le", "gt", "ge", "num"})
    EXPECT_FALSE(Holds("setp." + std::string(ordered) + ".f32", one + "," + nan)) << ordered;
  for (const char* unordered : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"})
    EXPECT_TRUE(Holds("setp." + std::string(unordered) + ".f32", one + "," + nan)) << unordered;
  EXPECT_TRUE(Holds("setp.lt.s32", "-1, 1"));
  EXPECT_FALSE(Holds("setp.lt.u32", "-1, 1"));
  EXPECT_TRUE(Holds("setp.gt.u16", "0xffff, 1"));
  EXPECT_TRUE(Value("setp.eq.b32 %p2, 0, 1; setp.lt.or.s32 %p1, 0, 1, %p2; selp.b64 %result, 1, 0, %p1;"));
  EXPECT_EQ(Value("setp.eq.b32 %p1, 0, 1; @!%p1 mov.b64 %result, 7; @%p1 mov.b64 %result, 8;"), 7u);
}

TEST(Ptx, Conversions) {
  EXPECT_EQ(Word("cvt.rzi.s32.f32", Single(-2.9f)), uint32_t(-2));
  EXPECT_EQ(Word("cvt.rni.s32.f32", Single(2.5f)), 2u);
  EXPECT_EQ(Word("cvt.rpi.s32.f32", Single(2.1f)), 3u);
  EXPECT_EQ(Word("cvt.rzi.s32.f32", Single(3e9f)), 0x7fffffffu);
  EXPECT_EQ(Word("cvt.rzi.u32.f32", Single(-3)), 0u);
  EXPECT_EQ(Word("cvt.rzi.s32.f32", "0f7FC00000"), 0u);
  EXPECT_EQ(Word("cvt.rn.f32.s32", "16777217"), std::bit_cast<uint32_t>(16777216.0f));
  EXPECT_EQ(Word("cvt.rn.f32.u32", "-1"), std::bit_cast<uint32_t>(4294967296.0f));
  EXPECT_EQ(Word("cvt.rz.f32.u32", "-1"), std::bit_cast<uint32_t>(4294967040.0f));
  EXPECT_EQ(Value("mov.b32 %r2, 0x1ff; cvt.s32.s8 %r1, %r2; cvt.s64.s32 %result, %r1;"), ~uint64_t{0});
  EXPECT_EQ(Value("mov.b32 %r2, 0x1ff; cvt.s8.s32 %h1, %r2; cvt.u64.u16 %result, %h1;"), 0xffffu) << "extended to the register";
  EXPECT_EQ(Value("mov.b32 %r2, -5; cvt.u64.u32 %result, %r2;"), 0xfffffffbu);
  EXPECT_EQ(Word("cvt.sat.u8.s32", "300"), 255u);
  EXPECT_EQ(Short("cvt.rn.f16.f32", Single(65520)), 0x7c00u);
  EXPECT_EQ(Short("cvt.rn.f16.f32", Single(65519)), 0x7bffu);
  EXPECT_EQ(Short("cvt.rn.f16.f32", Single(0x1p-25f)), 0u) << "half of the smallest, to even";
  EXPECT_EQ(Short("cvt.rn.bf16.f32", "0f3F808000"), 0x3f80u);
  EXPECT_EQ(Short("cvt.rn.bf16.f32", "0f3F818000"), 0x3f82u);
  EXPECT_EQ(Word("cvt.rn.f16x2.f32", Single(1) + "," + Single(2)), 0x3c004000u) << "the first is the upper half";
  EXPECT_EQ(Short("cvt.rn.satfinite.e4m3x2.f32", Single(1000) + "," + Single(-0.5f)), 0x7eb0u);
  EXPECT_EQ(Short("cvt.rn.satfinite.e5m2x2.f32", "0f7FC00000," + Single(1)), 0x7f3cu);
  EXPECT_EQ(Word("cvt.rn.f16x2.e4m3x2", "0x7eb0"), 0x5f00b800u);
  EXPECT_EQ(Word("cvt.rna.tf32.f32", "0f3F801000"), 0x3f802000u);
  EXPECT_EQ(Value("mov.b64 %d1, 0d3FF0000010000000; cvt.rn.f32.f64 %r1, %d1; cvt.u64.u32 %result, %r1;"), 0x3f800000u);
}

TEST(Ptx, NarrowIsTheInverseOfWiden) {
  for (const Format& format : {kHalf, kBfloat, kE4M3, kE5M2}) {
    for (uint32_t bits = 0; bits < 1u << (1 + format.exponent + format.fraction); ++bits) {
      const double value = Widen(format, bits);
      if (value != value) continue;
      ASSERT_EQ(Narrow(format, value), bits) << format.exponent;
    }
  }
}

TEST(Ptx, Memory) {
  EXPECT_EQ(Value("mov.b64 %d1, tile; st.shared.b8 [%d1+3], 0xff; ld.shared.s8 %r1, [%d1+3]; cvt.u64.u32 %result, %r1;"), 0xffffffffu);
  EXPECT_EQ(Value("mov.b64 %d1, tile; st.shared.v2.b32 [%d1+8], {1, 2}; ld.shared.b64 %result, [tile+8];"), 0x200000001ull);
  EXPECT_EQ(Value("mov.b64 %d1, tile; cvta.shared.u64 %d2, %d1; st.shared.b32 [%d1], 9; ld.b32 %r1, [%d2]; cvt.u64.u32 %result, %r1;"), 9u);
  EXPECT_EQ(Value(".local .align 8 .b8 own[16]; mov.b64 %d1, own; st.local.b64 [%d1+8], 5; ld.local.b64 %result, [%d1+8];"), 5u);
  EXPECT_EQ(Value("ld.param.b32 %r1, [kernel_param_1]; cvt.u64.u32 %result, %r1;"), 5u);
  EXPECT_EQ(Value("st.global.b32 [%at], 8; atom.global.add.u32 %r1, [%at], 3; ld.global.b32 %r2, [%at]; mul.wide.u32 %result, %r1, %r2;"), 88u);
  EXPECT_EQ(Value("st.global.b32 [%at], 8; atom.global.cas.b32 %r1, [%at], 8, 4; ld.global.b32 %r2, [%at]; mul.wide.u32 %result, %r1, %r2;"), 32u);
  EXPECT_EQ(Value("st.shared.f32 [tile], 0f3F800000; red.shared.add.f32 [tile], 0f3F800000; ld.shared.b32 %r1, [tile]; cvt.u64.u32 %result, %r1;"),
            0x40000000u);
  EXPECT_THAT(After("ld.shared.b32 %r1, [tile+2];").error, HasSubstr("no multiple of 4 at `ld.shared.b32"));
  EXPECT_THAT(After("ld.shared.b32 %r1, [tile+4096];").error, HasSubstr("outside of shared memory"));
  EXPECT_THAT(After("ld.global.b32 %r1, [%at+8];").error, HasSubstr("outside of all tensors"));
  EXPECT_EQ(After("ld.global.v4.b32 {%r1, %r2, %r1, %r2}, [%at];").error, "") << "a vector that begins in a tensor";
  EXPECT_THAT(After("st.global.v4.b32 [%at], {1, 2, 3, 4};").error, HasSubstr("outside of all tensors"));
}

TEST(Ptx, WhatNobodyWroteDependsOnTheSeed) {
  for (const char* body : {"ld.shared.b64 %result, [tile];", "mov.b64 %result, %d5;"}) {
    std::set<uint64_t> values;
    for (uint64_t seed = 0; seed < 20; ++seed) values.insert(After(body, 1, seed).values.at(0));
    EXPECT_GT(values.size(), 1u) << body;
  }
}

// Each thread hands its number to the next.
std::string HandOn(const std::string& barrier) {
  return "mov.b64 %d1, tile; mul.wide.u32 %d2, %r30, 4; add.s64 %d1, %d1, %d2; st.shared.b32 [%d1+4], %r30;" + barrier +
         "setp.eq.b32 %p1, %r30, 0; @%p1 bra $end; ld.shared.b32 %r1, [%d1]; cvt.u64.u32 %result, %r1;\n$end:";
}

TEST(Ptx, ABarrierThatIsMissingShows) {
  const std::vector<uint64_t> right = After(HandOn("bar.sync 0;"), 64).values;
  for (uint64_t thread = 1; thread < 64; ++thread) EXPECT_EQ(right[thread], thread - 1);
  size_t wrong = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(After(HandOn("bar.sync 0;"), 64, seed).values, right) << seed;
    EXPECT_EQ(After(HandOn("barrier.sync 3, 64;"), 64, seed).values, right) << seed;
    wrong += After(HandOn(""), 64, seed).values != right;
  }
  EXPECT_EQ(wrong, 10u);
  EXPECT_THAT(After("setp.eq.b32 %p1, %r30, 0; @%p1 bar.sync 0, 32;", 32).error, HasSubstr("deadlock: thread 0 waits at `@%p1 bar.sync 0, 32"));
}

TEST(Ptx, CopiesComeAtOnceOrWhenTheyAreWaitedFor) {
  const std::string copy =
      "st.global.b64 [%at], 77; mov.b64 %d1, tile; st.shared.b64 [%d1], 1; cp.async.ca.shared.global [%d1], [%at], 8, %r2; "
      "cp.async.commit_group;";
  const std::string read = "ld.shared.b64 %result, [%d1];";
  EXPECT_EQ(After("mov.b32 %r2, 8;" + copy + read, 1, 1).values.at(0), 77u);
  EXPECT_EQ(After("mov.b32 %r2, 8;" + copy + read, 1, 2).values.at(0), 1u);
  EXPECT_EQ(After("mov.b32 %r2, 8;" + copy + "cp.async.wait_group 1;" + read, 1, 2).values.at(0), 1u);
  EXPECT_EQ(After("mov.b32 %r2, 8;" + copy + "cp.async.wait_group 0;" + read, 1, 2).values.at(0), 77u);
  EXPECT_EQ(After("mov.b32 %r2, 0;" + copy + "cp.async.wait_all;" + read, 1, 2).values.at(0), 0u) << "nothing is read";
}

TEST(Ptx, Warps) {
  const auto lanes = [](const std::string& body) { return After(body + "cvt.u64.u32 %result, %r1;", 32, 3); };
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(lanes("shfl.sync.bfly.b32 %r1, %r30, 5, 31, -1;").values.at(lane), lane ^ 5);
    EXPECT_EQ(lanes("shfl.sync.idx.b32 %r1, %r30, 7, 31, -1;").values.at(lane), 7u);
    EXPECT_EQ(lanes("shfl.sync.up.b32 %r1, %r30, 2, 0, -1;").values.at(lane), lane < 2 ? lane : lane - 2);
    EXPECT_EQ(lanes("shfl.sync.down.b32 %r1|%p1, %r30, 2, 31, -1; @!%p1 mov.b32 %r1, 99;").values.at(lane), lane > 29 ? 99 : lane + 2);
    EXPECT_EQ(lanes("shfl.sync.idx.b32 %r1, %r30, 1, 0x1807, -1;").values.at(lane), lane / 8 * 8 + 1) << "in parts of 8 lanes";
    EXPECT_EQ(lanes("setp.gt.u32 %p1, %r30, 29; vote.sync.ballot.b32 %r1, %p1, -1;").values.at(lane), 0xc0000000u);
    EXPECT_EQ(lanes("redux.sync.max.s32 %r1, %r30, -1;").values.at(lane), 31u);
    EXPECT_EQ(lanes("and.b32 %r2, %r30, 1; match.any.sync.b32 %r1, %r2, -1;").values.at(lane), lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau);
    EXPECT_EQ(lanes("elect.sync _|%p1, -1; selp.b32 %r1, 1, 0, %p1;").values.at(lane), lane == 0);
  }
  EXPECT_THAT(lanes("setp.eq.b32 %p1, %r30, 0; @%p1 ret; shfl.sync.bfly.b32 %r1, %r30, 5, 31, -1;").error, HasSubstr("lane 0, which has ended"));
}

TEST(Ptx, Matrices) {
  // Element [row][column] is 8 · row + column.
  const std::string fill =
      "mov.b64 %d1, tile; mul.wide.u32 %d2, %r30, 4; add.s64 %d2, %d1, %d2; shl.b32 %r2, %r30, 1; add.s32 %r3, %r2, 1; "
      "cvt.u16.u32 %h1, %r2; cvt.u16.u32 %h2, %r3; mov.b32 %r4, {%h1, %h2}; st.shared.b32 [%d2], %r4; bar.sync 0; "
      "and.b32 %r5, %r30, 7; mul.wide.u32 %d3, %r5, 16; add.s64 %d3, %d1, %d3;";
  const auto plain = After(fill + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%d3]; cvt.u64.u32 %result, %r1;", 32);
  const auto turned = After(fill + "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r1}, [%d3]; cvt.u64.u32 %result, %r1;", 32);
  const auto stored = After(fill +
                                "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%d3], {%r4}; bar.sync 0; ld.shared.b32 %r1, [%d2]; "
                                "cvt.u64.u32 %result, %r1;",
                            32);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t row = lane / 4, column = lane % 4 * 2;
    EXPECT_EQ(plain.values.at(lane), (row * 8 + column) | (row * 8 + column + 1) << 16);
    EXPECT_EQ(turned.values.at(lane), (column * 8 + row) | ((column + 1) * 8 + row) << 16);
    EXPECT_EQ(stored.values.at(lane), turned.values.at(lane));
  }
  // a is one where k = row, b[k][column] = k: the product is the row's number.
  const std::string product =
      "shr.u32 %r2, %r30, 2; and.b32 %r3, %r30, 3; shl.b32 %r3, %r3, 1; setp.eq.b32 %p1, %r2, %r3; add.s32 %r4, %r3, 1; setp.eq.b32 %p2, %r2, %r4; "
      "selp.b32 %r5, 0x3c00, 0, %p1; selp.b32 %r6, 0x3c000000, 0, %p2; or.b32 %r5, %r5, %r6; mov.b32 %r7, 0; "
      "cvt.rn.f32.u32 %r8, %r3; cvt.rn.f32.u32 %r9, %r4; cvt.rn.f16x2.f32 %r8, %r9, %r8; mov.b32 %r10, 0x48004800; "
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1, %r11, %r12, %r13}, {%r5, %r7, %r7, %r5}, {%r8, %r10}, {%r7, %r7, %r7, %r7}; "
      "mov.b64 %result, {%r1, %r12};";
  const auto products = After(product, 32);
  ASSERT_EQ(products.error, "");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(std::bit_cast<float>(uint32_t(products.values.at(lane))), float(lane / 4));
    EXPECT_EQ(std::bit_cast<float>(uint32_t(products.values.at(lane) >> 32)), 8.0f) << "rows 8 and on have k 8 and on";
  }
}

// Each thread copies a word into the tile and goes on; all wait until the words are there.
TEST(Ptx, CopiesThatArriveThemselves) {
  const std::string init = "setp.ne.b32 %p3, %r30, 0; @%p3 bra $ready; mbarrier.init.shared::cta.b64 [tile], 40; $ready: bar.sync 0; ";
  const std::string copy =
      "st.global.b64 [%at], 77; mul.wide.u32 %d2, %r30, 8; mov.b64 %d1, tile; add.s64 %d1, %d1, %d2; "
      "cp.async.ca.shared.global [%d1+8], [%at], 8; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [tile]; ";
  const std::string wait = "$wait: mbarrier.try_wait.parity.shared::cta.b64 %p1, [tile], 0; @!%p1 bra $wait; ";
  const std::string read =
      "xor.b32 %r1, %r30, 1; mul.wide.u32 %d2, %r1, 8; mov.b64 %d1, tile; add.s64 %d1, %d1, %d2; ld.shared.b64 %result, [%d1+8];";
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Result arrived = After(init + copy + wait + read, 40, seed);
    ASSERT_EQ(arrived.error, "");
    for (uint64_t thread = 0; thread < 40; ++thread) EXPECT_EQ(arrived.values[thread], 77u);
  }
}

// Thread 0 starts what the others wait for.
TEST(Ptx, Mbarriers) {
  const std::string wait = "$wait: mbarrier.try_wait.parity.shared::cta.b64 %p1, [tile], 0; @!%p1 bra $wait; ";
  const std::string init = "setp.ne.b32 %p3, %r30, 0; @%p3 bra $ready; mbarrier.init.shared::cta.b64 [tile], 40; $ready: bar.sync 0; ";
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Result arrivals = After(init +
                                      "mul.wide.u32 %d2, %r30, 4; mov.b64 %d1, tile; add.s64 %d1, %d1, %d2; st.shared.b32 [%d1+16], %r30; "
                                      "mbarrier.arrive.shared::cta.b64 _, [tile]; " +
                                      wait +
                                      "xor.b32 %r1, %r30, 1; mul.wide.u32 %d2, %r1, 4; "
                                      "mov.b64 %d1, tile; add.s64 %d1, %d1, %d2; ld.shared.b32 %r1, [%d1+16]; cvt.u64.u32 %result, %r1;",
                                  40, seed);
    ASSERT_EQ(arrivals.error, "");
    for (uint64_t thread = 0; thread < 40; ++thread) EXPECT_EQ(arrivals.values[thread], thread ^ 1);
    const std::string store =
        "setp.ne.b32 %p3, %r30, 0; @%p3 bra $ready; mbarrier.init.shared::cta.b64 [tile], 1; st.shared.b32 [tile+8], 1; "
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile], 4; mov.b64 %d1, tile; mapa.shared::cluster.u64 %d2, %d1, 0; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%d2+8], 77, [%d2]; $ready: bar.sync 0; ";
    const std::string read = "ld.shared.b32 %r1, [tile+8]; cvt.u64.u32 %result, %r1;";
    EXPECT_EQ(After(store + wait + read, 2, seed).values, (std::vector<uint64_t>{77, 77}));
    EXPECT_EQ(After(store + read, 2, seed).values, (std::vector<uint64_t>(2, seed % 2 == 1 ? 77 : 1))) << "without a wait, it comes late";
  }
  EXPECT_THAT(After("mbarrier.init.shared::cta.b64 [tile], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile], 4; "
                    "mbarrier.arrive.shared::cta.b64 _, [tile];")
                  .error,
              HasSubstr("more arrivals than the mbarrier counts"));
}

// a and b are 64 rows of 16 numbers, without a swizzle: atoms of 8 rows of 16 bytes. Where k is 3, a[row][k] is the row, b[column][k] the column;
// elsewhere they are 0.
TEST(Ptx, GroupProducts) {
  const std::string fill =
      "shr.u32 %r1, %r30, 1; and.b32 %r2, %r30, 1; shr.u32 %r3, %r1, 3; and.b32 %r4, %r1, 7; shl.b32 %r3, %r3, 8; shl.b32 %r4, %r4, 4; "
      "shl.b32 %r5, %r2, 7; add.s32 %r3, %r3, %r4; add.s32 %r3, %r3, %r5; cvt.u64.u32 %d1, %r3; mov.b64 %d2, tile; add.s64 %d1, %d1, %d2; "
      "cvt.rn.f16.u32 %h1, %r1; setp.eq.b32 %p1, %r2, 0; selp.b16 %h1, %h1, 0, %p1; mov.b32 %r6, {0, %h1}; "
      "st.shared.v4.b32 [%d1], {0, %r6, 0, 0}; st.shared.v4.b32 [%d1+2048], {0, %r6, 0, 0}; bar.sync 0; "
      "cvt.u32.u64 %r7, %d2; shr.u32 %r7, %r7, 4; or.b32 %r7, %r7, 0x80000; mov.b64 %d3, {%r7, 16}; add.s32 %r7, %r7, 128; mov.b64 %d4, {%r7, 16}; "
      "mov.b32 %r10, 0f3F800000; mov.b32 %r11, %r10; mov.b32 %r12, %r10; mov.b32 %r13, %r10; setp.ne.b32 %p2, 1, 0; wgmma.fence.sync.aligned; "
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r10, %r11, %r12, %r13}, %d3, %d4, %p2, 1, 1, 0, 0; wgmma.commit_group.sync.aligned; ";
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const Result right = After(fill + "wgmma.wait_group.sync.aligned 0; mov.b64 %result, {%r11, %r12};", 128, seed);
    ASSERT_EQ(right.error, "");
    for (uint32_t t = 0; t < 128; ++t) {
      const uint32_t row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
      EXPECT_EQ(std::bit_cast<float>(uint32_t(right.values[t])), float(1 + row * (column + 1))) << t;
      EXPECT_EQ(std::bit_cast<float>(uint32_t(right.values[t] >> 32)), float(1 + (row + 8) * column)) << t;
    }
    const Result early = After(fill + "mov.b64 %result, {%r11, %r12}; wgmma.wait_group.sync.aligned 0;", 128, seed);
    EXPECT_EQ(early.values == right.values, seed % 2 == 1) << "without a wait, sums come late";
  }
}

TEST(Ptx, Functions) {
  const std::string add =
      ".func (.param .b32 result) plus(.param .b32 plus_a, .param .b64 plus_b)\n{ .reg .b32 %x<3>; .reg .b64 %y<2>; "
      "ld.param.b32 %x1, [plus_a]; ld.param.b64 %y1, [plus_b]; cvt.u32.u64 %x2, %y1; add.s32 %x1, %x1, %x2; "
      "st.param.b32 [result], %x1; ret; }";
  const Result result = After(
      "{ .param .b32 p0; .param .b64 p1; .param .b32 r0; st.param.b32 [p0], 30; mov.b64 %d1, 12; st.param.b64 [p1], %d1; "
      "call.uni (r0), plus, (p0, p1); ld.param.b32 %r1, [r0]; } cvt.u64.u32 %result, %r1;",
      2, 0, add);
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.values, (std::vector<uint64_t>{42, 42}));
}

TEST(Ptx, Switches) {
  const Result result =
      After("brx.idx %r30, $table; $table: .branchtargets $a, $b; $a: mov.b64 %result, 5; bra $end; $b: mov.b64 %result, 6;\n$end:", 2);
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.values, (std::vector<uint64_t>{5, 6}));
  EXPECT_THAT(After("add.s32 %r1, %r30, 2; brx.idx %r1, $table; $table: .branchtargets $a; $a:").error, HasSubstr("no target 2"));
}

TEST(Ptx, WhatIsNotKnownIsRefused) {
  EXPECT_THAT(After("tcgen05.alloc.cta_group.b32 [%d1], 5;").error, HasSubstr("the instruction tcgen05.alloc.cta_group.b32 is not known"));
  EXPECT_THAT(After("add.rz.f32 %r1, %r2, %r3;").error, HasSubstr("unknown modifier .rz"));
  EXPECT_THAT(After("setp.foo.f32 %p1, %r2, %r3;").error, HasSubstr("unknown comparison .foo"));
  EXPECT_THAT(After("bra $nowhere;").error, HasSubstr("unknown label $nowhere"));
  EXPECT_THAT(After("add.s32 %r1, %r2, %nothing;").error, HasSubstr("unknown register %nothing"));
  EXPECT_THAT(After("trap;").error, HasSubstr("a trap at `trap`, thread 0"));
}

}  // namespace
}  // namespace kiln::ptx
