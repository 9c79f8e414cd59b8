// SPDX-License-Identifier: Apache-2.0
//
// Hopper's asynchronous machinery: for each model the right sequence, which must stay silent under many seeds, and each way to break
// it. What is right is taken from the PTX ISA.
#include <set>

#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;

constexpr const char* kHopper = "emu:sm_90a";
constexpr uint64_t kSeeds = 200;

// A producer warp and three that consume: each round a box of 32 × 32 words comes by a tensor load, is read, and given back.
struct Pipeline {
  static constexpr int kRounds = 4, kBox = 4096, kStages = 2;
  static constexpr uint32_t kFull = 2 * kBox, kEmpty = kFull + 16;

  struct Without {
    bool init_fence = true, init_barrier = true, expect = true, full_wait = true, empty_wait = true, empty_arrive = true, read_fence = true;
    int full_arrivals = 1, empty_arrivals = 96, expected = kBox, extra_arrivals = 0;
  };

  explicit Pipeline(const Without& has) : k(kHopper, 128, 12288, 4096) {
    for (size_t i = 0; i < 4096; ++i) k.input()[i] = uint32_t(i);
    k.spec = {.type = TensorType::kI32, .rank = 2, .dims = {32, 128}, .box = {32, 32}};
    auto& d = *k.device;
    d.SetLocation(1);
    k.If(k.Is(k.thread, 0), [&] {
      for (uint32_t s = 0; s < kStages; ++s) {
        d.PhaseInit(k.Byte(k.shared, kFull + 8 * s), uint32_t(has.full_arrivals));
        d.PhaseInit(k.Byte(k.shared, kEmpty + 8 * s), uint32_t(has.empty_arrivals));
      }
      if (has.init_fence) d.PhaseInitFence();
    });
    d.SetLocation(2);
    if (has.init_barrier) d.Barrier();
    k.If(k.Is(k.thread, 0), [&] { k.For(kRounds, [&](Value* i) { Produce(i, has); }); });
    k.If(k.b.CreateICmpUGE(k.thread, k.I32(32)), [&] { k.For(kRounds, [&](Value* i) { Consume(i, has); }); });
  }

  Value* Stage(Value* i) { return k.b.CreateAnd(i, k.I32(1)); }
  Value* Parity(Value* i) { return k.b.CreateAnd(k.b.CreateLShr(i, k.I32(1)), k.I32(1)); }
  Value* Barrier(uint32_t first, Value* i) { return k.b.CreateGEP(k.b.getInt64Ty(), k.Byte(k.shared, first), Stage(i)); }
  Value* Box(Value* i) { return k.b.CreateGEP(k.b.getInt8Ty(), k.shared, k.b.CreateMul(Stage(i), k.I32(kBox))); }

  void Produce(Value* i, const Without& has) {
    auto& d = *k.device;
    d.SetLocation(3);
    if (has.empty_wait) d.PhaseWait(Barrier(kEmpty, i), k.b.CreateXor(Parity(i), k.I32(1)));
    d.SetLocation(4);
    if (has.expect) d.PhaseExpect(Barrier(kFull, i), k.I32(has.expected));
    else d.PhaseArrive(Barrier(kFull, i), nullptr);
    d.SetLocation(5);
    Value* at[] = {k.I32(0), k.b.CreateMul(i, k.I32(32))};
    d.TensorLoad(Box(i), k.map(), at, Barrier(kFull, i), nullptr);
  }
  void Consume(Value* i, const Without& has) {
    auto& d = *k.device;
    d.SetLocation(6);
    if (has.full_wait) d.PhaseWait(Barrier(kFull, i), Parity(i));
    d.SetLocation(7);
    Value* own = k.b.CreateSub(k.thread, k.I32(32));
    k.For(10, [&](Value* part) {
      Value* word = k.b.CreateAdd(k.b.CreateMul(part, k.I32(96)), own);
      k.Store(k.Load(Box(i), word), k.out(), k.b.CreateAdd(k.b.CreateMul(i, k.I32(1024)), word));
    });
    d.SetLocation(8);
    if (has.read_fence) d.FenceAsyncProxy();
    if (has.empty_arrive) d.PhaseArrive(Barrier(kEmpty, i), nullptr);
    for (int extra = 0; extra < has.extra_arrivals; ++extra) d.PhaseArrive(Barrier(kEmpty, i), nullptr);
  }

  Kernel k;
};

TEST(Pipelines, ProducerAndConsumersAreClean) {
  Pipeline p({});
  ExpectClean(p.k.RunSeeds(0, kSeeds));
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t w = 0; w < 960; ++w) ASSERT_EQ(p.k.output[i * 1024 + w], i * 1024 + w);
  }
}

