// SPDX-License-Identifier: Apache-2.0
//
// Threads written by hand: what each instruction does, and what is reported of threads that break the rules.
#include <set>

#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;
using ::testing::HasSubstr;

TEST(Threads, ExchangeThroughSharedMemory) {
  for (uint64_t seed : {0, 1, 2, 3}) {
    Kernel k("emu:sm_80");
    k.Store(k.b.CreateMul(k.thread, k.I32(3)), k.shared, k.thread);
    k.device->Barrier();
    k.Store(k.Load(k.shared, k.b.CreateSub(k.I32(63), k.thread)), k.out(), k.thread);
    const Report report = k.Run({}, {.seed = seed});
    EXPECT_TRUE(report.finished);
    EXPECT_TRUE(report.findings.empty()) << report.findings[0].message;
    for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(k.output[i], (63 - i) * 3);
  }
}

TEST(Threads, ShuffleWithinTheirWarp) {
  for (const char* target : {"emu:sm_80", "emu:gfx942"}) {
    for (int mask : {1, 16, 31}) {
      Kernel k(target);
      k.Store(k.device->ShuffleXor(k.thread, mask), k.out(), k.thread);
      EXPECT_TRUE(k.Run().findings.empty());
      for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(k.output[i], i ^ uint32_t(mask));
    }
  }
}

TEST(Threads, Vote) {
  using llvm_ir::VoteOp;
  Kernel k("emu:sm_80");
  Value* odd = k.b.CreateTrunc(k.thread, k.b.getInt1Ty());
  Value* votes[] = {k.device->Vote(VoteOp::kAll, odd), k.device->Vote(VoteOp::kAny, odd), k.device->Vote(VoteOp::kAll, k.Below(k.thread, 32))};
  for (int i = 0; i < 3; ++i) k.Store(k.b.CreateZExt(votes[i], k.b.getInt32Ty()), k.out(), k.b.CreateAdd(k.thread, k.I32(64 * i)));
  k.Store(k.device->Vote(VoteOp::kBallot, odd), k.out(), k.b.CreateAdd(k.thread, k.I32(192)));
  ExpectClean(k.Run());
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(k.output[i], 0u);
    EXPECT_EQ(k.output[64 + i], 1u);
    EXPECT_EQ(k.output[128 + i], i < 32 ? 1u : 0u);
    EXPECT_EQ(k.output[192 + i], 0xaaaaaaaau);
  }
}

TEST(Threads, ReduceOverTheirWarp) {
  using llvm_ir::WarpReduceOp;
  const std::pair<WarpReduceOp, uint32_t> expected[] = {{WarpReduceOp::kAdd, 32 * 31 / 2 - 32 * 10}, {WarpReduceOp::kMin, uint32_t(-10)},
                                                        {WarpReduceOp::kMax, 21}, {WarpReduceOp::kAnd, 0}, {WarpReduceOp::kOr, ~0u},
                                                        {WarpReduceOp::kXor, 0}};
  for (const auto& [op, value] : expected) {
    Kernel k("emu:sm_80", 32);
    Value* v = k.b.CreateSub(k.thread, k.I32(10));
    k.Store(k.device->WarpReduce(op, ir::DType::kI32, v), k.out(), k.thread);
    k.Store(k.device->WarpReduce(op, ir::DType::kU32, v), k.out(), k.b.CreateAdd(k.thread, k.I32(32)));
    ExpectClean(k.Run());
    uint32_t bits = 0;
    for (int i = -10; i < 22; ++i) bits ^= uint32_t(i);
    EXPECT_EQ(k.output[5], op == WarpReduceOp::kXor ? bits : value);
    EXPECT_EQ(k.output[37], op == WarpReduceOp::kMin ? 0u : op == WarpReduceOp::kMax ? ~0u : k.output[5]);
  }
}

TEST(Threads, AtomicsOfAllBlocksAddUp) {
  Kernel k("emu:sm_80");
  k.device->Atomic(llvm_ir::AtomicOp::kAdd, ir::DType::kI32, k.out(), k.I32(2));
  const Report report = k.Run({}, {.threads = 2}, true, 10);
  EXPECT_TRUE(report.findings.empty()) << report.findings[0].message;
  EXPECT_EQ(k.output[0], 1280u);
}

