// SPDX-License-Identifier: Apache-2.0
#include "compiler/target/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "compiler/target/closest.h"
#include "compiler/target/instructions.h"

namespace kiln::target {
namespace {

using ::testing::HasSubstr;

TEST(Find, AcceptsEverySpelling) {
  for (const Target& target : All()) {
    EXPECT_EQ(Find(target.name).value(), &target);
    const bool cuda = target.family == Family::kNvptx;
    const std::string spelled = (cuda ? "cuda -arch=" : "hip -mcpu=") + std::string(target.arch);
    EXPECT_EQ(Find(spelled).value(), &target) << spelled;
  }
  EXPECT_EQ(Find(" hip  -mcpu=gfx942 ").value()->arch, "gfx942");
}

TEST(Find, EmulatedTargetsAreTheSameInAllButTheName) {
  ASSERT_EQ(Emulated().size(), All().size());
  for (size_t i = 0; i < All().size(); ++i) {
    const Target &real = All()[i], &emulated = Emulated()[i];
    EXPECT_EQ(Find("emu:" + std::string(real.arch)).value(), &emulated);
    EXPECT_TRUE(emulated.emulated);
    EXPECT_FALSE(real.emulated);
    EXPECT_EQ(emulated.features, real.features);
    EXPECT_EQ(emulated.max_shared_bytes, real.max_shared_bytes);
    EXPECT_EQ(emulated.registers_per_multiprocessor, real.registers_per_multiprocessor);
    EXPECT_EQ(&emulated.costs, &real.costs);
    EXPECT_EQ(MmaInstructions(emulated).data(), MmaInstructions(real).data());
  }
  EXPECT_FALSE(Find("emu:sm_1"));
}

TEST(Find, NamesTheNearestTarget) {
  EXPECT_THAT(Find("cuda:sm90a").error(), HasSubstr("did you mean \"cuda:sm_90a\"?"));
  EXPECT_THAT(Find("hip:gfx943").error(), HasSubstr("did you mean \"hip:gfx942\"?"));
  const std::string far = Find(std::string(100000, 'x')).error();
  EXPECT_THAT(far, HasSubstr("hip:gfx1201"));
  EXPECT_THAT(far, ::testing::Not(HasSubstr("did you mean")));
  EXPECT_LT(far.size(), 1000u);
  EXPECT_FALSE(Find("cuda -arch=sm_90a -x=1"));
  EXPECT_FALSE(Find(""));
}

TEST(Closest, IsWithinSomeEdits) {
  constexpr std::array<std::string_view, 3> kNames = {"compile", "cache", "run"};
  EXPECT_EQ(Closest("compil", kNames, 1), "compile");
  EXPECT_EQ(Closest("cahce", kNames, 2), "cache");
  EXPECT_EQ(Closest("cahce", kNames, 1), std::nullopt);
  EXPECT_EQ(Closest("", kNames, 2), std::nullopt);
  EXPECT_EQ(Closest("run", {}, 9), std::nullopt);
  EXPECT_EQ(Closest(std::string(1'000'000, 'x'), kNames, 3), std::nullopt);
}

class Instructions : public ::testing::TestWithParam<const Target*> {};

TEST_P(Instructions, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const MmaInstruction& row : MmaInstructions(*GetParam())) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(FindMma(*GetParam(), row.name), &row);
    EXPECT_TRUE(GetParam()->Has(row.required));
    EXPECT_GT(row.cycles, 0);
  }
  EXPECT_FALSE(names.empty());
  EXPECT_EQ(FindMma(*GetParam(), "mma.none"), nullptr);
}

// Every element has one place in each replica and the places are exactly the warp's lanes times the registers.
void ExpectCovers(const ir::Layout& layout, int rows, int columns, uint32_t warp) {
  EXPECT_EQ(layout.Extent(0), rows);
  EXPECT_EQ(layout.Extent(1), columns);
  EXPECT_TRUE(layout.IsInjective());
  EXPECT_EQ(layout.Threads(), warp);
  const int64_t copies = layout.IsReplicated() ? 2 : 1;
  EXPECT_EQ(layout.Threads() * layout.Registers(), int64_t{rows} * columns * copies);
}

