// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps from the artifact to the kernel's parameter, against a driver that refuses what CUDA's does.
#include "clients/runtime/tensor_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <list>
#include <thread>

#include "clients/runtime/kernel.h"
#include "clients/runtime/testing/fake_device.h"
#include "compiler/emulator/tensor_map.h"

namespace kiln::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Extents = std::vector<int64_t>;

HostNodes Constant(int64_t value) { return {{HostOp::kConst, value, 0, 0}}; }
HostNodes Symbol(int64_t index) { return {{HostOp::kSymbol, index, 0, 0}}; }

// Two launches that read A[m, k] with rows `row` apart by tensor copies, the second B[k] by them too. Blocks: m of the first, one of
// the second.
Artifact Program() {
  Artifact artifact{.target = "cuda:sm_90a", .kind = CodeKind::kPtx};
  artifact.code =
      ".entry first(.param .u64 .ptr .global .align 1 b, .param .align 64 .b8 map[128], .param .u32 m)\n"
      ".entry second(.param .align 64 .b8 b[128], .param .align 64 .b8 a[128])\n";
  LaunchInfo& info = artifact.launch;
  info.symbols = {{"m", DType::kI32}, {"k", DType::kI32}, {"row", DType::kI64}};
  info.params = {
      {.name = "A", .dtype = DType::kF16, .tensor = true, .shape = {Symbol(0), Symbol(1)}, .strides = {Symbol(2), Constant(1)}, .alignment = 16},
      {.name = "B", .dtype = DType::kF32, .tensor = true, .shape = {Symbol(1)}, .alignment = 16}};
  info.tensor_maps = {{.tensor = 0, .box = {128, 64}, .swizzle_bytes = 128}, {.tensor = 1, .box = {8}, .swizzle_bytes = 0}};
  using K = KernelArg::Kind;
  info.launches = {{.entry = "first", .grid = {Symbol(0)}, .threads = 128, .args = {{K::kTensor, 1}, {K::kTensorMap, 0}, {K::kSymbol, 0}}},
                   {.entry = "second", .grid = {Constant(1)}, .threads = 128, .args = {{K::kTensorMap, 1}, {K::kTensorMap, 0}}}};
  return artifact;
}

class TensorMapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Fake<void()>("kiln_fake_reset")();
    device_ = OpenFakeDevice(DriverKind::kCuda);
  }
  std::unique_ptr<Kernel> Load(const Artifact& artifact = Program()) {
    auto kernel = Kernel::Load(artifact, device_, "scale");
    EXPECT_TRUE(kernel) << kernel.error().message;
    return std::move(*kernel);
  }
  Arg TensorOf(DType dtype, uint64_t data, Extents shape, Extents strides = {}) {
    const Extents& extents = storage_.emplace_back(std::move(shape));
    Tensor tensor{.data = data, .dtype = dtype, .shape = extents};
    if (!strides.empty()) tensor.strides = storage_.emplace_back(std::move(strides)).data();
    return Arg::Of(tensor);
  }
  std::vector<Arg> Args(int64_t m, int64_t k, int64_t row, uint64_t a = 0x10000, uint64_t b = 0x20000) {
    return {TensorOf(DType::kF16, a, {m, k}, {row, 1}), TensorOf(DType::kF32, b, {k})};
  }
  // Of a launch that the arguments, and nothing else, prevent.
  Error Refused(Kernel& kernel, const std::vector<Arg>& args) {
    const uint32_t before = LaunchCount();
    auto launched = kernel.Launch(args, nullptr);
    EXPECT_FALSE(launched);
    EXPECT_EQ(LaunchCount(), before);
    if (launched) return {};
    EXPECT_EQ(launched.error().kind, Error::Kind::kArgument) << launched.error().message;
    return launched.error();
  }
  static const KilnFakeTensorMap& MapAt(uint32_t launch, uint32_t param) {
    const auto* map = Fake<const KilnFakeTensorMap*(uint32_t, uint32_t)>("kiln_fake_launch_map")(launch, param);
    static constexpr KilnFakeTensorMap kNone{};
    EXPECT_TRUE(map);
    return map ? *map : kNone;
  }
  static uint32_t Encoded() { return Fake<uint32_t()>("kiln_fake_maps_encoded")(); }

  std::shared_ptr<Device> device_;
  std::list<Extents> storage_;
};

