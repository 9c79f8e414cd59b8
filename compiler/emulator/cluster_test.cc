// SPDX-License-Identifier: Apache-2.0
//
// Blocks of one cluster: multicast, arrivals at another's mbarrier, the cluster's barrier.
#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;

constexpr const char* kHopper = "emu:sm_90a";
constexpr uint64_t kSeeds = 200;
constexpr uint32_t kFull = 2048, kEmpty = 2056;

// Two blocks: each round block 0 loads a box to both, waits until both have read it and goes on.
struct Multicast {
  struct Has {
    bool cluster_barrier = true, expect_in_both = true, space_wait = true, last_barrier = true;
    int mask = 3, rank = 0;
  };
  explicit Multicast(const Has& has) : k(kHopper, 64, 4096, 512) {
    k.cluster = {2, 1, 1};
    for (uint32_t i = 0; i < 256; ++i) k.input()[i] = i * 3;
    k.spec = {.type = TensorType::kU32, .rank = 1, .dims = {256}, .box = {32}};
    auto& d = *k.device;
    Value *full = k.Byte(k.shared, kFull), *empty = k.Byte(k.shared, kEmpty), *rank = d.ClusterRank();
    k.If(k.Is(k.thread, 0), [&] {
      d.PhaseInit(full, 1);
      d.PhaseInit(empty, 64);
      d.PhaseInitFence();
    });
    d.SetLocation(1);
    if (has.cluster_barrier) d.ClusterBarrier();
    else d.Barrier();
    k.For(3, [&](Value* i) {
      Value* parity = k.b.CreateAnd(i, k.I32(1));
      d.SetLocation(2);
      k.If(k.Is(k.thread, 0), [&] {
        if (has.space_wait) k.If(k.Is(rank, 0), [&] { d.PhaseWait(empty, k.b.CreateXor(parity, k.I32(1))); });
        if (has.expect_in_both) d.PhaseExpect(full, k.I32(128));
        else k.If(k.Is(rank, 0), [&] { d.PhaseExpect(full, k.I32(128)); }, [&] { d.PhaseArrive(full, nullptr); });
        Value* at[] = {k.b.CreateMul(i, k.I32(32))};
        k.If(k.Is(rank, 0), [&] { d.TensorLoad(k.shared, k.map(), at, full, k.b.getInt16(uint16_t(has.mask))); });
      });
      d.SetLocation(3);
      k.If(k.Below(k.thread, 32), [&] {
        d.PhaseWait(full, parity);
        Value* word = k.b.CreateAdd(k.b.CreateMul(rank, k.I32(128)), k.b.CreateAdd(k.b.CreateMul(i, k.I32(32)), k.thread));
        Value* cluster = k.b.CreateMul(k.b.CreateUDiv(d.BlockIndex(0), k.I32(2)), k.I32(256));
        k.Store(k.Load(k.shared, k.thread), k.out(), k.b.CreateAdd(cluster, word));
        d.SetLocation(4);
        d.FenceAsyncProxy();
        d.PhaseArriveAt(empty, k.I32(has.rank), nullptr);
      });
    });
    d.SetLocation(5);
    if (has.last_barrier) d.ClusterBarrier();
  }
  Kernel k;
};

TEST(Clusters, MulticastReachesBoth) {
  Multicast m({});
  ExpectClean(m.k.RunSeeds(0, kSeeds, 4));
  for (uint32_t i = 0; i < 96; ++i) {
    EXPECT_EQ(m.k.output[i], i * 3);
    EXPECT_EQ(m.k.output[128 + i], i * 3);
    EXPECT_EQ(m.k.output[256 + i], i * 3);
  }
}

TEST(Clusters, WhatIsMissing) {
  Multicast barrier({.cluster_barrier = false}), expect({.expect_in_both = false}), space({.space_wait = false}), last({.last_barrier = false});
  EXPECT_FALSE(barrier.k.RunSeeds(0, 8, 2).findings.empty());
  EXPECT_FALSE(expect.k.RunSeeds(0, 2, 2).findings.empty());
  EXPECT_FALSE(space.k.RunSeeds(0, 2, 2).findings.empty());
  ExpectAmong(last.k.RunSeeds(0, 20, 2), FindingKind::kOutOfBounds, "which has ended");
}

TEST(Clusters, BlocksThatAreNotThere) {
  Multicast mask({.mask = 7}), rank({.rank = 2});
  ExpectOnly(mask.k.RunSeeds(0, 1, 2), FindingKind::kOperands, "a cluster of 2 does not have: mask 7");
  ExpectAmong(rank.k.RunSeeds(0, 1, 2), FindingKind::kOperands, "an arrival at block 2 of a cluster of 2");
}

