// SPDX-License-Identifier: Apache-2.0
//
// Flags by which a block hands on what it wrote in global memory: few blocks that run together, and many that follow each other.
#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;

constexpr char kHopper[] = "emu:sm_90a";

// Each block adds its number to 32 words that it has from the one before it (`back`: behind it).
struct Chain {
  struct Has {
    bool raise = true, take = true, barrier = true;
    int back = 1;
  };
  explicit Chain(int blocks, Has has) : k(kHopper, 64, 4096, size_t(blocks) * 65), blocks(blocks) {
    auto& d = *k.device;
    Value *block = d.BlockIndex(0), *one = k.Is(k.thread, 0);
    const auto word = [&](Value* of) { return k.b.CreateAdd(k.b.CreateMul(of, k.I32(64)), k.thread); };
    const auto flag = [&](Value* of) { return k.At(k.out(), k.b.CreateAdd(of, k.I32(blocks * 64))); };
    Value* other = k.b.CreateSub(block, k.I32(has.back));
    const auto follow = [&] {
      d.SetLocation(1);
      if (has.take) k.If(one, [&] { d.TakeFlag(flag(other)); });
      d.Barrier();
      d.SetLocation(2);
      k.Store(k.b.CreateAdd(block, k.Load(k.out(), word(other))), k.out(), word(block));
    };
    d.SetLocation(3);
    k.If(k.b.CreateICmpNE(block, k.I32(has.back > 0 ? 0 : blocks - 1)), follow, [&] { k.Store(block, k.out(), word(block)); });
    if (has.barrier) d.Barrier();
    d.SetLocation(4);
    const auto raise = [&] { d.RaiseFlag(flag(block)); };
    if (has.raise) k.If(k.b.CreateAnd(one, k.b.CreateICmpNE(block, k.I32(has.back > 0 ? blocks - 1 : 0))), raise);
  }
  Report Run(uint64_t seeds = 8) { return k.RunSeeds(0, seeds, uint32_t(blocks)); }

  Kernel k;
  int blocks;
};

TEST(Flags, HandOnWhatABlockWrote) {
  for (const int blocks : {4, 200}) {
    Chain right(blocks, {});
    ExpectClean(right.Run());
    for (int i = 0; i < blocks * 64; ++i) ASSERT_EQ(right.k.output[size_t(i)], uint32_t((i / 64) * (i / 64 + 1) / 2));
    for (int i = 0; i < blocks; ++i) EXPECT_EQ(right.k.output[size_t(blocks * 64 + i)], 0u) << "a flag is up at the end";
    EXPECT_TRUE(right.k.Run({}, {}, /*check=*/false, uint32_t(blocks)).finished);
  }
}

TEST(Flags, AreNotLeftOut) {
  for (const int blocks : {4, 200}) {
    Chain unheard(blocks, {.take = false});
    EXPECT_FALSE(unheard.Run().findings.empty());
    Chain silent(blocks, {.raise = false});
    ExpectAmong(silent.Run(), blocks == 4 ? FindingKind::kDivergence : FindingKind::kDeadlock,
                blocks == 4 ? "a flag of another block" : "no block before it raised");
  }
  ExpectAmong(Chain(4, {.barrier = false}).Run(), FindingKind::kRace, "");
}

TEST(Flags, OfLaterBlocksMayNeverBeRaised) {
  ExpectAmong(Chain(4, {.back = -1}).Run(), FindingKind::kDeadlock, "may not start");
  ExpectAmong(Chain(200, {.back = -1}).Run(), FindingKind::kDeadlock, "may not start");
}

}  // namespace
}  // namespace kiln::emulator
