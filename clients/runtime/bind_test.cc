// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/bind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>

namespace kiln::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HostNodes Constant(int64_t value) { return {{HostOp::kConst, value, 0, 0}}; }
HostNodes Symbol(int64_t index) { return {{HostOp::kSymbol, index, 0, 0}}; }
HostNodes CeilDiv(int64_t symbol, int64_t by) {
  return {{HostOp::kSymbol, symbol, 0, 0},
          {HostOp::kConst, by - 1, 0, 0},
          {HostOp::kAdd, 0, 0, 1},
          {HostOp::kConst, by, 0, 0},
          {HostOp::kFloorDiv, 0, 2, 3}};
}
HostNodes Times(int64_t symbol, int64_t factor) { return {{HostOp::kSymbol, symbol, 0, 0}, {HostOp::kConst, factor, 0, 0}, {HostOp::kMul, 0, 0, 1}}; }

enum { kM, kN, kK, kRow };

// C[m, n] = f(A[m, k] with rows `row` apart, B[k, 2·n], alpha); k·4 bytes of workspace.
LaunchInfo Gemm() {
  LaunchInfo info;
  for (const char* name : {"m", "n", "k", "row"}) info.symbols.push_back({name, DType::kI32});
  info.params = {
      {.name = "A", .dtype = DType::kF16, .tensor = true, .shape = {Symbol(kM), Symbol(kK)}, .strides = {Symbol(kRow), Constant(1)}, .alignment = 16},
      {.name = "B", .dtype = DType::kF16, .tensor = true, .shape = {Symbol(kK), Times(kN, 2)}},
      {.name = "alpha", .dtype = DType::kF32},
      {.name = "C", .dtype = DType::kF32, .tensor = true, .shape = {Symbol(kM), Symbol(kN)}, .output = true, .written = true}};
  info.workspaces = {{DType::kF32, {Symbol(kK)}}};
  info.launches = {{.entry = "gemm_kernel",
                    .grid = {CeilDiv(kN, 128), CeilDiv(kM, 64)},
                    .threads = 128,
                    .args = {{KernelArg::Kind::kTensor, 0},
                             {KernelArg::Kind::kTensor, 1},
                             {KernelArg::Kind::kScalar, 2},
                             {KernelArg::Kind::kTensor, 3},
                             {KernelArg::Kind::kSymbol, kRow},
                             {KernelArg::Kind::kWorkspace, 0}}}};
  return info;
}

class BindTest : public ::testing::Test {
 protected:
  Binder Make(LaunchInfo info = Gemm()) {
    auto binder = Binder::Create(std::move(info), "gemm", Place::kCuda, 0);
    EXPECT_TRUE(binder) << binder.error().message;
    return std::move(*binder);
  }
  Arg Tensor2(DType dtype, int64_t rows, int64_t columns, int64_t row = -1) {
    auto& extents = storage_.emplace_back(std::vector<int64_t>{rows, columns, row, 1});
    Tensor tensor{.data = 0x10000, .dtype = dtype, .shape = std::span(extents).first(2)};
    if (row >= 0) tensor.strides = extents.data() + 2;
    return Arg::Of(tensor);
  }
  std::vector<Arg> Args() {
    return {Tensor2(DType::kF16, 1000, 333), Tensor2(DType::kF16, 333, 2 * 777), Arg::Of(0.5), Tensor2(DType::kF32, 1000, 777)};
  }
  std::string ErrorOf(std::vector<Arg> args, LaunchInfo info = Gemm()) {
    auto bound = Make(std::move(info)).Bind(args);
    EXPECT_FALSE(bound);
    if (bound) return "";
    EXPECT_EQ(bound.error().kind, Error::Kind::kArgument);
    return bound.error().message;
  }
  std::list<std::vector<int64_t>> storage_;
};

TEST_F(BindTest, SolvesSymbolsGridAndWorkspace) {
  auto bound = Make().Bind(Args());
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_THAT(bound->symbols, ElementsAre(1000, 777, 333, 333));
  EXPECT_THAT(bound->grids[0].size, ElementsAre(7, 16, 1));
  EXPECT_FALSE(bound->grids[0].empty);
  EXPECT_THAT(bound->workspace_bytes, ElementsAre(333 * 4));
}

TEST_F(BindTest, TakesStridedTensors) {
  auto args = Args();
  args[0] = Tensor2(DType::kF16, 1000, 333, 512);
  EXPECT_EQ(Make().Bind(args)->symbols[kRow], 512);
}

