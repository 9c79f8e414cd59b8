// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/sass/lost_halves.h"

#include <gtest/gtest.h>

#include "compiler/llvm/sass/sass_test_code.h"

namespace kiln::llvm_ir {
namespace {

constexpr uint64_t kSpilledHalf = 3, kOwnHalf = 2;

Bits Store(uint64_t offset, uint64_t reg, uint64_t width = kSpilledHalf, uint64_t base = 1) {
  Bits bits = Bits(0x387).A(base).B(reg);
  bits.low |= offset << 40;
  bits.high |= width << 9;
  return bits;
}
// PRMT: the high half of `d` from the low half of `c`.
Bits SetHigh(uint64_t d, uint64_t c, uint64_t a, uint64_t selector = 0x5410) {
  Bits bits = Bits(0x816).D(d).A(a).C(c);
  bits.low |= selector << 32;
  return bits;
}
Bits SetHigh(uint64_t d, uint64_t c) { return SetHigh(d, c, d); }
Bits Add(uint64_t d) { return Bits(0x221).D(d).A(2).B(3); }

std::string Found(const std::vector<Bits>& code, const char* arch = "sm_90a") {
  const auto lost = FindLostHalf(Cubin(code), arch);
  return lost ? lost->Text() : "";
}
constexpr const char* kOfPair = "kernel stores the low half of R40 at 0x20, where its high half belongs";

TEST(LostHalves, BehindAHalfSetByItself) {
  const std::vector<Bits> pair = {Store(0x50, 40), SetHigh(40, 7), Store(0x52, 40), Exit()};
  EXPECT_EQ(Found(pair), kOfPair);
  for (const char* arch : {"sm_75", "sm_80", "sm_89"}) EXPECT_EQ(Found(pair, arch), kOfPair);
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7).If(8), Store(0x52, 40)}), kOfPair) << "for some threads";
  EXPECT_EQ(Found({SetHigh(40, 7), Store(0x50, 40), Store(0x52, 40)}), kOfPair) << "before both";
  EXPECT_EQ(Found({SetHigh(40, 7), Store(0x52, 40), Store(0x50, 40)}), kOfPair) << "the high half first";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Branch(1).If(0), Add(41), Store(0x52, 40)}),
            "kernel stores the low half of R40 at 0x40, where its high half belongs");
  for (const char* arch : {"sm_75", "sm_80", "sm_90a"}) {
    for (const Bits& barrier : {Branch(4).IfParted(), Branch(4).IfTogether()}) {
      EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), barrier, Store(0x52, 40)}, arch),
                "kernel stores the low half of R40 at 0x30, where its high half belongs");
    }
  }
}

TEST(LostHalves, WhatIsRight) {
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Store(0x52, 7)}), "") << "the value from where it was";
  EXPECT_EQ(Found({Store(0x50, 40), Store(0x52, 40)}), "") << "one value twice";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Add(40), Store(0x52, 40)}), "") << "another value";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Bits(0x984).D(38).Width(4), Store(0x52, 40)}), "") << "a load of four registers";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7, 8), Store(0x52, 40)}), "") << "both halves are new";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7, 40, 0x7610), Store(0x52, 40)}), "") << "the low half is new";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Store(0x56, 40)}), "") << "another word";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Store(0x52, 40, kSpilledHalf, 9)}), "") << "another address";
  EXPECT_EQ(Found({Store(0x50, 40, kOwnHalf), SetHigh(40, 7), Store(0x52, 40, kOwnHalf)}), "") << "the program's array";
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Branch(4), Store(0x52, 40)}), "") << "elsewhere";
}

TEST(LostHalves, OfWhatIsNotKnownNothingIsSaid) {
  EXPECT_EQ(Found({Store(0x50, 40), SetHigh(40, 7), Store(0x52, 40)}, "sm_100a"), "");
  EXPECT_EQ(FindLostHalf("", "sm_90a"), std::nullopt);
  EXPECT_EQ(FindLostHalf("no ELF file", "sm_90a"), std::nullopt);
}

}  // namespace
}  // namespace kiln::llvm_ir
