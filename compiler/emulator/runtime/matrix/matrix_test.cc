// SPDX-License-Identifier: Apache-2.0
//
// The emulator's matrix instructions, written from the vendors' documents, against the tables of compiler/target: every row of every
// target multiplies what the tables' layouts put in.
#include "compiler/emulator/runtime/matrix/matrix.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "compiler/emulator/runtime/matrix/number.h"
#include "compiler/target/instructions.h"
#include "ir/expr/numeric.h"

namespace kiln::emulator {
namespace {

using ir::DType;
using target::Feature;
using target::MmaInstruction;
using target::Target;

MatrixUnit UnitOf(const Target& target, const MmaInstruction& row) {
  if (target.family == target::Family::kNvptx) return MatrixUnit::kMmaSync;
  if (row.IsSparse()) return MatrixUnit::kSmfmac;
  if (target.Has(Feature::kMfma)) return MatrixUnit::kMfma;
  return target.Has(Feature::kWmmaReplicated) ? MatrixUnit::kWmmaGfx11 : MatrixUnit::kWmmaGfx12;
}

class Warp {
 public:
  explicit Warp(uint32_t lanes) : words_(lanes) {
    for (auto& words : words_) pointers_.push_back(words.data());
  }
  std::span<uint32_t* const> operands() const { return pointers_; }

  void Put(const ir::Layout& layout, uint32_t base, DType type, int row, int column, uint32_t bits) {
    const std::array<int64_t, 2> index{row, column};
    const int64_t reg = layout.RegisterOf(index), each = 32 / ir::Bits(type);
    const int64_t lane = layout.ThreadOf(index);
    for (int64_t l = 0; l < int64_t(words_.size()); ++l) {
      // A replica's threads hold the same elements.
      const ir::Indices mine = layout.ThreadPart(l), first = layout.ThreadPart(lane);
      if (mine == first) words_[size_t(l)][base + size_t(reg / each)] |= bits << (reg % each * ir::Bits(type));
    }
  }
  // Four bits of metadata for a group of the row, as the instruction's selector finds them.
  void PutMetadata(const MmaInstruction& row, int selector, int i, int group, uint32_t bits) {
    const int64_t part = row.MetadataBits();
    const std::array<int64_t, 2> index{i, group * 4 / part};
    const int64_t lane = row.metadata_layout.ThreadOf(index) + 2 * selector;
    words_[size_t(lane)][kWordOfMetadata] |= bits << (row.metadata_layout.RegisterOf(index) * part + group * 4 % part);
  }
  uint32_t Get(const ir::Layout& layout, int row, int column) const {
    const std::array<int64_t, 2> index{row, column};
    return words_[size_t(layout.ThreadOf(index))][kWordsOfC + size_t(layout.RegisterOf(index))];
  }

