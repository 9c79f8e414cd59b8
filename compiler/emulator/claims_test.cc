// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;

// Threads up to `threads`, of those that are said to come, write a word each of the `words` that the statement says it writes.
void Write(Kernel& k, Value* to, int words, int threads, int coming) {
  k.device->SetLocation(3);
  k.If(k.device->BeginClaim(uint32_t(coming)), [&] { k.For(words, [&](Value* i) { k.device->Claim(k.At(to, i), 4); }); });
  k.If(k.Below(k.thread, threads), [&] { k.Store(k.thread, to, k.thread); });
  k.device->EndClaim();
}

TEST(Claims, WhatIsWrittenIsSaidToBe) {
  Kernel shared("emu:sm_80"), global("emu:sm_80");
  Write(shared, shared.shared, 64, 64, 64);
  Write(global, global.out(), 64, 64, 64);
  ExpectClean(shared.Run());
  ExpectClean(global.Run());
  ExpectClean(global.Run({}, {}, /*check=*/false));
}

TEST(Claims, ElementsThatNoThreadWritesAreReported) {
  {
    Kernel k("emu:sm_80");
    k.Name("tile", 0, 64);
    Write(k, k.shared, 64, 60, 64);
    const Report report = k.Run();
    ExpectOnly(report, FindingKind::kUnwritten,
               "no thread of block (0, 0, 0) writes shared memory at byte 240 (%tile + 240 bytes), nor 3 more of the 64 elements");
    EXPECT_EQ(report.findings[0].location, 3u);
    EXPECT_TRUE(report.finished);
    ExpectClean(k.Run({}, {}, /*check=*/false));
  }
  Kernel k("emu:gfx942");
  Write(k, k.out(), 64, 63, 64);
  ExpectOnly(k.Run(), FindingKind::kUnwritten, "writes out[63] that the statement says it writes");
}

// As in a branch that fewer threads come to than the statement is spread over.
TEST(Claims, ThreadsThatDoNotComeWriteNothing) {
  Kernel k("emu:sm_80");
  k.If(k.Below(k.thread, 32), [&] { Write(k, k.out(), 64, 64, 64); });
  ExpectOnly(k.Run(), FindingKind::kUnwritten, "writes out[32], nor 31 more of the 64 elements");
}

// Threads run ahead of each other: the second time of one thread belongs to the second of the others.
TEST(Claims, EachTimeCounts) {
  const auto twice = [](Kernel& k, int second) {
    k.For(2, [&](Value* turn) {
      Value* base = k.At(k.out(), k.b.CreateMul(turn, k.I32(64)));
      k.device->SetLocation(3);
      k.If(k.device->BeginClaim(64), [&] { k.For(64, [&](Value* i) { k.device->Claim(k.At(base, i), 4); }); });
      k.If(k.b.CreateOr(k.Is(turn, 0), k.Below(k.thread, second)), [&] { k.Store(k.thread, base, k.thread); });
      k.device->EndClaim();
    });
  };
  Kernel right("emu:sm_80"), wrong("emu:sm_80");
  twice(right, 64);
  twice(wrong, 50);
  ExpectClean(right.RunSeeds(0, 8));
  ExpectOnly(wrong.RunSeeds(0, 1), FindingKind::kUnwritten, "out[114], nor 13 more");
}

// Lanes 8 to 23 of a warp write, wait for each other, and read what another wrote; the other lanes do something else.
void Exchange(Kernel& k, bool waits) {
  Value* comes = k.Below(k.b.CreateSub(k.thread, k.I32(8)), 16);
  k.If(comes, [&] {
    k.device->SetLocation(3);
    k.Store(k.thread, k.shared, k.thread);
    k.device->SetLocation(4);
    if (waits) k.device->LanesBarrier(8, 16);
    k.Store(k.Load(k.shared, k.b.CreateSub(k.I32(31), k.thread)), k.out(), k.thread);
  });
}

// Global memory that others read behind a barrier needs one that orders it; shared memory needs any.
TEST(Barriers, OfSharedMemoryAlone) {
  for (const bool shared_only : {false, true}) {
    for (const bool global : {false, true}) {
      Kernel k("emu:gfx942", 64);
      Value* memory = global ? k.out() : k.shared;
      k.Store(k.thread, memory, k.thread);
      k.device->Barrier(shared_only);
      k.Store(k.Load(memory, k.b.CreateXor(k.thread, k.I32(5))), k.out(), k.b.CreateAdd(k.thread, k.I32(64)));
      const auto run = k.RunSeeds(0, 1);
      EXPECT_EQ(run.findings.empty(), !(shared_only && global)) << shared_only << global;
    }
  }
}

TEST(LanesBarrier, OrdersTheLanesThatCome) {
  for (const char* target : {"emu:sm_75", "emu:gfx942"}) {
    Kernel right(target), wrong(target);
    Exchange(right, true);
    ExpectClean(right.RunSeeds(0, 20));
    EXPECT_EQ(right.output[10], 21u);
    Exchange(wrong, false);
    ExpectAmong(wrong.RunSeeds(0, 4), FindingKind::kRace, "which thread");
  }
}

TEST(LanesBarrier, IsOfLanesThatAllCome) {
  Kernel few("emu:sm_80");
  few.If(few.Below(few.thread, 12), [&] { few.device->LanesBarrier(0, 16); });
  ExpectAmong(few.RunSeeds(0, 1), FindingKind::kDivergence, "wait for a barrier of lanes");
  Kernel beyond("emu:sm_80");
  beyond.If(beyond.Below(beyond.thread, 20), [&] { beyond.device->LanesBarrier(0, 16); });
  ExpectAmong(beyond.RunSeeds(0, 1), FindingKind::kOperands, "at a barrier of lanes 0 to 15");
  Kernel apart("emu:sm_80", 32);
  apart.If(
      apart.Below(apart.thread, 8), [&] { apart.device->LanesBarrier(0, 16); },
      [&] { apart.If(apart.Below(apart.thread, 16), [&] { apart.device->LanesBarrier(0, 16); }); });
  ExpectAmong(apart.RunSeeds(0, 1), FindingKind::kDivergence, "a lane of the same warp, to a different barrier of the same lanes");
}

// A range of threads within another: both begin at lane 0.
TEST(LanesBarrier, OfFewerLanesIsAnother) {
  Kernel nested("emu:sm_80");
  nested.If(nested.Below(nested.thread, 25), [&] {
    nested.If(nested.Below(nested.thread, 8), [&] { nested.device->LanesBarrier(0, 8); });
    nested.device->LanesBarrier(0, 25);
  });
  ExpectClean(nested.RunSeeds(0, 20));
}

}  // namespace
}  // namespace kiln::emulator