TEST_F(BindTest, TellsWhatAlignmentTakesTheTensors) {
  const auto alignment = [&](uint64_t a, uint64_t b, uint64_t c) {
    auto args = Args();
    args[0].tensor.data = a;
    args[1].tensor.data = b;
    args[3].tensor.data = c;
    auto bound = Make().Bind(args);
    return bound ? 16 : bound.error().alignment;
  };
  EXPECT_EQ(alignment(0x10000, 0x10002, 0x10004), 16u);  // B and C are accessed element by element
  EXPECT_EQ(alignment(0x10008, 0x10000, 0x10000), 8u);
  EXPECT_EQ(alignment(0x10008, 0x10002, 0x10004), 2u);
  EXPECT_EQ(alignment(0x10001, 0x10000, 0x10000), 0u);  // inside an element
  EXPECT_EQ(alignment(0x10000, 0x10000, 0x10002), 0u);
  auto args = Args();
  args[0] = Tensor2(DType::kF16, 0, 333);  // no elements, no access
  args[3] = Tensor2(DType::kF32, 0, 777);
  args[0].tensor.data = 0x10001;
  EXPECT_TRUE(Make().Bind(args));
}

TEST_F(BindTest, ChecksWhatALaunchAssumes) {
  const HostNodes rest{{HostOp::kSymbol, kM, 0, 0}, {HostOp::kConst, 8, 0, 0}, {HostOp::kFloorMod, 0, 0, 1}};
  const auto problem = [&](Assumption::Relation relation, HostNodes left, HostNodes right, int64_t m = 1000) {
    LaunchInfo info = Gemm();
    info.launches[0].assumptions = {{relation, std::move(left), std::move(right)}};
    auto args = Args();
    args[0] = Tensor2(DType::kF16, m, 333);
    args[3] = Tensor2(DType::kF32, m, 777);
    auto bound = Make(std::move(info)).Bind(args);
    return bound ? "" : bound.error().message;
  };
  using enum Assumption::Relation;
  EXPECT_EQ(problem(kEq, rest, Constant(0)), "");
  EXPECT_THAT(problem(kEq, rest, Constant(0), 1001), HasSubstr("gemm: Assume: m % 8 == 0 does not hold: 1 and 0"));
  EXPECT_EQ(problem(kNe, Symbol(kM), Symbol(kN)), "");
  EXPECT_THAT(problem(kNe, Symbol(kM), Symbol(kN), 777), HasSubstr("m != n"));
  EXPECT_EQ(problem(kLt, Symbol(kN), Symbol(kM)), "");
  EXPECT_THAT(problem(kLt, Symbol(kN), Symbol(kM), 777), HasSubstr("n < m does not hold: 777 and 777"));
  EXPECT_EQ(problem(kLe, Symbol(kN), Symbol(kM), 777), "");
  EXPECT_THAT(problem(kLe, Symbol(kN), Symbol(kM), 776), HasSubstr("n <= m"));
  EXPECT_EQ(problem(kLt, Constant(5), Symbol(kM), 0), "");  // no block runs
  const HostNodes quotient{{HostOp::kSymbol, kM, 0, 0}, {HostOp::kConst, 0, 0, 0}, {HostOp::kFloorDiv, 0, 0, 1}};
  EXPECT_THAT(problem(kEq, quotient, Constant(0)), HasSubstr("divides by zero"));
  LaunchInfo wrong = Gemm();
  wrong.launches[0].assumptions = {{kEq, Symbol(9), Constant(0)}};
  EXPECT_FALSE(Binder::Create(std::move(wrong), "gemm", Place::kCuda, 0));
}

// A scalar that is only assumed about counts for what calls have in common.
TEST_F(BindTest, AssumptionsOfScalarsAreCheckedForEachValue) {
  LaunchInfo info = Gemm();
  info.params[2].dtype = DType::kI32;
  info.launches[0].assumptions = {{Assumption::Relation::kLt, {{HostOp::kScalar, 2, 0, 0}}, Constant(4)}};
  const Binder binder = Make(std::move(info));
  const auto key = [&](int64_t scalar) {
    auto args = Args();
    args[2] = Arg::Of(scalar);
    std::array<uint64_t, 64> words{};
    size_t used = 0;
    EXPECT_TRUE(binder.Key(args, words, used));
    return std::pair(words, binder.Bind(args).has_value());
  };
  EXPECT_TRUE(key(3).second);
  EXPECT_FALSE(key(4).second);
  EXPECT_NE(key(3).first, key(4).first);
}

