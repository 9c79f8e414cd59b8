// SPDX-License-Identifier: Apache-2.0
//
// wgmma between its start and its wait: operands in shared memory, results in registers.
#include <bit>

#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;

constexpr uint64_t kSeeds = 200;

const target::MmaInstruction& Row() {
  for (const target::MmaInstruction& row : target::MmaInstructions(**target::Find("emu:sm_90a"))) {
    if (row.IsByGroup() && row.n == 8 && row.a == ir::DType::kF16 && row.c == ir::DType::kF32) return row;
  }
  throw std::runtime_error("no wgmma of 64 × 8 × 16");
}

// Operands of ones: every element of a product of k = 16 is 16.
struct Products {
  Products() : k("emu:sm_90a", 128) {}

  void Fill(float value = 1) {
    const uint32_t half = value == 1 ? 0x3c003c00 : 0x40004000;
    for (int i = 0; i < 5; ++i) k.Store(k.b.getInt32(half), k.shared, k.b.CreateAdd(k.thread, k.I32(128 * i)));
  }
  // Core matrices of 8 rows of 16 bytes; the two of 16 k lie side by side.
  Value* Descriptor(uint32_t byte) {
    Value* address = k.b.CreatePtrToInt(k.Byte(k.shared, byte), k.b.getInt64Ty());
    Value* start = k.b.CreateLShr(k.b.CreateAnd(address, k.b.getInt64(0x3ffff)), k.b.getInt64(4));
    return k.b.CreateOr(start, k.b.getInt64(uint64_t{128 / 16} << 16 | uint64_t{256 / 16} << 32));
  }
  std::vector<Value*> Zeros() { return std::vector<Value*>(4, llvm::ConstantFP::get(k.b.getFloatTy(), 0)); }
  std::vector<Value*> Start(std::vector<Value*> c, bool clear = false) {
    Value *a[] = {Descriptor(0)}, *b[] = {Descriptor(2048)};
    return k.device->MmaGroup(Row(), a, b, c, clear, false, false);
  }
  void Write(std::vector<Value*> c) {
    for (size_t i = 0; i < 2; ++i) {
      k.Store(k.b.CreateBitCast(c[i], k.b.getInt32Ty()), k.out(), k.b.CreateAdd(k.b.CreateMul(k.thread, k.I32(2)), k.I32(int(i))));
    }
  }
  void ExpectAll(float value) {
    for (uint32_t word : k.output) ASSERT_EQ(std::bit_cast<float>(word), value);
  }
  Kernel k;
};

TEST(Products, RightOnesAreClean) {
  Products p;
  p.Fill();
  p.k.device->FenceAsyncProxy();
  p.k.device->Barrier();
  auto c = p.k.device->MmaWait(p.Start(p.Start(p.Zeros())), 0);
  p.k.device->Barrier();
  p.Fill(2);
  p.k.device->FenceAsyncProxy();
  p.k.device->Barrier();
  p.Write(p.k.device->MmaWait(p.Start(c), 0));
  ExpectClean(p.k.RunSeeds(0, kSeeds));
  p.ExpectAll(16 + 16 + 64);
}

TEST(Products, ClearCountsAsZero) {
  for (uint64_t seed : {0, 1}) {
    Products p;
    p.Fill();
    p.k.device->FenceAsyncProxy();
    p.k.device->Barrier();
    std::vector<Value*> seven(4, llvm::ConstantFP::get(p.k.b.getFloatTy(), 7));
    p.Write(p.k.device->MmaWait(p.Start(p.Start(seven), true), 0));
    ExpectClean(p.k.RunSeeds(seed, 1));
    p.ExpectAll(16);
  }
}

TEST(Products, OperandsWithoutFenceOrBarrier) {
  for (bool fence : {true, false}) {
    Products p;
    p.Fill();
    if (fence) p.k.device->FenceAsyncProxy();
    if (!fence) p.k.device->Barrier();
    p.Write(p.k.device->MmaWait(p.Start(p.Zeros()), 0));
    for (uint64_t seed : {0, 1}) {
      ExpectAmong(p.k.RunSeeds(seed, 1), fence ? FindingKind::kRace : FindingKind::kUnfenced, "wgmma of threads 0-127 reads");
    }
  }
}