// A word of global memory passes from one block to the other.
TEST(Clusters, BarrierOrdersTheirMemory) {
  for (bool ordered : {true, false}) {
    Kernel k(kHopper, 32);
    k.cluster = {2, 1, 1};
    k.If(k.Is(k.device->ClusterRank(), 0), [&] { k.Store(k.thread, k.out(), k.thread); });
    if (ordered) k.device->ClusterBarrier();
    else k.device->Barrier();
    k.If(k.Is(k.device->ClusterRank(), 1), [&] { k.Store(k.Load(k.out(), k.thread), k.out(), k.b.CreateAdd(k.thread, k.I32(64))); });
    if (ordered) {
      ExpectClean(k.RunSeeds(0, kSeeds, 2));
      EXPECT_EQ(k.output[70], 6u);
    } else {
      ExpectAmong(k.RunSeeds(0, 1, 2), FindingKind::kRace, "of block (");
    }
  }
}

TEST(Clusters, BarrierThatOneBlockDoesNotReach) {
  Kernel k(kHopper, 32);
  k.cluster = {2, 1, 1};
  k.If(k.Is(k.thread, 0), [&] { k.device->PhaseInit(k.shared, 1); });
  k.device->Barrier();
  k.device->SetLocation(6);
  k.If(k.Is(k.device->ClusterRank(), 0), [&] { k.device->ClusterBarrier(); }, [&] { k.device->PhaseWait(k.shared, k.I32(0)); });
  ExpectAmong(k.RunSeeds(0, 1, 2), FindingKind::kDeadlock,
              "block (0, 0, 0): threads 0-31 wait for the barrier of the cluster (statement 6); block (1, 0, 0): threads 0-31 wait for parity 0 of "
              "the mbarrier at byte 0 (1 of 1 arrivals");
}

// Block 0's words, read and added to by block 1 where they lie.
struct Distributed {
  struct Has {
    bool first_barrier = true, last_barrier = true, by_atomic = false;
    int rank = 0;
  };
  explicit Distributed(const Has& has) : k(kHopper, 32) {
    k.cluster = {2, 1, 1};
    auto& d = *k.device;
    const auto at = [&](Value* shared, Value* word) { return k.b.CreateGEP(k.b.getInt32Ty(), shared, word); };
    Value* rank = d.ClusterRank();
    d.SetLocation(1);
    k.If(k.Is(rank, 0), [&] { k.Store(k.b.CreateMul(k.thread, k.I32(7)), k.shared, k.thread); });
    if (has.first_barrier) d.ClusterBarrier();
    else d.Barrier();
    d.SetLocation(2);
    k.If(k.Is(rank, 1), [&] {
      Value* there = d.ClusterAddress(k.shared, k.I32(has.rank));
      Value* place = at(there, k.b.CreateSub(k.I32(31), k.thread));
      Value* v = k.b.CreateLoad(k.b.getInt32Ty(), place);
      k.Store(v, k.out(), k.thread);
      if (has.by_atomic) d.Atomic({llvm_ir::AtomicOp::kAdd, ir::DType::kI32}, place, k.I32(1));
      else k.b.CreateStore(k.b.CreateAdd(v, k.I32(1)), place);
    });
    if (has.last_barrier) d.ClusterBarrier();
    d.SetLocation(3);
    k.If(k.Is(rank, 0), [&] { k.Store(k.Load(k.shared, k.thread), k.out(), k.b.CreateAdd(k.thread, k.I32(32))); });
  }
  Kernel k;
};

TEST(Clusters, ReachEachOthersSharedMemory) {
  for (const bool by_atomic : {false, true}) {
    Distributed right({.by_atomic = by_atomic});
    ExpectClean(right.k.RunSeeds(0, kSeeds, 2));
    for (uint32_t i = 0; i < 32; ++i) {
      EXPECT_EQ(right.k.output[i], (31 - i) * 7);
      EXPECT_EQ(right.k.output[32 + i], i * 7 + 1);
    }
  }
}

TEST(Clusters, SharedMemoryOfOthersIsChecked) {
  Distributed early({.first_barrier = false}), late({.last_barrier = false}), nobody({.rank = 2});
  EXPECT_FALSE(early.k.RunSeeds(0, 4, 2).findings.empty());
  const Report report = late.k.RunSeeds(0, 20, 2);
  ASSERT_FALSE(report.findings.empty());
  ExpectOnly(nobody.k.RunSeeds(0, 1, 2), FindingKind::kOperands, "shared memory at byte 0 of block 2 of a cluster of 2");
  bool race = false, ended = false;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (const Finding& finding : late.k.RunSeeds(seed, 1, 2).findings) {
      race |= finding.kind == FindingKind::kRace && finding.message.find("of block (1, 0, 0)") != std::string::npos;
      ended |= finding.kind == FindingKind::kOutOfBounds && finding.message.find("of block (0, 0, 0), which has ended") != std::string::npos;
    }
  }
  EXPECT_TRUE(race);
  EXPECT_TRUE(ended);
}