TEST_F(BindTest, NamesWhatDoesNotFit) {
  auto args = Args();
  args.pop_back();
  EXPECT_EQ(ErrorOf(args), "gemm: num_args should be 4, but got 3");

  args = Args();
  args[1] = Tensor2(DType::kF16, 334, 2 * 777);
  EXPECT_EQ(ErrorOf(args), "Argument gemm.B.shape[0] has an unsatisfied constraint: k == 334, with k = 333");

  args = Args();
  args[1] = Tensor2(DType::kF16, 333, 1553);
  EXPECT_THAT(ErrorOf(args), HasSubstr("Argument gemm.B.shape[1] has an unsatisfied constraint: no integer solves it for 1553"));

  args = Args();
  args[0] = Tensor2(DType::kBF16, 1000, 333);
  EXPECT_EQ(ErrorOf(args), "gemm.A.dtype is expected to be float16, but got bfloat16");

  args = Args();
  args[0].tensor.shape = args[0].tensor.shape.first(1);
  EXPECT_EQ(ErrorOf(args), "gemm.A.ndim is expected to equal 2, but got 1");

  args = Args();
  args[0].tensor.place = Place::kHost;
  EXPECT_THAT(ErrorOf(args), HasSubstr("gemm.A.device_type mismatch [expected: 2 (cuda)], but got 1 (cpu)"));

  args = Args();
  args[3].tensor.device = 1;
  EXPECT_THAT(ErrorOf(args), HasSubstr("gemm.C.device_id is expected to be 0, but got 1"));

  args = Args();
  args[3].tensor.data = 0;
  EXPECT_EQ(ErrorOf(args), "gemm.C is expected to have non-NULL pointer");

  args = Args();
  args[0].tensor.data = 0x10008;
  EXPECT_THAT(ErrorOf(args), HasSubstr("gemm.A.data is expected to be aligned to 16 bytes, but its address is 0x10008"));

  args = Args();
  args[1] = Arg::Of(int64_t(3));
  EXPECT_EQ(ErrorOf(args), "gemm.B is expected to be a tensor, but got a number");

  args = Args();
  args[1] = Tensor2(DType::kF16, 333, 2 * 777, 4096);
  EXPECT_THAT(ErrorOf(args), HasSubstr("Argument gemm.B.strides[0] has an unsatisfied constraint: 1554 == 4096; the tensor must be contiguous"));

  args = Args();
  args[0] = Tensor2(DType::kF16, 1000, 333, 333);
  const_cast<int64_t*>(args[0].tensor.strides)[1] = 2;
  EXPECT_EQ(ErrorOf(args), "Argument gemm.A.strides[1] has an unsatisfied constraint: 1 == 2");
}

TEST_F(BindTest, Scalars) {
  auto args = Args();
  args[2] = Arg::Of(int64_t(2));  // an int for a float is fine
  EXPECT_TRUE(Make().Bind(args));
  LaunchInfo info = Gemm();
  info.params[2].dtype = DType::kI32;
  args[2] = Arg::Of(0.5);
  EXPECT_EQ(ErrorOf(args, info), "gemm.alpha: Expect arg[2] to be int");
  args[2] = Arg::Of(int64_t(1) << 40);
  EXPECT_EQ(ErrorOf(args, info), "gemm.alpha: 1099511627776 does not fit int32");
}

TEST_F(BindTest, EmptyTensorsLaunchNothing) {
  std::vector<Arg> args = {Tensor2(DType::kF16, 0, 333), Tensor2(DType::kF16, 333, 2 * 777), Arg::Of(0.5), Tensor2(DType::kF32, 0, 777)};
  args[0].tensor.data = args[3].tensor.data = 0;
  auto bound = Make().Bind(args);
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_TRUE(bound->grids[0].empty);
}

TEST_F(BindTest, AnEmptyInnerDimensionStillLaunches) {
  const std::vector<Arg> args = {Tensor2(DType::kF16, 1000, 0), Tensor2(DType::kF16, 0, 2 * 777), Arg::Of(0.5), Tensor2(DType::kF32, 1000, 777)};
  auto bound = Make().Bind(args);
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_FALSE(bound->grids[0].empty);
  EXPECT_EQ(bound->workspace_bytes[0], 0u);
}

TEST_F(BindTest, StridesOfSingleRowsDoNotMatter) {
  std::vector<Arg> args = {Tensor2(DType::kF16, 1, 333, 7), Tensor2(DType::kF16, 333, 2 * 777), Arg::Of(0.5), Tensor2(DType::kF32, 1, 777, 5)};
  EXPECT_TRUE(Make().Bind(args));
}