TEST_P(Instructions, FragmentsCoverTheirMatrices) {
  for (const MmaInstruction& row : MmaInstructions(*GetParam())) {
    SCOPED_TRACE(row.name);
    const uint32_t lanes = GetParam()->warp_size * uint32_t(row.Warps());
    ExpectCovers(row.c_layout, row.m, row.n, lanes);
    if (row.ReadsA()) {
      ExpectCovers(row.a_layout, row.m, row.KeptK(), lanes);
      EXPECT_EQ(row.a_layout.Registers() * ir::Bits(row.a) % 32, 0);
    }
    if (row.ReadsB()) {
      ExpectCovers(row.b_layout, row.n, row.k, lanes);
      EXPECT_EQ(row.b_layout.Registers() * ir::Bits(row.b) % 32, 0);
    }
    EXPECT_TRUE(row.ReadsA() || row.ReadsB());
    EXPECT_EQ(row.ReadsA() && row.ReadsB(), !row.reads_shared);
  }
}

// Four bits for each group of a sparse row lie in one lane of those that a selector names, two side by side.
TEST_P(Instructions, MetadataCoverTheirRows) {
  for (const MmaInstruction& row : MmaInstructions(*GetParam())) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(row.IsSparse(), row.name.find(".sp.") != row.name.npos || row.name.starts_with("smfmac."));
    if (!row.IsSparse()) continue;
    const ir::Layout& layout = row.metadata_layout;
    EXPECT_EQ(layout.Extent(1) * row.MetadataBits(), row.k / ir::Sparsity(row.a).group * ir::Sparsity::kBits);
    EXPECT_LE(layout.Registers() * row.MetadataBits(), 32);
    std::vector<ir::Digit> others;
    if (row.selectors > 1) others.push_back({row.selectors, ir::Place::kThread, 2});
    ExpectCovers(ir::Layout(layout.dims(), others), row.m, int(layout.Extent(1)), GetParam()->warp_size * uint32_t(row.Warps()));
  }
}

// PTX ISA, wgmma: asynchronous, and fp8's sums keep fewer bits than f32. Of a group of warps nothing else is known.
TEST_P(Instructions, GroupsComputeAsynchronouslyFromSharedMemory) {
  for (const MmaInstruction& row : MmaInstructions(*GetParam())) {
    SCOPED_TRACE(row.name);
    EXPECT_FALSE(row.IsScalar());
    EXPECT_EQ(row.IsByGroup(), row.name.starts_with("wgmma."));
    EXPECT_EQ(row.reads_shared, row.IsByGroup());
    EXPECT_EQ(row.in_flight, row.IsByGroup());
    EXPECT_EQ(row.short_sums, row.IsByGroup() && row.c == ir::DType::kF32 && ir::Bits(row.a) == 8);
    EXPECT_EQ(row.Warps(), row.IsByGroup() ? 4 : 1);
  }
}

// Each warp of a group holds 16 of its 64 rows as mma.sync does: its fragments are a part of the group's.
TEST_P(Instructions, EachWarpComputesItsRows) {
  for (const MmaInstruction& row : MmaInstructions(*GetParam())) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(row.each_warp != nullptr, row.IsByGroup() && !row.IsSparse() && ir::Bits(row.a) == 16);
    if (row.each_warp == nullptr) continue;
    const MmaInstruction hardware = Unswapped(row);
    const MmaInstruction& each = *row.each_warp;
    EXPECT_EQ(FindMma(*GetParam(), each.name), &each);
    EXPECT_EQ(std::tuple(each.a, each.b, each.c, each.k, each.m * 4), std::tuple(row.a, row.b, row.c, row.k, hardware.m));
    for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(hardware.a_layout.ThreadPart(lane), each.a_layout.ThreadPart(lane));
    for (int i = 0; i < each.a_layout.Registers(); ++i) EXPECT_EQ(hardware.a_layout.RegisterPart(i), each.a_layout.RegisterPart(i));
  }
}

