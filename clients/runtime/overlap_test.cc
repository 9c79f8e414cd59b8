// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/overlap.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace kiln::runtime {
namespace {

struct View {
  DType dtype = DType::kF32;
  uint64_t first = 4096;
  std::vector<int64_t> shape, strides;  // strides empty: row-major

  Tensor tensor() const {
    return {.data = first, .dtype = dtype, .place = Place::kHost, .shape = shape, .strides = strides.empty() ? nullptr : strides.data()};
  }
};

bool Overlap(const View& a, const View& b) { return runtime::Overlap(a.tensor(), b.tensor()); }

TEST(Overlap, IsOfElementsAndNotOfWhatLiesBetween) {
  const View row{.shape = {8}, .strides = {}};
  EXPECT_TRUE(Overlap(row, row));
  EXPECT_TRUE(Overlap(row, {.first = 4096 + 28, .shape = {8}, .strides = {}}));
  EXPECT_FALSE(Overlap(row, {.first = 4096 + 32, .shape = {8}, .strides = {}}));
  EXPECT_FALSE(Overlap({.shape = {4}, .strides = {2}}, {.first = 4100, .shape = {4}, .strides = {2}}));
  EXPECT_TRUE(Overlap({.shape = {4}, .strides = {2}}, {.first = 4104, .shape = {4}, .strides = {2}}));
  EXPECT_TRUE(Overlap(row, {.first = 4096 + 60, .shape = {9}, .strides = {-1}}));   // down to element 7
  EXPECT_FALSE(Overlap(row, {.first = 4096 + 60, .shape = {8}, .strides = {-1}}));  // down to element 8
  EXPECT_FALSE(Overlap(row, {.shape = {0, 8}, .strides = {}}));
  // The halves of a matrix's rows.
  EXPECT_FALSE(Overlap({.shape = {64, 32}, .strides = {64, 1}}, {.first = 4096 + 128, .shape = {64, 32}, .strides = {64, 1}}));
  EXPECT_TRUE(Overlap({.shape = {64, 33}, .strides = {64, 1}}, {.first = 4096 + 128, .shape = {64, 32}, .strides = {64, 1}}));
  // Two elements of four bits in a byte.
  const auto narrow = [](uint64_t first, int64_t count) { return View{.dtype = DType::kI4, .first = first, .shape = {count}, .strides = {}}; };
  EXPECT_FALSE(Overlap(narrow(4096, 4), narrow(4098, 4)));
  EXPECT_TRUE(Overlap(narrow(4096, 3), narrow(4097, 4)));
  // A stride of 0 does not make one element many, however many there are.
  EXPECT_FALSE(Overlap({.shape = {int64_t{1} << 40}, .strides = {0}}, {.first = 4100, .shape = {4}, .strides = {}}));
  EXPECT_TRUE(Overlap({.shape = {int64_t{1} << 62, 8}, .strides = {8, 1}}, row));  // beyond reckoning
}

TEST(Overlap, AgreesWithTheBytesOfRandomViews) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  const auto bytes = [](const View& view) {
    std::set<int64_t> all;
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      for (int64_t j = 0; j < view.shape[1]; ++j) {
        for (int64_t b = 0; b < 2; ++b) all.insert(int64_t(view.first) + 2 * (i * view.strides[0] + j * view.strides[1]) + b);
      }
    }
    return all;
  };
  int overlapping = 0;
  for (int n = 0; n < 5000; ++n) {
    View views[2];
    for (View& view : views) {
      view = {.dtype = DType::kF16,
              .first = uint64_t(4096 + 2 * pick(0, 20)),
              .shape = {pick(0, 4), pick(1, 4)},
              .strides = {pick(-12, 12), pick(-3, 3)}};
    }
    std::set<int64_t> common;
    const std::set<int64_t> one = bytes(views[0]), other = bytes(views[1]);
    std::ranges::set_intersection(one, other, std::inserter(common, common.end()));
    ASSERT_EQ(Overlap(views[0], views[1]), !common.empty()) << n;
    overlapping += !common.empty();
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_LT(overlapping, 4500);
}

TEST(Overlap, IsForbiddenWhereOneIsWrittenAndNotBothMayAlias) {
  const auto problem = [](bool a_may, bool b_may, bool written, bool by_address = false) {
    const HostNodes eight{{.op = HostOp::kConst, .value = 8}};
    LaunchInfo info;
    info.params = {{.name = "A", .dtype = DType::kF32, .tensor = true, .shape = {eight}, .strides = {}, .may_alias = a_may},
                   {.name = "f", .dtype = DType::kF32, .shape = {}, .strides = {}},
                   {.name = "B", .dtype = DType::kF32, .tensor = true, .shape = {eight}, .strides = {}, .written = written, .may_alias = b_may}};
    for (LaunchParam& param : info.params) param.by_address = by_address && param.tensor;
    info.launches = {{.entry = "kernel", .grid = {eight}, .threads = 32, .args = {}, .assumptions = {}}};
    const auto binder = Binder::Create(std::move(info), "f", Place::kHost, 0);
    const View row{.shape = {8}, .strides = {}};
    const Arg args[] = {Arg::Of(row.tensor()), Arg::Of(1.0), Arg::Of(row.tensor())};
    return ForbiddenOverlap(binder.value(), args).value_or("");
  };
  EXPECT_EQ(problem(true, true, true), "");
  EXPECT_EQ(problem(false, false, false), "");
  EXPECT_EQ(problem(false, false, true, true), "");
  for (const bool a : {false, true}) {
    EXPECT_EQ(problem(a, !a, true).substr(0, 56), "f: A and B overlap, and the kernel writes B; pass a copy");
  }
}

}  // namespace
}  // namespace kiln::runtime