TEST_F(TensorMapTest, KernelsGetTheMapOfTheirTensor) {
  auto kernel = Load();
  auto launched = kernel->Launch(Args(1000, 320, 512), nullptr);
  ASSERT_TRUE(launched) << launched.error().message;
  ASSERT_EQ(LaunchCount(), 2u);
  EXPECT_EQ(LaunchAt(0).params[0], 0x20000u);
  EXPECT_EQ(LaunchAt(0).params[2], 1000u);
  const KilnFakeTensorMap& a = MapAt(0, 1);
  EXPECT_EQ(a.address, 0x10000u);
  EXPECT_EQ(a.type, 6);  // CU_TENSOR_MAP_DATA_TYPE_FLOAT16
  EXPECT_EQ(a.rank, 2);
  EXPECT_THAT(a.dims, ElementsAre(320, 1000, 0, 0, 0));
  EXPECT_THAT(a.strides, ElementsAre(1024, 0, 0, 0));
  EXPECT_THAT(a.box, ElementsAre(64, 128, 0, 0, 0));
  EXPECT_THAT(a.element_strides, ElementsAre(1, 1, 0, 0, 0));
  EXPECT_EQ(a.interleave, 0);
  EXPECT_EQ(a.swizzle, 3);    // CU_TENSOR_MAP_SWIZZLE_128B
  EXPECT_EQ(a.promotion, 2);  // CU_TENSOR_MAP_L2_PROMOTION_L2_128B
  EXPECT_EQ(a.fill, 0);
  const KilnFakeTensorMap& b = MapAt(1, 0);
  EXPECT_EQ(b.address, 0x20000u);
  EXPECT_EQ(b.type, 7);  // CU_TENSOR_MAP_DATA_TYPE_FLOAT32
  EXPECT_EQ(b.rank, 1);
  EXPECT_THAT(b.dims, ElementsAre(320, 0, 0, 0, 0));
  EXPECT_EQ(b.swizzle, 0);
  EXPECT_EQ(MapAt(1, 1).address, 0x10000u);
}

TEST_F(TensorMapTest, FiveDimensionsAreReversed) {
  const LaunchParam param{.name = "T", .dtype = DType::kBF16, .tensor = true, .shape = std::vector<HostNodes>(5)};
  const TensorMap map{.tensor = 0, .box = {1, 2, 3, 4, 32}, .swizzle_bytes = 64};
  ASSERT_TRUE(CheckTensorMap(map, {&param, 1}));
  auto dense = DescribeTensor(map, param, TensorOf(DType::kBF16, 16, {5, 7, 9, 11, 64}).tensor);
  ASSERT_TRUE(dense) << dense.error();
  EXPECT_EQ(dense->type, 9);
  EXPECT_EQ(dense->swizzle, 2);
  EXPECT_THAT(dense->dims, ElementsAre(64, 11, 9, 7, 5));
  EXPECT_THAT(dense->strides, ElementsAre(128, 128 * 11, 128 * 99, 128 * 693));
  EXPECT_THAT(dense->box, ElementsAre(32, 4, 3, 2, 1));
  auto permuted = DescribeTensor(map, param, TensorOf(DType::kBF16, 16, {5, 7, 9, 11, 64}, {64, 8000, 320, 40000, 1}).tensor);
  ASSERT_TRUE(permuted) << permuted.error();
  EXPECT_THAT(permuted->strides, ElementsAre(80000, 640, 16000, 128));
}

TEST_F(TensorMapTest, PanelsAreTheOutermostDimension) {
  const LaunchParam param{.name = "T", .dtype = DType::kBF16, .tensor = true, .shape = std::vector<HostNodes>(3)};
  const TensorMap map{.tensor = 0, .box = {1, 8, 64}, .swizzle_bytes = 128, .panels = 4};
  ASSERT_TRUE(CheckTensorMap(map, {&param, 1}));
  auto spec = DescribeTensor(map, param, TensorOf(DType::kBF16, 16, {5, 9, 512}).tensor);
  ASSERT_TRUE(spec) << spec.error();
  EXPECT_EQ(spec->rank, 4u);
  EXPECT_THAT(spec->dims, ElementsAre(64, 9, 5, 8, 0));
  EXPECT_THAT(spec->strides, ElementsAre(1024, 9216, 128, 0));
  EXPECT_THAT(spec->box, ElementsAre(64, 8, 1, 4, 0));
  auto cut = DescribeTensor(map, param, TensorOf(DType::kBF16, 16, {5, 9, 520}).tensor);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error(), "extent 2 is 520; it must be a multiple of 64");
}