// Each block's threads store to the other block, whose mbarrier counts what comes.
struct StoresToOthers {
  struct Has {
    bool wait = true, expect = true;
    int bytes = 4;
  };
  explicit StoresToOthers(const Has& has) : k(kHopper, 32) {
    k.cluster = {2, 1, 1};
    auto& d = *k.device;
    Value *mbarrier = k.shared, *words = k.b.CreateConstGEP1_32(k.b.getInt8Ty(), k.shared, 128), *rank = d.ClusterRank();
    const auto at = [&](Value* index) { return k.b.CreateGEP(k.b.getInt32Ty(), words, index); };
    d.SetLocation(1);
    k.If(k.Is(k.thread, 0), [&] {
      d.PhaseInit(mbarrier, 1);
      d.PhaseInitFence();
    });
    d.ClusterBarrier();
    d.SetLocation(2);
    k.If(k.Is(k.thread, 0), [&] { has.expect ? d.PhaseExpect(mbarrier, k.I32(has.bytes * 32)) : d.PhaseArrive(mbarrier, nullptr); });
    Value* other = k.b.CreateXor(rank, k.I32(1));
    Value* v = k.b.CreateAdd(k.b.CreateMul(rank, k.I32(100)), k.thread);
    d.StoreAsyncAt(at(k.thread), other, v, mbarrier);
    d.SetLocation(3);
    if (has.wait) d.PhaseWait(mbarrier, k.I32(0));
    k.Store(k.b.CreateLoad(k.b.getInt32Ty(), at(k.b.CreateSub(k.I32(31), k.thread))), k.out(),
            k.b.CreateAdd(k.b.CreateMul(rank, k.I32(32)), k.thread));
    d.ClusterBarrier();
  }
  Kernel k;
};

TEST(Clusters, StoresArriveAtMbarriers) {
  StoresToOthers right({});
  ExpectClean(right.k.RunSeeds(0, kSeeds, 2));
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(right.k.output[i], (i < 32 ? 100 : 0) + 31 - i % 32);
}

TEST(Clusters, StoresMustBeWaitedFor) {
  StoresToOthers early({.wait = false}), none({.expect = false}), many({.bytes = 8});
  EXPECT_FALSE(early.k.RunSeeds(0, 4, 2).findings.empty());
  EXPECT_FALSE(none.k.RunSeeds(0, 20, 2).findings.empty());
  ExpectAmong(many.k.RunSeeds(0, 1, 2), FindingKind::kDeadlock, "0 of 1 arrivals and 128 bytes are missing");
}

// Words of global memory pass between the blocks of a grid, round after round.
struct Grids {
  explicit Grids(bool barrier, int absent = -1) : k(kHopper, 32) {
    auto& d = *k.device;
    Value* block = d.BlockIndex(0);
    const auto word = [&](Value* of, int round) { return k.b.CreateAdd(k.b.CreateMul(of, k.I32(32)), k.b.CreateAdd(k.thread, k.I32(round * 128))); };
    d.SetLocation(1);
    k.Store(block, k.out(), word(block, 0));
    d.SetLocation(2);
    const auto meet = [&] { barrier ? d.GridBarrier(k.out()) : d.Barrier(); };
    if (absent < 0) meet();
    else k.If(k.b.CreateICmpNE(block, k.I32(absent)), meet);
    d.SetLocation(3);
    Value* next = k.b.CreateAnd(k.b.CreateAdd(block, k.I32(1)), k.I32(3));
    k.Store(k.b.CreateAdd(k.Load(k.out(), word(next, 0)), k.I32(100)), k.out(), word(block, 1));
  }
  Kernel k;
};

TEST(Grid, BarriersOrderAllBlocks) {
  Grids right(true);
  ExpectClean(right.k.RunSeeds(0, kSeeds, 4));
  for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(right.k.output[128 + i], 100 + (i / 32 + 1) % 4);
  ExpectAmong(Grids(false).k.RunSeeds(0, 1, 4), FindingKind::kRace, "nothing orders blocks of one launch");
}

TEST(Grid, ABarrierThatABlockDoesNotReach) {
  const Report report = Grids(true, 2).k.RunSeeds(0, 1, 4);
  EXPECT_FALSE(report.finished);
  ExpectAmong(report, FindingKind::kDivergence,
              "blocks (0, 0, 0) and 2 more, the last (3, 0, 0): threads 0-31 wait for the barrier of the grid (statement 2); block (2, 0, 0): "
              "threads 0-31 ended");
}

TEST(Grid, ItsBlocksMustFit) {
  Grids grid(true);
  const auto program = Program::Load(grid.k.Compile(), true);
  ASSERT_TRUE(program);
  const LaunchArgs launch{"kernel", {4096, 1, 1}, 32, 4096, {0, 0, 0}, {1, 1, 1}};
  EXPECT_THAT((*program)->Run(launch, {}, {}).error(), ::testing::HasSubstr("whose blocks wait for each other"));
}

TEST(Clusters, GridsMustDivide) {
  Kernel k(kHopper, 32);
  const auto program = Program::Load(k.Compile(), true);
  ASSERT_TRUE(program);
  LaunchArgs launch{"kernel", {3, 1, 1}, 32, 4096, {0, 0, 0}, {2, 1, 1}};
  EXPECT_THAT((*program)->Run(launch, {}, {}).error(), ::testing::HasSubstr("does not divide into clusters of 2"));
  launch.cluster = {32, 1, 1};
  launch.grid = {32, 1, 1};
  EXPECT_THAT((*program)->Run(launch, {}, {}).error(), ::testing::HasSubstr("has at most 16"));
}

}  // namespace
}  // namespace kiln::emulator