TEST(Pipelines, DataIsNotWaitedFor) {
  Pipeline p({.full_wait = false});
  int in_flight = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const Report report = p.k.RunSeeds(seed, 1);
    EXPECT_FALSE(report.findings.empty());
    for (const Finding& finding : report.findings) {
      in_flight +=
          finding.kind == FindingKind::kAsyncPending && finding.message.find("which a tensor load (on the mbarrier at byte 81") != std::string::npos;
    }
  }
  EXPECT_GT(in_flight, 0) << "where the load comes first";
}

TEST(Pipelines, SpaceIsNotWaitedFor) {
  Pipeline p({.empty_wait = false});
  for (uint64_t seed : {0, 1}) EXPECT_FALSE(p.k.RunSeeds(seed, 1).findings.empty());
}

// On a GPU the next load may then write before this one's reads were served.
TEST(Pipelines, SpaceIsGivenBackWithoutAFence) {
  Pipeline p({.read_fence = false});
  ExpectAmong(p.k.RunSeeds(0, 1), FindingKind::kUnfenced, "read with no proxy fence behind");
}

TEST(Pipelines, SpaceIsGivenBackByTooFew) {
  Pipeline p({.empty_arrivals = 32});
  EXPECT_FALSE(p.k.RunSeeds(0, 4).findings.empty());
}

TEST(Pipelines, SpaceIsNeverGivenBack) {
  Pipeline p({.empty_arrive = false});
  const Report report = p.k.RunSeeds(0, 1);
  ExpectAmong(report, FindingKind::kDivergence,
              "wait for parity 0 of the mbarrier at byte 8208 (96 of 96 arrivals and 0 bytes are missing) (statement 3)");
}

TEST(Pipelines, BytesAreNotExpected) {
  Pipeline p({.expect = false});
  for (uint64_t seed : {0, 1}) EXPECT_FALSE(p.k.RunSeeds(seed, 1).findings.empty());
}

TEST(Pipelines, MoreBytesAreExpectedThanCome) {
  Pipeline p({.expected = 8192});
  ExpectAmong(p.k.RunSeeds(0, 1), FindingKind::kDivergence, "0 of 1 arrivals and 4096 bytes are missing");
}

TEST(Pipelines, OneArrivalTooMany) {
  Pipeline p({.extra_arrivals = 1});
  EXPECT_FALSE(p.k.RunSeeds(0, 8).findings.empty());
}

TEST(Pipelines, NoFenceAfterInitialisation) {
  Pipeline p({.init_fence = false});
  ExpectAmong(p.k.RunSeeds(0, 1), FindingKind::kUnfenced, "there is no fence.mbarrier_init");
}

TEST(Pipelines, NoBarrierAfterInitialisation) {
  Pipeline p({.init_barrier = false});
  EXPECT_FALSE(p.k.RunSeeds(0, 1).findings.empty());
}

TEST(Mbarriers, WhatTheyForbid) {
  {
    Kernel k(kHopper, 32);
    k.device->PhaseWait(k.Byte(k.shared, 64), k.I32(0));
    ExpectOnly(k.Run(), FindingKind::kMbarrier, "uses an mbarrier in shared memory at byte 64, where none was initialised");
  }
  {
    Kernel k(kHopper, 1);
    k.device->PhaseInit(k.shared, 2);
    k.device->PhaseArrive(k.shared, nullptr);
    k.device->PhaseInit(k.shared, 2);
    ExpectOnly(k.Run(), FindingKind::kMbarrier, "again while it is in use");
  }
  {
    Kernel k(kHopper, 1);
    k.device->PhaseInit(k.shared, 1);
    k.device->PhaseExpect(k.shared, k.I32(16));
    k.device->PhaseArrive(k.shared, nullptr);
    ExpectOnly(k.Run(), FindingKind::kMbarrier, "arrives once more than the 1 times of a phase");
  }
  {
    Kernel k(kHopper, 1);
    k.device->PhaseInit(k.shared, 1);
    k.Store(k.I32(5), k.shared, k.I32(1));
    ExpectAmong(k.Run(), FindingKind::kMbarrier, "as if it were ordinary memory");
  }
  Kernel k(kHopper, 1);
  k.device->PhaseInit(k.Byte(k.shared, 4), 1);
  ExpectOnly(k.Run(), FindingKind::kMisaligned, "not a multiple of 8");
}

