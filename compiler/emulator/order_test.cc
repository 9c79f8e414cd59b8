// SPDX-License-Identifier: Apache-2.0
//
// The same seed gives the same run: the same bits and the same report, however many threads of the host run the blocks.
#include <set>

#include "compiler/emulator/names.h"
#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;

constexpr uint32_t kBlocks = 24;

Value* Constant(Kernel& k, double value) { return llvm::ConstantFP::get(k.b.getFloatTy(), value); }

std::string Text(const Report& report) {
  std::string text = report.finished ? "finished" : "given up";
  for (const Finding& finding : report.findings) text += "\n" + Describe(finding, {});
  return text;
}

// What came out under this seed, on 1 to 8 threads of the host, each several times; it must be one.
std::set<std::string> Outcomes(Kernel& k, uint64_t seed, bool check) {
  std::set<std::string> outcomes;
  for (const uint32_t threads : {1, 2, 4, 8}) {
    for (int time = 0; time < 4; ++time) {
      const std::string text = Text(k.Run({}, {.seed = seed, .threads = threads}, check, kBlocks));
      // What a launch leaves that was given up is nobody's result.
      if (text.starts_with("finished")) outcomes.insert(text + std::string(reinterpret_cast<const char*>(k.output.data()), 4 * k.output.size()));
      else outcomes.insert(text);
    }
  }
  return outcomes;
}

// How many different ones ten seeds give, each the same on any number of threads.
size_t OutcomesOfSeeds(Kernel& k, bool check) {
  std::set<std::string> all;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::set<std::string> outcomes = Outcomes(k, seed, check);
    EXPECT_EQ(outcomes.size(), 1u) << "seed " << seed << ": " << *outcomes.begin();
    all.insert(outcomes.begin(), outcomes.end());
  }
  return all.size();
}

// Sums of numbers of very different sizes round as they are ordered.
TEST(Orders, OfAtomicSumsOfFloats) {
  for (const bool check : {false, true}) {
    Kernel k("emu:sm_80", 32);
    Value* block = k.b.CreateUIToFP(k.device->BlockIndex(0), k.b.getFloatTy());
    Value* lane = k.b.CreateUIToFP(k.thread, k.b.getFloatTy());
    Value* small = k.b.CreateFAdd(k.b.CreateFMul(block, Constant(k, 1.37e-3)), lane);
    Value* sum = k.b.CreateFAdd(small, Constant(k, 0.3));
    k.device->Atomic({llvm_ir::AtomicOp::kAdd, ir::DType::kF32}, k.out(), k.b.CreateFDiv(Constant(k, 1), sum));
    EXPECT_GT(OutcomesOfSeeds(k, check), 3u);
  }
}

TEST(Orders, OfTensorReductions) {
  Kernel k("emu:sm_90a", 32);
  k.spec = {.type = TensorType::kF32, .rank = 1, .dims = {32}, .box = {32}};
  k.map_out = true;
  Value* block = k.b.CreateUIToFP(k.device->BlockIndex(0), k.b.getFloatTy());
  Value* part = k.b.CreateFDiv(Constant(k, 1), k.b.CreateFAdd(block, Constant(k, 0.7)));
  k.Store(k.b.CreateBitCast(part, k.b.getInt32Ty()), k.shared, k.thread);
  k.device->FenceAsyncProxy();
  k.device->Barrier();
  k.If(k.Is(k.thread, 0), [&] {
    Value* at[] = {k.I32(0)};
    k.device->TensorReduce(llvm_ir::AtomicOp::kAdd, k.map(), at, k.shared);
    k.device->TensorStoreCommit();
    k.device->TensorStoreWait(0, false);
  });
  for (const bool check : {false, true}) EXPECT_GT(OutcomesOfSeeds(k, check), 1u);
}

// Blocks that write one word and read what others wrote: who is reported, and what is left there.
TEST(Orders, OfBlocksThatRace) {
  Kernel k("emu:sm_80", 32);
  k.device->SetLocation(3);
  k.Store(k.device->BlockIndex(0), k.out(), k.thread);
  k.device->SetLocation(4);
  Value* next = k.b.CreateAnd(k.b.CreateAdd(k.thread, k.device->BlockIndex(0)), k.I32(31));
  k.Store(k.Load(k.out(), next), k.out(), k.b.CreateAdd(k.thread, k.I32(64)));
  for (const bool check : {false, true}) EXPECT_GT(OutcomesOfSeeds(k, check), 3u);
}

// One block of many breaks a rule and ends the launch; others have found something else.
TEST(Orders, OfBlocksThatGiveUp) {
  for (const bool check : {false, true}) {
    Kernel k("emu:sm_80", 64);
    Value* block = k.device->BlockIndex(0);
    k.device->SetLocation(3);
    k.Store(k.Load(k.shared, k.thread), k.out(), k.b.CreateAdd(k.thread, k.b.CreateMul(k.b.CreateAnd(block, k.I32(1)), k.I32(64))));
    k.device->SetLocation(5);
    k.If(k.b.CreateAnd(k.b.CreateICmpUGE(block, k.I32(7)), k.Below(k.thread, 32)), [&] { k.device->Barrier(); });
    EXPECT_GE(OutcomesOfSeeds(k, check), 1u);
  }
}

// Blocks that have nothing to do with each other run at once.
TEST(Orders, BlocksOfCorrectKernelsRunInParallel) {
  Kernel k("emu:sm_80", 64);
  k.Store(k.thread, k.shared, k.thread);
  k.device->Barrier();
  k.If(k.Is(k.device->BlockIndex(0), 0), [&] { k.Store(k.Load(k.shared, k.b.CreateXor(k.thread, k.I32(5))), k.out(), k.thread); });
  EXPECT_EQ(OutcomesOfSeeds(k, true), 1u);
}

}  // namespace
}  // namespace kiln::emulator
