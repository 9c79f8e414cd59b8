// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace kiln::runtime {
namespace {

TEST(DType, EveryTypeOfTheIrIsHereWithItsWidth) {
#define KILN_DTYPE(number, id, text, bit_count, kind) \
  {                                                   \
    const DTypeInfo* info = Find(DType::id);          \
    ASSERT_NE(info, nullptr) << text;                 \
    EXPECT_EQ(info->bits, bit_count) << text;         \
    EXPECT_EQ(FindDType(info->name), info);           \
  }
#include "ir/dtypes.def"
  EXPECT_EQ(Find(DType(99)), nullptr);
}

TEST(DType, DlpackAndArrayNames) {
  EXPECT_EQ(FindDType(2, 16, 1)->dtype, DType::kF16);
  EXPECT_EQ(FindDType(2, 32, 1)->dtype, DType::kF32);  // not tf32
  EXPECT_EQ(FindDType(4, 16, 1)->dtype, DType::kBF16);
  EXPECT_EQ(FindDType(10, 8, 1)->dtype, DType::kF8E4M3);
  EXPECT_EQ(FindDType(2, 16, 4), nullptr);
  EXPECT_EQ(FindDTypeOfArray("|u1")->dtype, DType::kU8);
  EXPECT_EQ(FindDTypeOfArray("<u2")->dtype, DType::kU16);
  EXPECT_EQ(FindDTypeOfArray(">f4"), nullptr);
}

TEST(DType, AcceptsWhatTileLangDoes) {
  EXPECT_TRUE(Accepts(DType::kBool, DType::kI8));
  EXPECT_TRUE(Accepts(DType::kU8, DType::kBool));
  EXPECT_TRUE(Accepts(DType::kF8E4M3, DType::kF8E4M3FNUZ));
  EXPECT_TRUE(Accepts(DType::kTF32, DType::kF32));
  EXPECT_TRUE(Accepts(DType::kI4, DType::kU8));
  EXPECT_TRUE(Accepts(DType::kF4E2M1, DType::kI8));
  EXPECT_FALSE(Accepts(DType::kF4E2M1, DType::kF8E4M3));
  EXPECT_EQ(FindDType("float4_e2m1fn_x2")->dtype, DType::kU8);  // two in a byte
  EXPECT_EQ(FindDType(17, 4, 2)->dtype, DType::kU8);
  EXPECT_EQ(FindDType(17, 4, 1)->dtype, DType::kF4E2M1);  // as many as the shape says, as of int4
  EXPECT_EQ(FindDType("float8_e8m0fnu")->dtype, DType::kU8);
  EXPECT_EQ(FindDType(14, 8, 1)->dtype, DType::kU8);
  EXPECT_FALSE(Accepts(DType::kF8E4M3, DType::kF8E5M2));
  EXPECT_FALSE(Accepts(DType::kF16, DType::kBF16));
  EXPECT_FALSE(Accepts(DType::kI32, DType::kU32));
}

TEST(DType, IntegersThatDoNotFitAreRefused) {
  EXPECT_EQ(ScalarBits(DType::kI8, int64_t(-128)), uint64_t(-128));
  EXPECT_EQ(ScalarBits(DType::kI8, int64_t(128)), std::nullopt);
  EXPECT_EQ(ScalarBits(DType::kU8, int64_t(255)), 255u);
  EXPECT_EQ(ScalarBits(DType::kU8, int64_t(-1)), std::nullopt);
  EXPECT_EQ(ScalarBits(DType::kI32, int64_t(1) << 31), std::nullopt);
  EXPECT_EQ(ScalarBits(DType::kU32, int64_t(0xffffffff)), 0xffffffffu);
  EXPECT_EQ(ScalarBits(DType::kBool, int64_t(7)), 1u);
  EXPECT_EQ(ScalarBits(DType::kI32, 1.0), std::nullopt);
}

TEST(DType, Float16RoundsAsTheHardwareDoes) {
  uint32_t state = 12345;
  for (int i = 0; i < 200'000; ++i) {
    state = state * 1664525 + 1013904223;
    const auto value = double(std::bit_cast<float>(state));
    const auto want = static_cast<_Float16>(value);
    if (std::isnan(value)) continue;
    ASSERT_EQ(ScalarBits(DType::kF16, value), uint64_t(std::bit_cast<uint16_t>(want))) << value;
  }
  for (double value : {0.0, -0.0, 65504.0, 65519.99, 65520.0, 5.9e-8, 2.98e-8, 2.99e-8, 6.1e-5, 6.097e-5, 1.0 + 1.0 / 2048, 1e300,
                       std::numeric_limits<double>::infinity()})
    EXPECT_EQ(ScalarBits(DType::kF16, value), uint64_t(std::bit_cast<uint16_t>(static_cast<_Float16>(value)))) << value;
}

TEST(DType, Bfloat16RoundsHalfToEven) {
  EXPECT_EQ(ScalarBits(DType::kBF16, 1.0), 0x3f80u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 1.0 + 1.0 / 256), 0x3f80u);  // half, to even
  EXPECT_EQ(ScalarBits(DType::kBF16, 1.0 + 3.0 / 256), 0x3f82u);  // half, to even
  EXPECT_EQ(ScalarBits(DType::kBF16, 1.0 + 1.01 / 256), 0x3f81u);
  EXPECT_EQ(ScalarBits(DType::kBF16, -2.0), 0xc000u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 3.4e38), 0x7f80u);
  EXPECT_TRUE(*ScalarBits(DType::kBF16, std::nan("")) > 0x7f80u);
  EXPECT_EQ(ScalarBits(DType::kF32, 0.1), uint64_t(std::bit_cast<uint32_t>(0.1f)));
}

}  // namespace
}  // namespace kiln::runtime