TEST(Mbarriers, ArrivalsOrderMemory) {
  for (bool waits : {true, false}) {
    Kernel k(kHopper, 64);
    k.If(k.Is(k.thread, 0), [&] { k.device->PhaseInit(k.Byte(k.shared, 1024), 32); });
    k.device->Barrier();
    k.If(
        k.Below(k.thread, 32),
        [&] {
          k.Store(k.thread, k.shared, k.thread);
          k.device->PhaseArrive(k.Byte(k.shared, 1024), nullptr);
        },
        [&] {
          if (waits) k.device->PhaseWait(k.Byte(k.shared, 1024), k.I32(0));
          k.Store(k.Load(k.shared, k.b.CreateSub(k.I32(63), k.thread)), k.out(), k.thread);
        });
    if (waits) {
      ExpectClean(k.RunSeeds(0, kSeeds));
      EXPECT_EQ(k.output[40], 23u);
    } else {
      EXPECT_FALSE(k.RunSeeds(0, 1).findings.empty());
    }
  }
}

// Threads 0 to 31 hand words to 32 to 63 and back.
void Handshake(Kernel& k, uint32_t threads, bool arrives, bool waits_back) {
  auto& d = *k.device;
  k.If(k.Below(k.thread, 32), [&] {
    k.Store(k.thread, k.shared, k.thread);
    if (arrives) d.NamedBarrierArrive(1, threads);
    d.SetLocation(9);
    if (waits_back) d.NamedBarrier(2, 64);
    k.Store(k.I32(7), k.shared, k.thread);
  });
  k.If(k.b.CreateAnd(k.b.CreateICmpUGE(k.thread, k.I32(32)), k.Below(k.thread, 64)), [&] {
    d.NamedBarrier(1, threads);
    k.Store(k.Load(k.shared, k.b.CreateSub(k.I32(63), k.thread)), k.out(), k.thread);
    d.NamedBarrierArrive(2, 64);
  });
}

TEST(NamedBarriers, OrderThoseWhoTakePart) {
  {
    Kernel k(kHopper, 96);
    Handshake(k, 64, true, true);
    ExpectClean(k.RunSeeds(0, kSeeds));
    EXPECT_EQ(k.output[33], 30u);
  }
  {
    Kernel k(kHopper, 96);
    Handshake(k, 64, true, false);
    EXPECT_FALSE(k.RunSeeds(0, 4).findings.empty());
  }
  {
    Kernel k(kHopper, 96);
    Handshake(k, 64, false, true);
    ExpectAmong(k.RunSeeds(0, 1), FindingKind::kDivergence, "32-63 wait for barrier 1 (32 of 64 threads came)");
  }
  Kernel k(kHopper, 96);
  Handshake(k, 48, true, true);
  ExpectOnly(k.RunSeeds(0, 1), FindingKind::kOperands, "barrier 1 of 48 threads");
}

TEST(Registers, ComeFromThePool) {
  const auto run = [](int less, int more) {
    Kernel k(kHopper, 384);  // 168 each
    k.If(k.Below(k.thread, 128), [&] { k.device->SetRegisters(less, false); }, [&] { k.device->SetRegisters(more, true); });
    return k.RunSeeds(0, 8);
  };
  ExpectClean(run(24, 240));
  ExpectClean(run(40, 232));
  ExpectAmong(run(40, 240), FindingKind::kDivergence, "wait for registers");
  ExpectOnly(run(20, 232), FindingKind::kOperands, "a multiple of 8 in 24 … 256");
  ExpectOnly(run(40, 160), FindingKind::kOperands, "setmaxnreg.inc from 168 registers to 160");
  Kernel k(kHopper, 384);
  k.If(k.Below(k.thread, 64), [&] { k.device->SetRegisters(40, false); });
  EXPECT_FALSE(k.RunSeeds(0, 1).finished);
}

TEST(Elections, ChooseOneLaneOfEachWarp) {
  std::set<uint32_t> lanes;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Kernel k(kHopper, 64);
    Value* chosen = k.b.CreateZExt(k.device->ElectOne(), k.b.getInt32Ty());
    k.Store(chosen, k.out(), k.thread);
    ExpectClean(k.RunSeeds(seed, 1));
    for (uint32_t warp : {0, 1}) {
      uint32_t count = 0;
      for (uint32_t lane = 0; lane < 32; ++lane) {
        count += k.output[warp * 32 + lane];
        if (k.output[warp * 32 + lane] != 0) lanes.insert(lane);
      }
      EXPECT_EQ(count, 1u);
    }
  }
  EXPECT_GT(lanes.size(), 1u) << "kernels could rely on lane 0";
}

}  // namespace
}  // namespace kiln::emulator
