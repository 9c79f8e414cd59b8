// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/cli/run_arguments.h"
#include "clients/cli/stats_text.h"
#include "clients/cli/tensor_plan.h"
#include "clients/common/run_names.h"

namespace kiln::cli {
namespace {

using runtime::DType;
using runtime::LaunchParam;
using ::testing::HasSubstr;

std::expected<Values, Error> Given(std::vector<std::string> dims, std::vector<std::string> scalars) {
  RunArguments arguments;
  arguments.dims = std::move(dims);
  arguments.scalars = std::move(scalars);
  return Values::Parse(arguments);
}

TEST(RunArguments, ScalarsAreWhatTheirParametersAre) {
  const auto values = Given({}, {"x=0.5", "y=-3", "z=1e-3"});
  ASSERT_TRUE(values) << values.error().message;
  EXPECT_EQ(*ScalarOf({.name = "x", .dtype = DType::kF32}, *values), Scalar(0.5));
  EXPECT_EQ(*ScalarOf({.name = "y", .dtype = DType::kF16}, *values), Scalar(-3.0));
  EXPECT_EQ(*ScalarOf({.name = "y", .dtype = DType::kI32}, *values), Scalar(std::int64_t{-3}));
  EXPECT_EQ(*ScalarOf({.name = "z", .dtype = DType::kF64}, *values), Scalar(1e-3));
  EXPECT_EQ(*ScalarOf({.name = "other", .dtype = DType::kF32}, *values), Scalar(1.0));
  EXPECT_EQ(*ScalarOf({.name = "other", .dtype = DType::kI64}, *values), Scalar(std::int64_t{1}));
  const auto fraction = ScalarOf({.name = "x", .dtype = DType::kI32}, *values);
  ASSERT_FALSE(fraction);
  EXPECT_THAT(fraction.error().message, HasSubstr("--scalar x=0.5"));
  EXPECT_THAT(fraction.error().message, HasSubstr("takes an integer"));
}

TEST(RunArguments, DimensionsAreIntegers) {
  EXPECT_EQ(Given({"M=1000"}, {})->dims.at("M"), 1000);
  for (const char* word : {"M=0.5", "M=", "M", "=3", "M=3x"}) {
    const auto values = Given({word}, {});
    ASSERT_FALSE(values) << word;
    EXPECT_THAT(values.error().message, HasSubstr("is not NAME=INTEGER")) << word;
  }
}

TEST(RunArguments, ANameHasOneValue) {
  EXPECT_THAT(Given({"M=64", "M=128"}, {}).error().message, HasSubstr("M=128: M has a value already, 64"));
  EXPECT_THAT(Given({}, {"x=1", "y=2", "x=1"}).error().message, HasSubstr("x=1: x has a value already, 1"));
  EXPECT_TRUE(Given({"x=1"}, {"x=1"})) << "dimensions and scalars are apart";
}

runtime::HostNodes Extent(std::int64_t value) { return {{.op = runtime::HostOp::kConst, .value = value}}; }

// A has 64 floats, x is a scalar, B has 10 halves.
std::expected<std::vector<PlannedTensor>, Error> Plan(std::vector<std::string> shares) {
  runtime::LaunchInfo info;
  info.params = {{.name = "A", .dtype = DType::kF32, .tensor = true, .shape = {Extent(64)}, .strides = {}},
                 {.name = "x", .dtype = DType::kF32, .shape = {}, .strides = {}},
                 {.name = "B", .dtype = DType::kF16, .tensor = true, .shape = {Extent(10)}, .strides = {}},
                 {.name = "C", .dtype = DType::kI4, .tensor = true, .shape = {Extent(3)}, .strides = {}}};
  RunArguments arguments;
  arguments.shares = std::move(shares);
  const auto values = Values::Parse(arguments);
  if (!values) return std::unexpected(values.error());
  return PlanTensors(info, *values);
}

TEST(TensorPlan, TensorsHaveMemoryOfTheirOwn) {
  const auto plan = Plan({});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ((*plan)[0].memory_bytes, 256u);
  EXPECT_EQ((*plan)[1].type, nullptr);
  EXPECT_EQ((*plan)[2].owner, 2u);
  EXPECT_EQ((*plan)[2].memory_elements(), 10u);
  EXPECT_EQ((*plan)[3].memory_bytes, 2u);
}

TEST(TensorPlan, OrThatOfAnother) {
  const auto plan = Plan({"B=A+120", "C=A+2"});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ((*plan)[2].owner, 0u);
  EXPECT_EQ((*plan)[2].offset, 240u);
  EXPECT_EQ((*plan)[2].bytes, 20u);
  EXPECT_EQ((*plan)[3].offset, 1u);
  EXPECT_EQ((*plan)[0].memory_bytes, 260u);  // to B's end
  EXPECT_EQ((*plan)[0].memory_elements(), 65u);
}

TEST(TensorPlan, SaysWhatCannotBeShared) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {{{"B=A", "B=A+1"}, "B has a value already"},
                                                                    {{"B=x"}, "no tensor x"},
                                                                    {{"x=A"}, "no tensor x"},
                                                                    {{"B=B"}, "its own memory anyway"},
                                                                    {{"A=B", "C=A"}, "A lies in another tensor's memory itself"},
                                                                    {{"C=A+1"}, "between two bytes"},
                                                                    {{"B=A+-1"}, "is not NAME=OTHER"},
                                                                    {{"B"}, "is not NAME=OTHER"},
                                                                    {{"B=+1"}, "is not NAME=OTHER"},
                                                                    {{"B=A+99999999999999999"}, "too far off"},
                                                                    {{"A=C", "B=A"}, "lies in another"},
                                                                    {{"B=C", "C=A"}, "memory that others share"}};
  for (const auto& [shares, says] : cases) {
    const auto plan = Plan(shares);
    ASSERT_FALSE(plan) << says;
    EXPECT_THAT(plan.error().message, HasSubstr(says));
  }
}

TEST(RunArguments, AGpuDoesNotDoWhatTheEmulatorDoes) {
  EXPECT_TRUE(RunArguments().CheckForGpu());
  RunArguments checked, scheduled, limited;
  checked.check = true, scheduled.schedule = 2, limited.run_limit = 0.5;
  EXPECT_THAT(checked.CheckForGpu().error().message, HasSubstr("--check is for emulated runs"));
  EXPECT_THAT(scheduled.CheckForGpu().error().message, HasSubstr("--schedule is for emulated runs"));
  EXPECT_THAT(limited.CheckForGpu().error().message, HasSubstr("--run-limit is for emulated runs"));
}

TEST(RunArguments, ANameThatNoProgramHasIsToldWithThoseThereAre) {
  runtime::LaunchInfo info;
  info.symbols = {{.name = "M", .dtype = DType::kI32}, {.name = "N", .dtype = DType::kI32}};
  info.params = {{.name = "x", .dtype = DType::kF32, .tensor = true}, {.name = "alpha", .dtype = DType::kF32}};
  KnownNames names;
  names.Add(info);
  EXPECT_TRUE(names.Check(*Given({"M=3"}, {"alpha=2"})));
  EXPECT_THAT(names.Check(*Given({"m=3"}, {})).error().message, HasSubstr("--dim m: there is no such open dimension; there is M, N"));
  EXPECT_THAT(names.Check(*Given({}, {"x=3"})).error().message, HasSubstr("--scalar x: there is no such scalar parameter; there is alpha"));
  EXPECT_THAT(KnownNames().Check(*Given({"M=3"}, {})).error().message, HasSubstr("there is none"));
  info.symbols = {{.name = "K", .dtype = DType::kI32}};
  names.Add(info);
  EXPECT_TRUE(names.Check(*Given({"M=3", "K=4"}, {}))) << "of several programs each has its own";
}

TEST(RunArguments, AnArtifactsOwnNamesAreNumbers) {
  runtime::LaunchInfo info;
  info.symbols = {{.name = "", .dtype = DType::kI32}};
  info.params = {{.name = "", .dtype = DType::kF32}};
  NameParameters({}, info);
  KnownNames names;
  names.Add(info);
  EXPECT_TRUE(names.Check(*Given({"symbol 0=64"}, {"parameter 0=2"})));
}

TEST(Duration, RoundsNothingUp) {
  EXPECT_EQ(Duration(100), "100 s");
  EXPECT_EQ(Duration(119.7), "119 s");
  EXPECT_EQ(Duration(160.9), "2 min 40 s");
  EXPECT_EQ(Duration(7'199.9), "119 min 59 s");
}

}  // namespace
}  // namespace kiln::cli