// Threads that do not wait for each other leave their numbers in one place: who came before whom.
TEST(Threads, TheSameSeedIsTheSameRun) {
  Kernel k("emu:sm_80");
  k.Store(k.Load(k.shared, k.I32(0)), k.out(), k.thread);
  k.Store(k.thread, k.shared, k.I32(0));
  k.device->Barrier();
  k.Store(k.device->ShuffleXor(k.Load(k.shared, k.I32(0)), 1), k.out(), k.b.CreateAdd(k.thread, k.I32(64)));
  std::set<std::vector<uint32_t>> runs;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Report first = k.Run({}, {.seed = seed});
    const std::vector<uint32_t> output = k.output;
    const Report again = k.Run({}, {.seed = seed});
    EXPECT_EQ(k.output, output);
    ASSERT_EQ(again.findings.size(), first.findings.size());
    for (size_t i = 0; i < first.findings.size(); ++i) EXPECT_EQ(again.findings[i].message, first.findings[i].message);
    runs.insert(output);
  }
  EXPECT_GT(runs.size(), 5u);
}

TEST(Findings, RaceInSharedMemory) {
  Kernel k("emu:sm_80");
  k.device->SetLocation(1);
  k.Store(k.thread, k.shared, k.thread);
  k.device->SetLocation(2);
  k.Store(k.Load(k.shared, k.b.CreateXor(k.thread, k.I32(32))), k.out(), k.thread);
  const Report report = k.Run();
  ASSERT_FALSE(report.findings.empty());
  for (const Finding& finding : report.findings) {
    // Which of the two comes first depends on the order of the threads.
    EXPECT_TRUE(finding.kind == FindingKind::kRace || finding.kind == FindingKind::kUninitialized);
    EXPECT_TRUE(finding.location == 1 || finding.location == 2);
  }
}

TEST(Findings, SameValueByManyIsNoRace) {
  Kernel k("emu:sm_80");
  k.Store(k.I32(7), k.shared, k.I32(0));
  k.device->Barrier();
  k.Store(k.Load(k.shared, k.I32(0)), k.out(), k.thread);
  EXPECT_TRUE(k.Run().findings.empty());
}

TEST(Findings, BlocksThatWriteOneElement) {
  Kernel k("emu:sm_80");
  k.Store(k.device->BlockIndex(0), k.out(), k.thread);
  ExpectOnly(k.Run({}, {}, true, 2), FindingKind::kRace, "nothing orders blocks of one launch");
}

TEST(Findings, AnAtomicAndAnOrdinaryWrite) {
  Kernel k("emu:sm_80");
  k.device->Atomic(llvm_ir::AtomicOp::kMax, ir::DType::kI32, k.out(), k.I32(2));
  k.If(k.b.CreateICmpEQ(k.thread, k.I32(3)), [&] { k.Store(k.I32(5), k.out(), k.I32(0)); });
  EXPECT_EQ(k.Run().findings.at(0).kind, FindingKind::kRace);
}

TEST(Findings, UninitializedSharedMemory) {
  Kernel k("emu:sm_80");
  k.Store(k.Load(k.shared, k.thread), k.out(), k.thread);
  ExpectOnly(k.Run(), FindingKind::kUninitialized, "which nobody wrote");
}

TEST(Findings, OutOfBounds) {
  {
    Kernel k("emu:sm_80", 1);
    k.Store(k.I32(1), k.shared, k.I32(1024));
    ExpectOnly(k.Run(), FindingKind::kOutOfBounds, "writes 4 bytes of shared memory at byte 4096; the block has 4096 bytes");
  }
  {
    Kernel k("emu:sm_80", 1);
    k.Store(k.I32(1), k.out(), k.I32(256));
    ExpectOnly(k.Run(), FindingKind::kOutOfBounds, "past the end of out, which has 1024");
  }
  Kernel k("emu:sm_80", 1);
  k.Store(k.Load(k.in(), k.I32(-1)), k.out(), k.thread);
  ExpectOnly(k.Run(), FindingKind::kOutOfBounds, "before the start of in");
}

TEST(Findings, Misaligned) {
  Kernel k("emu:sm_80", 1);
  Value* pointer = k.b.CreateConstGEP1_32(k.b.getInt8Ty(), k.in(), 2);
  k.b.CreateStore(k.b.CreateAlignedLoad(k.b.getInt32Ty(), pointer, llvm::Align(4)), k.out());
  ExpectOnly(k.Run(), FindingKind::kMisaligned, "not a multiple of 4");
}