TEST_F(BindTest, NoneStandsForAnEmptyOrUnusedTensor) {
  auto args = Args();
  args[1] = Arg();
  EXPECT_EQ(ErrorOf(args), "gemm.B is expected to have non-NULL pointer");
  args = {Tensor2(DType::kF16, 1000, 0), Arg(), Arg::Of(0.5), Tensor2(DType::kF32, 1000, 777)};
  EXPECT_TRUE(Make().Bind(args));
  LaunchInfo unused = Gemm();
  unused.launches[0].args.erase(unused.launches[0].args.begin() + 1);
  args = Args();
  args[1] = Arg();
  EXPECT_TRUE(Make(unused).Bind(args));
  LaunchInfo passed = Gemm();
  passed.params[1].unused = true;
  EXPECT_TRUE(Make(passed).Bind(args));
}

TEST_F(BindTest, ASizeOfAbsentTensorsAloneIsZero) {
  LaunchInfo info = Gemm();
  info.params[1].unused = true;
  info.params[1].shape = {Symbol(kRow), Symbol(kRow)};
  info.params[0].strides.clear();
  auto args = Args();
  args[0].tensor.strides = nullptr;
  args[1] = Arg();
  auto binding = Make(info).Bind(args);
  ASSERT_TRUE(binding) << binding.error().message;
  EXPECT_EQ(binding->symbols[kRow], 0);
  info.params[1].unused = false;
  EXPECT_FALSE(Make(info).Bind(args));  // read where it is absent
  info.params[1].unused = true;
  info.params[3].shape[0] = Symbol(kRow);
  args[3] = Arg();  // an output, which has the size too, is not absent but not made yet
  EXPECT_FALSE(Make(info).Bind(args));
}

