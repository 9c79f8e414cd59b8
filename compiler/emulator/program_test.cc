// SPDX-License-Identifier: Apache-2.0
//
// Threads written by hand: what each instruction does, and what is reported of threads that break the rules.
#include <set>

#include "compiler/emulator/test_kernel.h"
#include "compiler/growth_testing.h"

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
  const std::pair<WarpReduceOp, uint32_t> expected[] = {{WarpReduceOp::kAdd, 32 * 31 / 2 - 32 * 10},
                                                        {WarpReduceOp::kMin, uint32_t(-10)},
                                                        {WarpReduceOp::kMax, 21},
                                                        {WarpReduceOp::kAnd, 0},
                                                        {WarpReduceOp::kOr, ~0u},
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
  k.device->Atomic({llvm_ir::AtomicOp::kAdd, ir::DType::kI32}, k.out(), k.I32(2));
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

// By the threads of one block in one statement; others race, and so do blocks, whatever they write.
TEST(Findings, SameValueByManyIsNoRace) {
  for (const bool one : {false, true}) {
    Kernel k("emu:sm_80");
    k.device->SetLocation(1);
    k.If(k.Below(k.thread, 32), [&] { k.Store(k.I32(7), k.shared, k.I32(0)); });
    k.device->AsyncCommit();  // no one store for both
    k.device->SetLocation(one ? 1 : 2);
    k.If(k.b.CreateNot(k.Below(k.thread, 32)), [&] { k.Store(k.I32(7), k.shared, k.I32(0)); });
    k.device->Barrier();
    k.device->SetLocation(3);
    k.If(k.Is(k.thread, 0), [&] { k.Store(k.Load(k.shared, k.I32(0)), k.out(), k.I32(0)); });
    EXPECT_EQ(k.Run().findings.empty(), one);
    if (one) ExpectOnly(k.Run({}, {}, true, 2), FindingKind::kRace, "nothing orders blocks of one launch");
  }
}

TEST(Findings, BlocksThatWriteOneElement) {
  Kernel k("emu:sm_80");
  k.Store(k.device->BlockIndex(0), k.out(), k.thread);
  ExpectOnly(k.Run({}, {}, true, 2), FindingKind::kRace, "nothing orders blocks of one launch");
}

// The last to read is the writer itself, after the other block, thread or, where clocks order them, thread.
TEST(Findings, AReaderBeforeTheWriterWhoReadToo) {
  for (const char* target : {"emu:sm_80", "emu:sm_90a"}) {
    for (const uint32_t blocks : {1, 2}) {
      Kernel k(target);
      Value* self = blocks == 1 ? k.thread : k.device->BlockIndex(0);
      if (std::string_view(target) == "emu:sm_90a") k.device->FenceAsyncProxy();
      const auto act = [&] {
        k.device->SetLocation(3);
        Value* read = k.Load(k.out(), k.I32(0));
        Value* own = k.b.CreateAdd(k.b.CreateMul(k.device->BlockIndex(0), k.I32(64)), k.thread);
        k.Store(read, k.out(), k.b.CreateAdd(own, k.I32(64)));
        k.device->SetLocation(4);
        k.If(k.Is(self, blocks == 1 ? 40 : 1), [&] { k.Store(k.b.CreateAdd(read, k.I32(1)), k.out(), k.I32(0)); });
      };
      blocks == 1 ? act() : k.If(k.Is(k.thread, 40), act);
      // Under one of the seeds the writer comes last.
      bool found = false;
      for (uint64_t seed = 0; seed < 40 && !found; ++seed) {
        for (const Finding& finding : k.Run({}, {.seed = seed}, true, blocks).findings) {
          EXPECT_EQ(finding.kind, FindingKind::kRace);
          if (finding.location != 4) continue;
          EXPECT_EQ(finding.other_location, 3u);
          EXPECT_EQ(finding.thread, 40u);
          EXPECT_THAT(finding.message, ::testing::Not(::testing::ContainsRegex("thread 40 read")));
          EXPECT_THAT(finding.message, ::testing::HasSubstr(blocks == 1 ? " read" : "of block (0, 0, 0) read"));
          found = true;
        }
      }
      EXPECT_TRUE(found) << target << ", " << blocks << " blocks";
    }
  }
}

// The last of several atomics is the reader's own.
TEST(Findings, TheElementOfALongAccessThatClashes) {
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    Kernel k("emu:sm_80", 32);
    k.Name("b0", 0, 4);
    k.If(k.Is(k.thread, 0),
         [&] { k.b.CreateAlignedStore(llvm::ConstantInt::get(llvm::FixedVectorType::get(k.b.getInt32Ty(), 4), 7), k.shared, llvm::Align(16)); });
    k.If(k.Is(k.thread, 5), [&] { k.Store(k.thread, k.shared, k.I32(2)); });
    const Report report = k.Run({}, {.seed = seed});
    ASSERT_EQ(report.findings.size(), 1u);
    EXPECT_EQ(report.findings[0].place.address, 8u);
    EXPECT_EQ(report.findings[0].place.elements.at(0).number, 2u);
  }
}