TEST(Findings, AsyncCopyThatWasNotWaitedFor) {
  for (uint64_t seed : {0, 1}) {
    for (bool waits : {false, true}) {
      Kernel k("emu:sm_80");
      k.device->CopyAsync(k.At(k.shared, k.thread), k.At(k.in(), k.thread), 4, nullptr);
      k.device->AsyncCommit();
      if (waits) k.device->AsyncWait(0);
      k.device->Barrier();
      k.Store(k.Load(k.shared, k.thread), k.out(), k.thread);
      const Report report = k.Run({5}, {.seed = seed});
      if (waits) {
        EXPECT_TRUE(report.findings.empty());
        EXPECT_EQ(k.output[0], 5u);
      } else {
        ExpectOnly(report, FindingKind::kAsyncPending, "has not been waited for");
        EXPECT_EQ(k.output[0], seed == 0 ? ~0u : 5u) << "even seeds land late";
      }
    }
  }
}

TEST(Findings, WaitedForButNoBarrier) {
  Kernel k("emu:sm_80");
  k.device->CopyAsync(k.At(k.shared, k.thread), k.At(k.in(), k.thread), 4, nullptr);
  k.device->AsyncCommit();
  k.device->AsyncWait(0);
  k.Store(k.Load(k.shared, k.b.CreateXor(k.thread, k.I32(1))), k.out(), k.thread);
  EXPECT_FALSE(k.Run().findings.empty());
}

TEST(Findings, BarrierThatSomeDoNotReach) {
  Kernel k("emu:sm_80");
  k.device->SetLocation(4);
  k.If(k.b.CreateICmpULT(k.thread, k.I32(32)), [&] { k.device->Barrier(); });
  const Report report = k.Run();
  EXPECT_FALSE(report.finished);
  ExpectOnly(report, FindingKind::kDivergence, "threads 0-31 wait for a barrier (statement 4); 32-63 ended");
}

TEST(Findings, DifferentBarriers) {
  Kernel k("emu:sm_80");
  k.If(k.b.CreateICmpULT(k.thread, k.I32(32)), [&] {
    k.device->Barrier();
    k.Store(k.I32(1), k.out(), k.thread);
  });
  k.If(k.b.CreateICmpUGE(k.thread, k.I32(32)), [&] { k.device->Barrier(); });
  ExpectOnly(k.Run(), FindingKind::kDivergence, "different barriers");
}

TEST(Findings, LanesApartAtAShuffle) {
  Kernel k("emu:sm_80", 32);
  k.If(k.b.CreateICmpULT(k.thread, k.I32(16)), [&] { k.Store(k.device->ShuffleXor(k.thread, 1), k.out(), k.thread); });
  k.device->Barrier();
  ExpectOnly(k.Run(), FindingKind::kDeadlock, "threads 0-15 wait for a shuffle (statement 0); 16-31 wait for a barrier");
}

TEST(Findings, NotUniform) {
  Kernel k("emu:gfx942");
  k.Store(k.device->Uniform(k.thread), k.out(), k.thread);
  ExpectOnly(k.Run(), FindingKind::kNotUniform, "another value than lane 0");
}

TEST(Load, RefusesBlocksThatTheTargetCannotHold) {
  Kernel k("emu:sm_80");
  const auto program = Program::Load(k.Compile(), false);
  ASSERT_TRUE(program);
  LaunchArgs launch{"kernel", {1, 1, 1}, 64, 167936, {0, 0, 0}};  // 164 KiB; an A100 gives a block 163
  EXPECT_THAT((*program)->Run(launch, {}, {}).error(), HasSubstr("167936 bytes of shared memory; a block of emu:sm_80 has at most"));
  launch.shared_bytes = 4096;
  launch.threads = 1025;
  EXPECT_THAT((*program)->Run(launch, {}, {}).error(), HasSubstr("1025 threads in a block; emu:sm_80 has at most 1024"));
  launch.entry = "other";
  EXPECT_THAT((*program)->Run(launch, {}, {}).error(), HasSubstr("no kernel \"other\""));
}

TEST(Load, AGridWithoutBlocksIsDoneAtOnce) {
  Kernel k("emu:sm_80");
  const auto program = Program::Load(k.Compile(), true);
  ASSERT_TRUE(program);
  const auto report = (*program)->Run({"kernel", {4, 0, 1}, 64, 4096, {0, 0, 0}}, {}, {});
  ASSERT_TRUE(report) << report.error();
  ExpectClean(*report);
}

TEST(Load, RefusesWhatIsNotForTheEmulator) {
  v1::Artifact artifact;
  artifact.set_target("cuda:sm_80");
  artifact.set_kind(v1::PTX);
  EXPECT_THAT(Program::Load(artifact, false).error(), HasSubstr("compiled for emu:sm_80"));
  artifact.set_target("emu:sm_80");
  artifact.set_kind(v1::EMULATOR);
  artifact.set_code("no bitcode");
  EXPECT_FALSE(Program::Load(artifact, false));
}

}  // namespace
}  // namespace kiln::emulator