TEST_F(BindTest, OverflowsAreRefused) {
  auto args = Args();
  args[0] = Tensor2(DType::kF16, int64_t(1) << 33, 333);
  args[3] = Tensor2(DType::kF32, int64_t(1) << 33, 777);
  EXPECT_THAT(ErrorOf(args), HasSubstr("m = 8589934592 does not fit int32"));
  args[0] = Tensor2(DType::kF16, int64_t(1) << 40, int64_t(1) << 40);
  EXPECT_THAT(ErrorOf(args), HasSubstr("more than 2^63 elements"));
  args[0] = Tensor2(DType::kF16, -1, 333);
  EXPECT_THAT(ErrorOf(args), HasSubstr("negative extent"));
  LaunchInfo info = Gemm();
  info.launches[0].grid[1] = Symbol(kM);
  info.symbols[kM].dtype = DType::kI64;
  args = Args();
  args[0] = Tensor2(DType::kF16, 100'000, 333);
  args[3] = Tensor2(DType::kF32, 100'000, 777);
  EXPECT_THAT(ErrorOf(args, info), HasSubstr("grid extent 1 is 100000, but a launch has at most 65535"));
}

TEST_F(BindTest, OutputsAreInferred) {
  auto args = Args();
  args.pop_back();
  auto outputs = Make().Outputs(args);
  ASSERT_TRUE(outputs) << outputs.error().message;
  ASSERT_EQ(outputs->size(), 1u);
  EXPECT_EQ((*outputs)[0].param, 3u);
  EXPECT_THAT((*outputs)[0].shape, ElementsAre(1000, 777));
  EXPECT_EQ(Make().Outputs(Args()).error().message, "gemm: num_args should be 3 (4 with the outputs), but got 4");
  LaunchInfo info = Gemm();
  info.params[1].shape[1] = Constant(8);
  args[1] = Tensor2(DType::kF16, 333, 8);
  EXPECT_THAT(Make(info).Outputs(args).error().message, HasSubstr("the inputs do not determine the shape of output C (n)"));
}

// As a launcher older than the kind has it, and one that says what is not so.
TEST_F(BindTest, RefusesKindsOfArgumentsThatItDoesNotKnow) {
  const auto refusal = [](KernelArg arg, bool zeroed) {
    LaunchInfo info = Gemm();
    info.workspaces[0].zeroed = zeroed;
    info.launches[0].args.push_back(arg);
    const auto binder = Binder::Create(info, "gemm", Place::kCuda, 0);
    return binder ? std::string() : binder.error().message;
  };
  EXPECT_THAT(refusal({}, false), HasSubstr("of a kind this runtime does not know; update it"));
  EXPECT_THAT(refusal({KernelArg::Kind::kZeroedWorkspace, 0}, false), HasSubstr("is not there"));
  EXPECT_THAT(refusal({KernelArg::Kind::kZeroedWorkspace, 1}, true), HasSubstr("is not there"));
  EXPECT_EQ(refusal({KernelArg::Kind::kZeroedWorkspace, 0}, true), "");
  EXPECT_THAT(refusal({KernelArg::Kind::kBlockCounter, 0}, false), HasSubstr("is not there"));
  EXPECT_EQ(refusal({KernelArg::Kind::kBlockCounter, 0}, true), "");
}

TEST_F(BindTest, ByteTensorsHoldPackedNibbles) {
  LaunchInfo info = Gemm();
  info.params[1].dtype = DType::kI4;
  auto args = Args();
  args[1] = Tensor2(DType::kU8, 333, 777);
  EXPECT_TRUE(Make(info).Bind(args));
  info.params[1].shape = {Symbol(kK), Constant(1554)};
  info.params[1].strides = {Symbol(kRow), Constant(1)};
  info.params[0].strides.clear();
  args[1] = Tensor2(DType::kU8, 333, 777, 800);
  auto binding = Make(info).Bind(args);
  ASSERT_TRUE(binding) << binding.error().message;
  EXPECT_EQ(binding->symbols[kRow], 1600);  // in elements
}

TEST_F(BindTest, KeysDifferWhereBindingsMay) {
  const Binder binder = Make();
  const auto key = [&](const std::vector<Arg>& args) {
    std::vector<uint64_t> words(64);
    size_t used = 0;
    EXPECT_TRUE(binder.Key(args, words, used));
    words.resize(used);
    return words;
  };
  const auto base = key(Args());
  auto args = Args();
  args[0].tensor.data += 4096;
  args[2] = Arg::Of(7.0);
  EXPECT_EQ(key(args), base);  // pointers and scalars that no expression reads
  std::vector<std::vector<Arg>> others(6, Args());
  others[0][0].tensor.data += 2;
  others[1][0] = Tensor2(DType::kBF16, 1000, 333);
  others[2][0] = Tensor2(DType::kF16, 1000, 333, 512);
  others[3][3].tensor.data = 0;
  others[4][1].tensor.place = Place::kHost;
  others[5][2] = Arg::Of(int64_t(1));
  for (const auto& other : others) EXPECT_NE(key(other), base);
  std::vector<uint64_t> few(3);
  size_t used = 0;
  EXPECT_FALSE(binder.Key(Args(), few, used));
}

TEST_F(BindTest, DamagedLaunchInfoIsRefused) {
  const auto refuse = [](auto change) {
    LaunchInfo info = Gemm();
    change(info);
    auto binder = Binder::Create(info, "gemm", Place::kCuda, 0);
    EXPECT_FALSE(binder);
    EXPECT_TRUE(binder || binder.error().kind == Error::Kind::kArtifact);
  };
  refuse([](LaunchInfo& i) { i.launches.clear(); });
  refuse([](LaunchInfo& i) { i.launches[0].args[0].index = 9; });
  refuse([](LaunchInfo& i) { i.launches[0].args[0].index = 2; });  // a scalar
  refuse([](LaunchInfo& i) { i.launches[0].args[2].index = 0; });  // a tensor
  refuse([](LaunchInfo& i) { i.launches[0].args[4].index = 4; });
  refuse([](LaunchInfo& i) { i.launches[0].args[5].index = 1; });
  refuse([](LaunchInfo& i) { i.launches[0].args[0].kind = KernelArg::Kind::kNone; });
  refuse([](LaunchInfo& i) { i.launches[0].threads = 0; });
  refuse([](LaunchInfo& i) { i.launches[0].threads = 2048; });
  refuse([](LaunchInfo& i) { i.launches[0].grid.clear(); });
  refuse([](LaunchInfo& i) { i.launches[0].grid.resize(4, Constant(1)); });
  refuse([](LaunchInfo& i) { i.params[0].dtype = DType(77); });
  refuse([](LaunchInfo& i) { i.params[0].strides.pop_back(); });
  refuse([](LaunchInfo& i) { i.params[0].alignment = 24; });
  refuse([](LaunchInfo& i) { i.params[2].output = true; });
  refuse([](LaunchInfo& i) { i.params[0].shape.resize(17, Constant(1)); });
  refuse([](LaunchInfo& i) { i.symbols[0].dtype = DType::kF32; });
  refuse([](LaunchInfo& i) { i.params[0].shape[0] = Symbol(4); });
  refuse([](LaunchInfo& i) { i.workspaces[0].dtype = DType{}; });
  refuse([](LaunchInfo& i) { i.params.resize(Binder::kMaxParams + 1, i.params[0]); });
}

}  // namespace
}  // namespace kiln::runtime