// A swapped row is the hardware's with its operands exchanged, and nothing else.
TEST_P(Instructions, SwappedRowsAreTheHardwaresExchanged) {
  for (const MmaInstruction& row : MmaInstructions(*GetParam())) {
    if (!row.swapped) continue;
    SCOPED_TRACE(row.name);
    const MmaInstruction hardware = Unswapped(row);
    EXPECT_FALSE(hardware.swapped);
    EXPECT_EQ(std::tuple(hardware.m, hardware.n, hardware.a, hardware.b), std::tuple(row.n, row.m, row.b, row.a));
    EXPECT_TRUE(hardware.a_layout == row.b_layout);
    const MmaInstruction* plain = FindMma(*GetParam(), row.name.substr(0, row.name.rfind('.')));
    ASSERT_NE(plain, nullptr);
    EXPECT_TRUE(hardware.c_layout == plain->c_layout);
    EXPECT_EQ(hardware.intrinsic, plain->intrinsic);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTargets, Instructions, ::testing::ValuesIn([] {
                           std::vector<const Target*> targets;
                           for (const Target& target : All()) targets.push_back(&target);
                           return targets;
                         }()),
                         [](const auto& info) { return std::string(info.param->arch); });

TEST(Instructions, ScalarRowsAreOfOneThread) {
  for (const MmaInstruction* row : {&Fma(), &Dp4a()}) {
    EXPECT_TRUE(row->IsScalar() && !row->IsByGroup() && !row->ReadsA() && !row->ReadsB()) << row->name;
    EXPECT_EQ(row->cycles, 0);
  }
  EXPECT_EQ(Fma().k, 1);
  EXPECT_EQ(Dp4a().k, 4);
}

// CUDA C++ Programming Guide, technical specifications; AMD's ISA documents: 512 registers of 64 lanes in four SIMDs, 1536 of 32 in two.
TEST(Targets, RegistersOfAMultiprocessor) {
  for (const Target& target : All()) {
    const uint32_t amd = target.warp_size == 64 ? 512 * 64 * 4 : 1536 * 32 * 2;
    EXPECT_EQ(target.registers_per_multiprocessor, target.family == Family::kNvptx ? 65536 : amd) << target.name;
    EXPECT_EQ(target.MaxClusterBlocks(), target.Has(Feature::kTma) ? 8 : 1) << target.name;
  }
}

const MmaInstruction& Row(std::string_view target, std::string_view name) {
  const MmaInstruction* row = FindMma(**Find(target), name);
  EXPECT_NE(row, nullptr) << target << " " << name;
  return *row;
}

void ExpectAt(const ir::Layout& layout, int64_t thread, int64_t reg, int64_t row, int64_t column) {
  const ir::Indices t = layout.ThreadPart(thread), r = layout.RegisterPart(reg);
  EXPECT_EQ(t[0] + r[0], row) << "thread " << thread << " register " << reg;
  EXPECT_EQ(t[1] + r[1], column) << "thread " << thread << " register " << reg;
}

// PTX ISA 9.7.14.5.8, "Matrix Fragments for mma.m16n8k16 with floating point type".
TEST(Fragments, Mma16816) {
  const MmaInstruction& row = Row("cuda:sm_80", "mma.m16n8k16.f32.f16");
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const int r = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
      const int k = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      ExpectAt(row.a_layout, lane, i, r, k);
    }
    for (int i = 0; i < 4; ++i) ExpectAt(row.b_layout, lane, i, group, in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0));
    for (int i = 0; i < 4; ++i) ExpectAt(row.c_layout, lane, i, i < 2 ? group : group + 8, in_group * 2 + (i & 1));
  }
}

// PTX ISA 9.7.14.5.11, m16n8k32 of 8-bit types; 9.7.14.5.7, m16n8k8 of .tf32; 9.7.14.5.3, m8n8k16.
TEST(Fragments, MmaOfOtherWidths) {
  const MmaInstruction& s8 = Row("cuda:sm_89", "mma.m16n8k32.s32.s8");
  const MmaInstruction& fp8 = Row("cuda:sm_89", "mma.m16n8k32.f32.e4m3.e5m2");
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 16; ++i) {
      const int r = (i < 4 || (i >= 8 && i < 12)) ? lane / 4 : lane / 4 + 8;
      const int k = lane % 4 * 4 + (i & 3) + (i >= 8 ? 16 : 0);
      ExpectAt(s8.a_layout, lane, i, r, k);
      ExpectAt(fp8.a_layout, lane, i, r, k);
    }
    for (int i = 0; i < 8; ++i) ExpectAt(s8.b_layout, lane, i, lane / 4, lane % 4 * 4 + (i & 3) + (i >= 4 ? 16 : 0));
  }
  const MmaInstruction& tf32 = Row("cuda:sm_80", "mma.m16n8k8.f32.tf32");
  for (int i = 0; i < 4; ++i) ExpectAt(tf32.a_layout, 13, i, i % 2 == 0 ? 3 : 11, i < 2 ? 1 : 5);
  const MmaInstruction& turing = Row("cuda:sm_75", "mma.m8n8k16.s32.s8");
  for (int i = 0; i < 4; ++i) ExpectAt(turing.a_layout, 13, i, 3, 4 + i);
  for (int i = 0; i < 2; ++i) ExpectAt(turing.c_layout, 13, i, 3, 2 + i);
}

// PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16" and "…k32".
TEST(Fragments, Wgmma) {
  const MmaInstruction& f16 = Row("cuda:sm_90a", "wgmma.m64n128k16.f32.f16");
  const MmaInstruction& fp8 = Row("cuda:sm_90a", "wgmma.m64n64k32.f32.e4m3");
  for (int thread = 0; thread < 128; ++thread) {
    const int row = 16 * (thread / 32) + thread % 32 / 4, in_group = thread % 4;
    for (int i = 0; i < 64; ++i) ExpectAt(f16.c_layout, thread, i, row + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * in_group + i % 2);
    for (int i = 0; i < 8; ++i) ExpectAt(f16.a_layout, thread, i, row + 8 * (i / 2 % 2), 2 * in_group + i % 2 + 8 * (i / 4));
    for (int i = 0; i < 16; ++i) ExpectAt(fp8.a_layout, thread, i, row + 8 * (i / 4 % 2), 4 * in_group + i % 4 + 16 * (i / 8));
  }
  EXPECT_EQ(FindMma(**Find("cuda:sm_90a"), "wgmma.m64n40k32.s32.s8"), nullptr);
  EXPECT_EQ(FindMma(**Find("cuda:sm_90"), "wgmma.m64n128k16.f32.f16"), nullptr);
}

TEST(Fragments, Mfma) {
  const MmaInstruction& wide = Row("hip:gfx942", "mfma.32x32x8.f32.f16");
  const MmaInstruction& small = Row("hip:gfx942", "mfma.16x16x32.f32.e4m3fnuz");
  for (int lane = 0; lane < 64; ++lane) {
    for (int i = 0; i < 4; ++i) ExpectAt(wide.a_layout, lane, i, lane % 32, 4 * (lane / 32) + i);
    for (int i = 0; i < 16; ++i) ExpectAt(wide.c_layout, lane, i, 8 * (i / 4) + 4 * (lane / 32) + i % 4, lane % 32);
    for (int i = 0; i < 8; ++i) ExpectAt(small.b_layout, lane, i, lane % 16, 8 * (lane / 16) + i);
    for (int i = 0; i < 4; ++i) ExpectAt(small.c_layout, lane, i, 4 * (lane / 16) + i, lane % 16);
  }
}

TEST(Fragments, Wmma) {
  const MmaInstruction& rdna3 = Row("hip:gfx1100", "wmma.16x16x16.f32.f16");
  const MmaInstruction& rdna4 = Row("hip:gfx1201", "wmma.16x16x16.f32.f16");
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 16; ++i) ExpectAt(rdna3.a_layout, lane, i, lane % 16, i);
    for (int i = 0; i < 8; ++i) ExpectAt(rdna3.c_layout, lane, i, 2 * i + lane / 16, lane % 16);
    for (int i = 0; i < 8; ++i) ExpectAt(rdna4.c_layout, lane, i, 8 * (lane / 16) + i, lane % 16);
  }
}

TEST(Instructions, EmulatedFp8CostsMore) {
  const std::string_view name = "mma.m16n8k32.f32.e4m3";
  EXPECT_GT(Row("cuda:sm_90a", name).cycles, 2 * Row("cuda:sm_89", name).cycles);
  EXPECT_EQ(FindMma(**Find("cuda:sm_80"), name), nullptr);
}

TEST(Instructions, RowsFollowTheArchitecture) {
  EXPECT_EQ(FindMma(**Find("hip:gfx942"), "mfma.32x32x8.s32.s8"), nullptr);
  EXPECT_NE(FindMma(**Find("hip:gfx90a"), "mfma.32x32x8.s32.s8"), nullptr);
  EXPECT_EQ(FindMma(**Find("hip:gfx950"), "mfma.16x16x8.f32.tf32"), nullptr);
  EXPECT_EQ(FindMma(**Find("hip:gfx950"), "mfma.16x16x32.f32.e4m3fnuz"), nullptr);
  EXPECT_EQ(FindMma(**Find("cuda:sm_75"), "mma.m16n8k16.f32.f16"), nullptr);
}

}  // namespace
}  // namespace kiln::target