TEST(Findings, AnAtomicBeforeTheReadersOwn) {
  for (const char* target : {"emu:sm_80", "emu:sm_90a"}) {
    for (const uint32_t blocks : {1, 2}) {
      Kernel k(target);
      if (std::string_view(target) == "emu:sm_90a") k.device->FenceAsyncProxy();
      k.device->SetLocation(3);
      Value* adds = blocks == 1 ? k.b.CreateOr(k.Is(k.thread, 4), k.Is(k.thread, 40)) : k.Is(k.thread, 40);
      k.If(adds, [&] { k.device->Atomic({llvm_ir::AtomicOp::kAdd, ir::DType::kI32}, k.out(), k.I32(2)); });
      k.device->SetLocation(4);
      k.If(k.Is(k.thread, 40), [&] { k.Store(k.Load(k.out(), k.I32(0)), k.out(), k.b.CreateAdd(k.device->BlockIndex(0), k.I32(8))); });
      for (uint64_t seed = 0; seed < 10; ++seed) {
        const Report report = k.Run({}, {.seed = seed}, true, blocks);
        ASSERT_FALSE(report.findings.empty()) << target << ", " << blocks << " blocks, seed " << seed;
        const Finding& finding = report.findings[0];
        EXPECT_EQ(finding.location + finding.other_location, 3u + 4u);
      }
    }
  }
}

TEST(Findings, AnAtomicAndAnOrdinaryWrite) {
  Kernel k("emu:sm_80");
  k.device->Atomic({llvm_ir::AtomicOp::kMax, ir::DType::kI32}, k.out(), k.I32(2));
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
      k.device->CopyAsync(k.At(k.shared, k.thread), k.At(k.in(), k.thread), 4, k.I32(4));
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
  k.device->CopyAsync(k.At(k.shared, k.thread), k.At(k.in(), k.thread), 4, k.I32(4));
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

// Statements that an unrolled loop becomes stand in one block.
TEST(Load, TakesTimeInProportionToALongBlock) {
  for (const bool check : {false, true}) {
    const auto load = [&](int length) {
      Kernel k("emu:sm_80");
      Value* sum = k.thread;
      for (int i = 0; i < length; ++i) sum = k.b.CreateXor(k.b.CreateMul(sum, k.Load(k.shared, k.I32(uint32_t(i) % 1024))), k.I32(uint32_t(i)));
      k.Store(sum, k.out(), k.thread);
      const v1::Artifact artifact = k.Compile();
      return compiler::ProcessorSeconds([&] { EXPECT_TRUE(Program::Load(artifact, check)); });
    };
    const compiler::Growth growth = compiler::MeasureGrowth(2000, load);
    EXPECT_LT(growth.ratio(), compiler::kBar) << growth.few << " s, then " << growth.many << " s";
  }
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
