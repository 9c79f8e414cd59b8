// SPDX-License-Identifier: Apache-2.0
//
// Launches whose time is over before their end.
#include "compiler/emulator/test_kernel.h"

#include <chrono>

namespace kiln::emulator {
namespace {

using Clock = std::chrono::steady_clock;
using ::testing::HasSubstr;

// Statement 7: until in[0] is not 0.
void Spin(Kernel& k) {
  k.device->SetLocation(7);
  auto* loop = llvm::BasicBlock::Create(k.b.getContext(), "spin", k.kernel);
  auto* end = llvm::BasicBlock::Create(k.b.getContext(), "end", k.kernel);
  k.b.CreateBr(loop);
  k.b.SetInsertPoint(loop);
  k.b.CreateCondBr(k.Is(k.Load(k.in(), k.I32(0)), 0), loop, end);
  k.b.SetInsertPoint(end);
}

// Compiled before its time is measured.
Report RunForASecond(Kernel& k, bool check, uint32_t blocks = 1, uint32_t threads = 1) {
  EXPECT_TRUE(k.Run({1}, {}, check, blocks).finished);
  return k.Run({0}, {.threads = threads, .until = Clock::now() + std::chrono::seconds(1)}, check, blocks);
}

TEST(Timeout, TellsWhatWasFoundAndWhereTheThreadsAre) {
  for (const bool check : {false, true}) {
    Kernel k("emu:sm_90a");
    k.device->SetLocation(3);
    k.Store(k.thread, k.shared, k.I32(0));
    k.device->SetLocation(5);
    k.device->Barrier();
    Spin(k);
    const Report report = RunForASecond(k, check);
    EXPECT_FALSE(report.finished);
    ASSERT_EQ(report.findings.size(), check ? 2u : 1u);
    const Finding& timeout = report.findings[0];
    EXPECT_EQ(timeout.kind, FindingKind::kTimeout);
    EXPECT_EQ(timeout.location, 7u);
    EXPECT_THAT(timeout.message, HasSubstr(std::to_string(timeout.thread) + " runs (statement 7)"));
    EXPECT_THAT(timeout.message, HasSubstr(" passed (statement 5)"));
    EXPECT_EQ(report.findings.back().kind, check ? FindingKind::kRace : FindingKind::kTimeout);
    ExpectClean(k.Run({1}, {}, false));
  }
}

// The second block waits until the first has added, which it never does.
TEST(Timeout, EndsBlocksThatWaitForTheirTurn) {
  Kernel k("emu:sm_80", 32);
  k.If(k.Is(k.device->BlockIndex(0), 0), [&] { Spin(k); });
  k.device->SetLocation(8);
  k.device->Atomic({llvm_ir::AtomicOp::kAdd, ir::DType::kF32}, k.out(), llvm::ConstantFP::get(k.b.getFloatTy(), 1.0));
  const Report report = RunForASecond(k, false, 2, 2);
  EXPECT_FALSE(report.finished);
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].kind, FindingKind::kTimeout);
  EXPECT_EQ(report.findings[0].location, 7u);
  EXPECT_EQ(report.findings[0].block[0], 0u);
}

TEST(Timeout, EndsALaunchBetweenItsBlocks) {
  Kernel k("emu:sm_80");
  k.Store(k.thread, k.out(), k.thread);
  for (const bool check : {false, true}) {
    const Report late = k.Run({}, {.until = Clock::time_point::min()}, check, 4);
    EXPECT_FALSE(late.finished);
    ExpectOnly(late, FindingKind::kTimeout, "threads 0-63 have not begun");
    EXPECT_TRUE(k.Run({}, {.until = Clock::now() + std::chrono::hours(1)}, check, 1).finished);
  }
}

}  // namespace
}  // namespace kiln::emulator