TEST(Products, OperandsOverwrittenBeforeTheWait) {
  Products p;
  p.Fill();
  p.k.device->FenceAsyncProxy();
  p.k.device->Barrier();
  auto c = p.Start(p.Zeros());
  p.Fill(2);
  p.Write(p.k.device->MmaWait(c, 0));
  for (uint64_t seed : {0, 1}) ExpectAmong(p.k.RunSeeds(seed, 1), FindingKind::kAsyncPending, "which wgmma of threads 0-127 reads: its end");
}

// Which registers a thread touches between start and wait.
Report Touched(uint64_t seed, const std::function<void(Products&, std::vector<Value*>&)>& touch) {
  Products p;
  p.Fill();
  p.k.device->FenceAsyncProxy();
  p.k.device->Barrier();
  auto c = p.Start(p.Zeros());
  touch(p, c);
  return p.k.RunSeeds(seed, 1);
}

TEST(Products, RegistersInFlight) {
  for (uint64_t seed : {0, 1}) {
    ExpectAmong(Touched(seed,
                        [&](Products& p, auto& c) {
                          c[2] = llvm::ConstantFP::get(p.k.b.getFloatTy(), 1);
                          p.Write(p.k.device->MmaWait(c, 0));
                        }),
                FindingKind::kInFlight, "changed a register, which wgmma writes");
    ExpectAmong(Touched(seed,
                        [&](Products& p, auto& c) {
                          p.k.device->SetLocation(3);
                          p.Write(c);
                        }),
                FindingKind::kInFlight, "never waited for a product");
    ExpectAmong(Touched(seed,
                        [&](Products& p, auto& c) {
                          Value* early = p.k.b.CreateFMul(c[1], llvm::ConstantFP::get(p.k.b.getFloatTy(), 2));
                          auto done = p.k.device->MmaWait(c, 0);
                          done[0] = early;
                          p.Write(done);
                        }),
                FindingKind::kInFlight, "reads a register, which wgmma writes");
  }
}

// Registers of a fragment with number 7, 2 to 5 of which are a product's a, that get a value before and after the wait.
TEST(Products, FragmentsInFlight) {
  for (const int changed : {1, 2, 5, 6, -3}) {
    Products p;
    p.Fill();
    p.k.device->FenceAsyncProxy();
    p.k.device->Barrier();
    const std::vector<Value*> a(4, p.k.b.getInt32(0x3c003c00));
    Value* b[] = {p.Descriptor(2048)};
    p.k.device->SetLocation(4);
    auto c = p.k.device->MmaGroup(Row(), a, b, p.Zeros(), false, false, false);
    p.k.device->UseRegisters(7, 2, 4);
    p.k.device->AssignRegister(8, 3, a[0]);
    p.k.device->SetLocation(5);
    if (changed > 0) p.k.device->AssignRegister(7, changed, a[0]);
    c = p.k.device->MmaWait(c, 0);
    if (changed < 0) p.k.device->AssignRegister(7, -changed, a[0]);
    p.Write(c);
    const Report report = p.k.RunSeeds(0, 2);
    if (changed != 2 && changed != 5) {
      ExpectClean(report);
      continue;
    }
    ExpectAmong(report, FindingKind::kInFlight, "changes register " + std::to_string(changed) + " of %b7, which wgmma uses");
    EXPECT_EQ(report.findings[0].location, 5u);
    EXPECT_EQ(report.findings[0].other_location, 4u);
    EXPECT_EQ(report.findings[0].place.elements.at(0).buffer, "%b7");
  }
}

// What a product leaves in its accumulator is no change of it; anything else is.
TEST(Products, AccumulatorsInFlight) {
  for (const bool changes : {false, true}) {
    Products p;
    p.Fill();
    p.k.device->FenceAsyncProxy();
    p.k.device->Barrier();
    auto c = p.Start(p.Zeros());
    p.k.device->UseRegisters(9, 0, 4);
    for (int r = 0; r < 4; ++r) p.k.device->AssignRegister(9, r, changes ? p.Zeros()[0] : c[size_t(r)]);
    p.Write(p.k.device->MmaWait(c, 0));
    if (changes) {
      ExpectAmong(p.k.RunSeeds(0, 1), FindingKind::kInFlight, "changes register 0 of %b9");
    } else {
      ExpectClean(p.k.RunSeeds(0, 2));
    }
  }
}

}  // namespace
}  // namespace kiln::emulator