TEST_F(TensorMapTest, PanelsTakeARankOfFive) {
  const LaunchParam param{.name = "T", .dtype = DType::kBF16, .tensor = true, .shape = std::vector<HostNodes>(5)};
  const TensorMap full{.tensor = 0, .box = {1, 1, 1, 8, 64}, .swizzle_bytes = 128, .panels = 4};
  auto checked = CheckTensorMap(full, {&param, 1});
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message, HasSubstr("one fewer where it has panels"));
  const LaunchParam plane{.name = "T", .dtype = DType::kBF16, .tensor = true, .shape = std::vector<HostNodes>(2)};
  EXPECT_TRUE(CheckTensorMap({.tensor = 0, .box = {8, 64}, .swizzle_bytes = 128, .panels = 256}, {&plane, 1}));
  EXPECT_FALSE(CheckTensorMap({.tensor = 0, .box = {8, 64}, .swizzle_bytes = 128, .panels = 257}, {&plane, 1}));
}

TEST_F(TensorMapTest, TypesAreThoseOfTheSameElements) {
  const std::pair<DType, int> types[] = {{DType::kBool, 0},       {DType::kI8, 0},  {DType::kU8, 0},  {DType::kF8E4M3, 0}, {DType::kF8E5M2, 0},
                                         {DType::kF8E4M3FNUZ, 0}, {DType::kI16, 1}, {DType::kU16, 1}, {DType::kU32, 2},    {DType::kI32, 3},
                                         {DType::kU64, 4},        {DType::kI64, 5}, {DType::kF16, 6}, {DType::kF32, 7},    {DType::kTF32, 7},
                                         {DType::kF64, 8},        {DType::kBF16, 9}};
  for (const auto& [dtype, number] : types) {
    const LaunchParam param{.name = "T", .dtype = dtype, .tensor = true, .shape = std::vector<HostNodes>(1)};
    const TensorMap map{.tensor = 0, .box = {16}, .swizzle_bytes = 0};
    EXPECT_TRUE(CheckTensorMap(map, {&param, 1})) << Name(dtype);
    EXPECT_EQ(DescribeTensor(map, param, TensorOf(dtype, 16, {16}).tensor)->type, number) << Name(dtype);
  }
}

TEST_F(TensorMapTest, MapsAreEncodedAgainWhenTheirTensorMovesOnly) {
  auto kernel = Load();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(kernel->Launch(Args(1000, 320, 512), nullptr));
  EXPECT_EQ(Encoded(), 2u);  // each once, though A's is taken by two launches
  ASSERT_TRUE(kernel->Launch(Args(1000, 320, 512, 0x40000), nullptr));
  EXPECT_EQ(Encoded(), 3u);
  EXPECT_EQ(MapAt(10, 1).address, 0x40000u);
  EXPECT_EQ(MapAt(11, 0).address, 0x20000u);
  ASSERT_TRUE(kernel->Launch(Args(1000, 320, 1024, 0x40000), nullptr));
  EXPECT_EQ(Encoded(), 5u);
  EXPECT_EQ(MapAt(12, 1).strides[0], 2048u);
  ASSERT_TRUE(kernel->Launch(Args(1000, 320, 512, 0x40000), nullptr));
  EXPECT_EQ(Encoded(), 5u);  // both shapes are remembered
  EXPECT_EQ(MapAt(14, 1).strides[0], 1024u);
}