 private:
  std::vector<std::array<uint32_t, kMatrixWords>> words_;
  std::vector<uint32_t*> pointers_;
};

// Small integers: exact in every type, so that the order of the sum does not matter.
uint32_t BitsOf(DType type, int value) {
  switch (type) {
    case DType::kI8:
    case DType::kU8: return uint8_t(value);
    case DType::kI32: return uint32_t(value);
    case DType::kF32:
    case DType::kTF32: return std::bit_cast<uint32_t>(float(value));
    default: break;
  }
  const float* values = ValuesOf(type);
  for (uint32_t bits = 0; bits < 1u << ir::Bits(type); ++bits)
    if (values[bits] == float(value)) return bits;
  ADD_FAILURE() << ir::Name(type) << " has no " << value;
  return 0;
}

// The places of two of four neighbours, and the halves of one of two.
constexpr uint32_t kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110}, kHalves[] = {0b0100, 0b1110};

// Puts what a sparse A keeps and its metadata, every pattern in turn, and returns the dense A.
std::vector<int> PutSparse(Warp& warp, const MmaInstruction& row, int selector, auto&& value) {
  const int group = ir::Bits(row.a) == 32 ? 2 : 4, keeps = group / 2;
  const std::span<const uint32_t> patterns = keeps == 1 ? std::span<const uint32_t>(kHalves) : std::span<const uint32_t>(kPairs);
  std::vector<int> dense(size_t(row.m * row.k));
  for (int i = 0; i < row.m; ++i) {
    for (int g = 0; g < row.k / group; ++g) {
      const uint32_t bits = patterns[size_t(i + g) % patterns.size()];
      warp.PutMetadata(row, selector, i, g, bits);
      for (int kept = 0; kept < keeps; ++kept) {
        const int place = int(bits >> 2 * kept & 3) / (keeps == 1 ? 2 : 1), v = value();
        dense[size_t(i * row.k + g * group + place)] = v;
        warp.Put(row.a_layout, kWordsOfA, row.a, i, g * keeps + kept, BitsOf(row.a, v));
      }
    }
  }
  return dense;
}

std::vector<int> PutDense(Warp& warp, const MmaInstruction& row, auto&& value) {
  std::vector<int> dense(size_t(row.m * row.k));
  for (int i = 0; i < row.m; ++i)
    for (int k = 0; k < row.k; ++k) warp.Put(row.a_layout, kWordsOfA, row.a, i, k, BitsOf(row.a, dense[size_t(i * row.k + k)] = value()));
  return dense;
}

class Instruction : public ::testing::TestWithParam<const Target*> {};

TEST_P(Instruction, MultipliesWhatTheTablesPutIn) {
  const Target& target = *GetParam();
  MatrixUnits units;
  std::mt19937 random(1);
  const auto multiply = [&](const MmaInstruction& row, int selector) {
    Warp warp(target.warp_size);
    const bool is_unsigned = row.a == DType::kU8 || row.b == DType::kU8;
    std::uniform_int_distribution<int> some(is_unsigned ? 0 : -4, 4);
    const auto value = [&] { return some(random); };
    const std::vector<int> a = row.IsSparse() ? PutSparse(warp, row, selector, value) : PutDense(warp, row, value);
    std::vector<int> b(size_t(row.n * row.k)), c(size_t(row.m * row.n));
    for (int j = 0; j < row.n; ++j)
      for (int k = 0; k < row.k; ++k) warp.Put(row.b_layout, kWordsOfB, row.b, j, k, BitsOf(row.b, b[size_t(j * row.k + k)] = value()));
    for (int i = 0; i < row.m; ++i) {
      for (int j = 0; j < row.n; ++j) {
        const int start = c[size_t(i * row.n + j)] = value();
        const std::array<int64_t, 2> index{i, j};
        warp.operands()[size_t(row.c_layout.ThreadOf(index))][kWordsOfC + size_t(row.c_layout.RegisterOf(index))] = BitsOf(row.c, start);
      }
    }
    const MatrixForm form{UnitOf(target, row), uint8_t(row.m), uint8_t(row.n), uint8_t(row.k),
                          uint8_t(row.a),      uint8_t(row.b), uint8_t(row.c), uint8_t(row.IsSparse() ? 1 + selector : 0)};
    ASSERT_EQ(units.Run(form.Pack(), warp.operands()), "");
    for (int i = 0; i < row.m; ++i) {
      for (int j = 0; j < row.n; ++j) {
        int sum = c[size_t(i * row.n + j)];
        for (int k = 0; k < row.k; ++k) sum += a[size_t(i * row.k + k)] * b[size_t(j * row.k + k)];
        ASSERT_EQ(warp.Get(row.c_layout, i, j), BitsOf(row.c, sum)) << "element " << i << ", " << j;
      }
    }
  };
  for (const MmaInstruction& row : target::MmaInstructions(target)) {
    if (row.IsByGroup()) continue;  // wgmma is no instruction of one warp
    SCOPED_TRACE(row.name);
    for (int selector = 0; selector < row.selectors; ++selector) multiply(row, selector);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Instruction, ::testing::ValuesIn([] {
                           std::vector<const Target*> targets;
                           for (const Target& target : target::All()) targets.push_back(&target);
                           return targets;
                         }()),
                         [](const auto& info) { return std::string(info.param->arch); });

TEST(Matrix, LanesThatMustRepeatOthersAreCompared) {
  MatrixUnits units;
  Warp warp(32);
  const uint8_t half = uint8_t(DType::kF16), wide = uint8_t(DType::kF32);
  const MatrixForm form{MatrixUnit::kWmmaGfx11, 16, 16, 16, half, half, wide};
  EXPECT_EQ(units.Run(form.Pack(), warp.operands()), "");
  warp.operands()[20][kWordsOfA + 1] = 1;
  EXPECT_EQ(units.Run(form.Pack(), warp.operands()), "lane 20 of a WMMA does not repeat lane 4");
}

TEST(Matrix, APartOfAWarpCannot) {
  MatrixUnits units;
  Warp warp(16);
  const uint8_t half = uint8_t(DType::kF16), wide = uint8_t(DType::kF32);
  const MatrixForm form{MatrixUnit::kMmaSync, 16, 8, 16, half, half, wide};
  EXPECT_EQ(units.Run(form.Pack(), warp.operands()), "a matrix instruction in a warp of 16 threads");
}

TEST(Matrix, MetadataNamePlacesInOrder) {
  MatrixUnits units;
  Warp warp(32);
  const uint8_t half = uint8_t(DType::kF16), wide = uint8_t(DType::kF32), single = uint8_t(DType::kTF32);
  for (uint32_t* lane : warp.operands()) lane[kWordOfMetadata] = 0;
  const MatrixForm of_zeros{MatrixUnit::kMmaSync, 16, 8, 32, half, half, wide, 1};
  EXPECT_EQ(units.Run(of_zeros.Pack(), warp.operands()), "");  // as beyond a tensor's end
  for (uint32_t* lane : warp.operands()) std::fill_n(lane + kWordsOfA, 4, 0x3c003c00), lane[kWordOfMetadata] = 0x44444444;
  const MatrixForm pairs{MatrixUnit::kMmaSync, 16, 8, 32, half, half, wide, 1};
  EXPECT_EQ(units.Run(pairs.Pack(), warp.operands()), "");
  warp.operands()[5][kWordOfMetadata] = 0x44441444;
  EXPECT_EQ(units.Run(pairs.Pack(), warp.operands()),
            "a matrix instruction with metadata 0b0001 that are not two places in order, in row 1 for k from 28 on");
  const MatrixForm halves{MatrixUnit::kMmaSync, 16, 8, 16, single, single, wide, 2};
  EXPECT_EQ(units.Run(halves.Pack(), warp.operands()), "");
  warp.operands()[6][kWordOfMetadata] = 0x54444444;
  EXPECT_EQ(units.Run(halves.Pack(), warp.operands()),
            "a matrix instruction with metadata 0b0101 that are not the halves of one element, in row 9 for k from 6 on");
}

TEST(Number, EveryValueOfTheNarrowTypes) {
  for (DType type : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ}) {
    size_t finite = 0;
    for (uint32_t bits = 0; bits < 1u << ir::Bits(type); ++bits) {
      const float value = Widen(type, bits);
      if (!std::isfinite(value)) continue;
      ++finite;
      ASSERT_EQ(ir::RoundTo(type, value), value) << ir::Name(type) << " " << bits;
      if (ir::Bits(type) == 16) {
        ASSERT_EQ(Narrow(type, value), bits);
      }
    }
    const size_t expected = type == DType::kF16      ? 63488
                            : type == DType::kBF16   ? 65280
                            : type == DType::kF8E5M2 ? 248
                            : type == DType::kF8E4M3 ? 254
                                                     : 255;
    EXPECT_EQ(finite, expected) << ir::Name(type);
  }
}

TEST(Number, RoundsToNearestEven) {
  std::mt19937 random(2);
  for (DType type : {DType::kF16, DType::kBF16}) {
    for (int i = 0; i < 200'000; ++i) {
      const float value = std::bit_cast<float>(uint32_t(random()));
      if (value != value) continue;
      ASSERT_EQ(double(Widen(type, Narrow(type, value))), ir::RoundTo(type, value)) << ir::Name(type) << " " << value;
    }
    EXPECT_TRUE(std::isnan(Widen(type, Narrow(type, NAN))));
  }
}

}  // namespace
}  // namespace kiln::emulator