TEST_F(TensorMapTest, ThreadsWithTensorsOfTheirOwnGetTheirOwnMaps) {
  auto kernel = Load();
  std::vector<std::thread> threads;
  for (int64_t t = 1; t <= 4; ++t) {
    const auto args = Args(t, 320, 512, uint64_t(t) << 16, uint64_t(t) << 20), same = Args(9, 320, 512, uint64_t(t) << 16, uint64_t(t) << 20);
    threads.emplace_back([&kernel, args, same, t] {
      for (int i = 0; i < 200; ++i) ASSERT_TRUE(kernel->Launch(i % 2 ? args : same, reinterpret_cast<void*>(t)));
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(LaunchCount(), 1600u);
  for (uint32_t i = 0; i < 1600; i += 2) {
    const uint64_t t = LaunchAt(i).stream;
    ASSERT_EQ(MapAt(i, 1).address, t << 16);
    ASSERT_EQ(MapAt(i + 1, 0).address, t << 20);
    ASSERT_EQ(MapAt(i, 1).dims[1], LaunchAt(i).params[2]);
  }
}

TEST_F(TensorMapTest, TensorsThatNoMapHoldsAskForACompileWithoutThem) {
  auto kernel = Load();
  const auto refusal = [&](const std::vector<Arg>& args) {
    const Error error = Refused(*kernel, args);
    EXPECT_EQ(error.alignment, 8u) << error.message;
    return error.message;
  };
  EXPECT_EQ(refusal(Args(1000, 0, 512)),
            "scale.A cannot be moved by tensor copies (TMA): extent 1 is 0; it must be in 1 … 2147352576; compile "
            "with pointer_alignment = 8, or with disable_tma");
  EXPECT_THAT(refusal(Args(1000, 320, 513)), HasSubstr("stride 0 has 1026 bytes; they must be a multiple of 16"));
  EXPECT_THAT(refusal(Args(1000, 320, 0)), HasSubstr("stride 0 is 0; it must be positive"));
  EXPECT_THAT(refusal(Args(1000, 320, -512)), HasSubstr("stride 0 is -512; it must be positive"));
  EXPECT_THAT(refusal(Args(1000, 320, int64_t(1) << 39)), HasSubstr("below 2^40 bytes"));
  EXPECT_THAT(refusal(Args(1000, 320, 512, 0x10008)), HasSubstr("scale.A.data is expected to be aligned to 16 bytes"));
  EXPECT_EQ(Refused(*kernel, Args(1000, 320, 513, 0x10000, 0x20004)).alignment, 4u);
  EXPECT_EQ(Encoded(), 0u);
}

// A flat tensor, of which the kernel copies tiles of a view of `rows` × 320 elements, rows `row` apart.
Artifact ProgramOfView() {
  Artifact artifact = Program();
  LaunchInfo& info = artifact.launch;
  const auto scalar = [](uint32_t param) { return HostNodes{{HostOp::kScalar, int64_t(param), 0, 0}}; };
  info.symbols = {{"size", DType::kI64}};
  info.params[0].shape = {Symbol(0)};
  info.params[0].strides.clear();
  info.params[1].shape = {Constant(320)};
  info.params.push_back({.name = "rows", .dtype = DType::kI32});
  info.params.push_back({.name = "row", .dtype = DType::kI32});
  info.views = {{.tensor = 0, .shape = {scalar(2), Constant(320)}, .strides = {scalar(3), Constant(1)}, .positive = {scalar(3)}}};
  info.tensor_maps[0].view = 1;
  info.launches[0].grid = {scalar(2)};
  info.launches.pop_back();
  return artifact;
}

TEST_F(TensorMapTest, AViewsMapHasTheViewsShape) {
  auto kernel = Load(ProgramOfView());
  const auto launch = [&](int64_t size, int64_t rows, int64_t row) {
    return kernel->Launch(
        std::vector<Arg>{TensorOf(DType::kF16, 0x10000, {size}), TensorOf(DType::kF32, 0x20000, {320}), Arg::Of(rows), Arg::Of(row)}, nullptr);
  };
  ASSERT_TRUE(launch(9 * 512 + 320, 10, 512));
  EXPECT_THAT(MapAt(0, 1).dims, ElementsAre(320, 10, 0, 0, 0));
  EXPECT_THAT(MapAt(0, 1).strides, ElementsAre(1024, 0, 0, 0));
  ASSERT_TRUE(launch(9 * 512 + 320, 5, 1024));  // other scalars, another plan
  EXPECT_THAT(MapAt(1, 1).dims, ElementsAre(320, 5, 0, 0, 0));
  EXPECT_THAT(MapAt(1, 1).strides, ElementsAre(2048, 0, 0, 0));
}

TEST_F(TensorMapTest, ArgumentsThatHoldNoViewAskForACompileWithout) {
  auto kernel = Load(ProgramOfView());
  const auto refusal = [&](int64_t size, int64_t rows, int64_t row) {
    const Error error =
        Refused(*kernel, {TensorOf(DType::kF16, 0x10000, {size}), TensorOf(DType::kF32, 0x20000, {320}), Arg::Of(rows), Arg::Of(row)});
    EXPECT_EQ(error.alignment, 8u) << error.message;
    return error.message;
  };
  EXPECT_EQ(refusal(9 * 512 + 319, 10, 512),
            "scale.A is not the tensor that it is taken for: its 4927 elements do not hold a tensor of shape (10, 320) with strides (512, 1); "
            "compile with pointer_alignment = 8");
  EXPECT_THAT(refusal(5000, 10, -512), HasSubstr("row is -512, not positive"));
  EXPECT_THAT(refusal(5000, 10, 0), HasSubstr("row is 0, not positive"));
  EXPECT_THAT(refusal(int64_t{1} << 40, int64_t{1} << 30, 1 << 30), HasSubstr("do not hold"));
}

TEST_F(TensorMapTest, AnAbsentTensorIsEmpty) {
  Artifact artifact = Program();
  artifact.launch.symbols.pop_back();
  artifact.launch.params[0].strides.clear();
  auto kernel = Load(artifact);
  const Error error = Refused(*kernel, {TensorOf(DType::kF16, 0x10000, {1000, 0}), Arg()});
  EXPECT_EQ(error.alignment, 8u) << error.message;
}

TEST_F(TensorMapTest, AnAlignmentTooSmallInTheArtifactIsRaised) {
  Artifact artifact = Program();
  for (auto& param : artifact.launch.params) param.alignment = 4;
  EXPECT_EQ(Refused(*Load(artifact), Args(1000, 320, 512, 0x10008)).alignment, 8u);
}

TEST_F(TensorMapTest, LaunchesThatDoNotTakePlaceNeedNoMaps) {
  Artifact artifact = Program();
  artifact.launch.launches.pop_back();
  auto kernel = Load(artifact);
  auto launched = kernel->Launch(Args(0, 320, 513), nullptr);
  EXPECT_TRUE(launched) << launched.error().message;
  EXPECT_EQ(LaunchCount(), 0u);
  EXPECT_EQ(Encoded(), 0u);
}

TEST_F(TensorMapTest, StridesOfSingleRowsDoNotMatter) {
  auto kernel = Load();
  for (int64_t row : {513, 0, -1}) {
    auto launched = kernel->Launch(Args(1, 320, row), nullptr);
    ASSERT_TRUE(launched) << launched.error().message;
    EXPECT_THAT(MapAt(LaunchCount() - 2, 1).dims, ElementsAre(320, 1, 0, 0, 0));
  }
}

TEST_F(TensorMapTest, WhatTheDriverRefusesIsNamedAndTriedAgain) {
  auto kernel = Load();
  FailNext("cuTensorMapEncodeTiled", 1);
  auto launched = kernel->Launch(Args(1000, 320, 512), nullptr);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.error().kind, Error::Kind::kDriver);
  EXPECT_EQ(launched.error().name, "CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(launched.error().message,
            "encode a tensor map of scale.A (address 0x10000, shape 1000×320, strides of 1024 bytes, boxes of 128×64, swizzle of 128 bytes): "
            "CUDA_ERROR_INVALID_VALUE; compile with CompileOptions.disable_tma, and the kernel needs none");
  EXPECT_EQ(LaunchCount(), 0u);
  ASSERT_TRUE(kernel->Launch(Args(1000, 320, 512), nullptr));
  EXPECT_EQ(MapAt(0, 1).address, 0x10000u);
}

TEST_F(TensorMapTest, DriversWithoutThemAreTooOld) {
  Loader old = Loader::System();
  old.symbol = [symbol = old.symbol](void* library, const char* name) {
    return std::string_view(name) == "cuTensorMapEncodeTiled" ? nullptr : symbol(library, name);
  };
  device_ = OpenFakeDevice(DriverKind::kCuda, 0, old);
  auto kernel = Kernel::Load(Program(), device_);
  ASSERT_FALSE(kernel);
  EXPECT_THAT(kernel.error().message, HasSubstr("update it to CUDA 12 or newer, or compile with CompileOptions.disable_tma"));
  Artifact without = Program();
  without.launch.tensor_maps.clear();
  for (auto& launch : without.launch.launches) launch.args = {{KernelArg::Kind::kTensor, 0}};
  EXPECT_TRUE(Kernel::Load(without, device_));
}

TEST_F(TensorMapTest, TheEmulatorGetsItsOwn) {
  auto binder = Binder::Create(Program().launch, "scale", Place::kHost, 0);
  ASSERT_TRUE(binder) << binder.error().message;
  auto args = Args(1000, 320, 512);
  for (Arg& arg : args) arg.tensor.place = Place::kHost;
  auto binding = binder->Bind(args);
  ASSERT_TRUE(binding) << binding.error().message;
  auto maps = EmulateTensorMaps(*binder, args, *binding);
  ASSERT_TRUE(maps) << maps.error().message;
  ASSERT_EQ(maps->size(), 2u);
  const auto a = std::bit_cast<emulator::TensorMap>((*maps)[0]), b = std::bit_cast<emulator::TensorMap>((*maps)[1]);
  EXPECT_EQ(a.magic, emulator::TensorMap::kMagic);
  EXPECT_EQ(a.address, 0x10000u);
  EXPECT_EQ(a.type, emulator::TensorType::kF16);
  EXPECT_EQ(a.swizzle, emulator::TensorSwizzle::k128);
  EXPECT_EQ(a.fill, emulator::TensorFill::kZero);
  EXPECT_EQ(a.rank, 2);
  EXPECT_THAT(a.dims, ElementsAre(319, 999, 0, 0, 0));  // less one
  EXPECT_THAT(a.strides, ElementsAre(1024, 0, 0, 0));
  EXPECT_THAT(a.box, ElementsAre(64, 128, 0, 0, 0));
  EXPECT_EQ(b.address, 0x20000u);
  EXPECT_EQ(b.type, emulator::TensorType::kF32);
  EXPECT_EQ(b.rank, 1);
  binding->grids[0].empty = binding->grids[1].empty = true;
  EXPECT_EQ(std::bit_cast<emulator::TensorMap>((*EmulateTensorMaps(*binder, args, *binding))[0]).address, 0u);
}

TEST_F(TensorMapTest, DamagedViewsAreRefused) {
  const auto refuse = [](auto change) {
    LaunchInfo info = ProgramOfView().launch;
    change(info);
    auto binder = Binder::Create(info, "scale", Place::kCuda, 0);
    EXPECT_FALSE(binder);
    return binder ? "" : binder.error().message;
  };
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.views[0].tensor = 2; }), HasSubstr("no tensor"));
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.views[0].tensor = 9; }), HasSubstr("not there"));
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.views[0].strides.pop_back(); }), HasSubstr("2 dimensions and 1 strides"));
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.views[0].shape[0] = Symbol(7); }), HasSubstr("symbol"));
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.views.resize(300, info.views[0]); }), HasSubstr("300 views"));
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.tensor_maps[0].view = 2; }), HasSubstr("a view that is not there"));
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.tensor_maps[1].view = 1; }), HasSubstr("of another tensor"));
  EXPECT_THAT(refuse([](LaunchInfo& info) { info.tensor_maps[0].box = {64}; }), HasSubstr("a box of 1 dimensions"));
}

TEST_F(TensorMapTest, DamagedMapsAreRefused) {
  const auto refuse = [](auto change, Place place = Place::kCuda) {
    LaunchInfo info = Program().launch;
    change(info);
    auto binder = Binder::Create(info, "scale", place, 0);
    EXPECT_FALSE(binder);
    EXPECT_TRUE(binder || binder.error().kind == Error::Kind::kArtifact);
  };
  refuse([](LaunchInfo& i) { i.launches[0].args[1].index = 2; });
  refuse([](LaunchInfo& i) { i.tensor_maps[0].tensor = 2; });
  refuse([](LaunchInfo& i) { i.params[1] = {.name = "B", .dtype = DType::kF32}; });  // a scalar
  refuse([](LaunchInfo& i) { i.tensor_maps[0].box = {64}; });
  refuse([](LaunchInfo& i) { i.tensor_maps[0].box = {1, 128, 64}; });
  refuse([](LaunchInfo& i) { i.tensor_maps[1].box = {}; });
  refuse([](LaunchInfo& i) { i.tensor_maps[0].box = {0, 64}; });
  refuse([](LaunchInfo& i) { i.tensor_maps[0].box = {257, 64}; });
  refuse([](LaunchInfo& i) { i.tensor_maps[0].box = {128, 72}; });  // 144 bytes in a swizzle of 128
  refuse([](LaunchInfo& i) { i.tensor_maps[0].box = {128, 60}; });  // 120 bytes
  refuse([](LaunchInfo& i) { i.tensor_maps[0].swizzle_bytes = 16; });
  refuse([](LaunchInfo& i) { i.params[1].dtype = DType::kI4; });
  refuse([](LaunchInfo& i) { i.tensor_maps.resize(300, i.tensor_maps[0]); });
  refuse([](LaunchInfo& i) { i.params[0].shape.resize(6, Constant(1)), i.params[0].strides.clear(), i.tensor_maps[0].box.resize(6, 8); });
  refuse([](LaunchInfo&) {}, Place::kHip);
  EXPECT_TRUE(Binder::Create(Program().launch, "scale", Place::kCuda, 0));
}

}  // namespace
}  // namespace kiln::runtime
