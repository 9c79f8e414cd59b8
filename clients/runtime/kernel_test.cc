// SPDX-License-Identifier: Apache-2.0
//
// Loading and launching against the fake driver, whose records are read back.
#include "clients/runtime/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <thread>

#include "clients/runtime/testing/fake_device.h"
#include "clients/runtime/timing.h"

namespace kiln::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int64_t LiveAllocations() { return Fake<int64_t()>("kiln_fake_live_allocations")(); }
int64_t LiveModules() { return Fake<int64_t()>("kiln_fake_live_modules")(); }

HostNodes Constant(int64_t value) { return {{HostOp::kConst, value, 0, 0}}; }
HostNodes Symbol(int64_t index) { return {{HostOp::kSymbol, index, 0, 0}}; }

// Two launches that share a workspace of n floats; the second in a cluster of 2.
Artifact Program() {
  Artifact artifact{.target = "cuda:sm_80", .kind = CodeKind::kPtx};
  artifact.code =
      ".visible .entry first(.param .u64 x, .param .u64 w, .param .u32 n, .param .f32 alpha, .param .u16 half)\n"
      ".visible .entry second(.param .u64 w, .param .u64 y)\n";
  artifact.launch.symbols = {{"n", DType::kI32}};
  artifact.launch.params = {{.name = "x", .dtype = DType::kF32, .tensor = true, .shape = {Symbol(0)}},
                            {.name = "y", .dtype = DType::kF32, .tensor = true, .shape = {Symbol(0)}, .output = true, .written = true},
                            {.name = "alpha", .dtype = DType::kF32},
                            {.name = "half", .dtype = DType::kF16}};
  artifact.launch.workspaces = {{DType::kF32, {Symbol(0)}, /*zeroed=*/true}};
  using K = KernelArg::Kind;
  artifact.launch.launches = {
      {.entry = "first",
       .grid = {Symbol(0), Constant(3)},
       .threads = 96,
       .dynamic_shared_bytes = 65536,
       .args = {{K::kTensor, 0}, {K::kWorkspace, 0}, {K::kSymbol, 0}, {K::kScalar, 2}, {K::kScalar, 3}}},
      {.entry = "second", .grid = {Symbol(0)}, .threads = 128, .cluster = {2, 1, 1}, .args = {{K::kWorkspace, 0}, {K::kTensor, 1}}}};
  return artifact;
}

class KernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Fake<void()>("kiln_fake_reset")();
    allocations_ = LiveAllocations();
    modules_ = LiveModules();
    device_ = OpenFakeDevice(DriverKind::kCuda);
  }
  void TearDown() override {
    EXPECT_EQ(LiveAllocations(), allocations_);
    EXPECT_EQ(LiveModules(), modules_);
  }
  std::unique_ptr<Kernel> Load(const Artifact& artifact) {
    auto kernel = Kernel::Load(artifact, device_);
    EXPECT_TRUE(kernel) << kernel.error().message;
    return std::move(*kernel);
  }
  std::vector<Arg> Args(const int64_t& n, uint64_t x = 0x1000, uint64_t y = 0x2000) {
    const auto tensor = [&](uint64_t data) { return Arg::Of(Tensor{.data = data, .dtype = DType::kF32, .shape = {&n, 1}}); };
    return {tensor(x), tensor(y), Arg::Of(0.25), Arg::Of(1.5)};
  }

  std::shared_ptr<Device> device_;
  int64_t allocations_ = 0, modules_ = 0;
};

TEST_F(KernelTest, PacksWhatEachLaunchTakes) {
  auto kernel = Load(Program());
  const int64_t n = 40;
  auto launched = kernel->Launch(Args(n), reinterpret_cast<void*>(0x77));
  ASSERT_TRUE(launched) << launched.error().message;
  ASSERT_EQ(LaunchCount(), 2u);
  const KilnFakeLaunch& first = LaunchAt(0);
  EXPECT_STREQ(first.entry, "first");
  EXPECT_THAT(first.grid, ElementsAre(40, 3, 1));
  EXPECT_THAT(first.block, ElementsAre(96, 1, 1));
  EXPECT_THAT(first.cluster, ElementsAre(0, 0, 0));
  EXPECT_EQ(first.shared_bytes, 65536u);
  EXPECT_EQ(first.stream, 0x77u);
  ASSERT_EQ(first.param_count, 5u);
  EXPECT_EQ(first.params[0], 0x1000u);
  EXPECT_EQ(first.params[2], 40u);
  EXPECT_EQ(first.params[3], std::bit_cast<uint32_t>(0.25f));
  EXPECT_EQ(first.params[4], 0x3e00u);
  const KilnFakeLaunch& second = LaunchAt(1);
  EXPECT_THAT(second.cluster, ElementsAre(2, 1, 1));
  EXPECT_THAT(second.grid, ElementsAre(40, 1, 1));
  EXPECT_EQ(second.params[0], first.params[1]);  // the workspace
  EXPECT_NE(second.params[0], 0u);
  const auto* words = reinterpret_cast<const uint32_t*>(second.params[0]);
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(words[i], 0u) << "flags between blocks start at 0";
  EXPECT_EQ(second.params[1], 0x2000u);
}

TEST_F(KernelTest, BlocksThatWaitForEachOtherAreLaunchedTogether) {
  Artifact artifact = Program();
  artifact.launch.launches[1].args[0].kind = KernelArg::Kind::kBlockCounter;
  auto kernel = Load(artifact);
  const int64_t n = 40;
  ASSERT_TRUE(kernel->Launch(Args(n), nullptr));
  EXPECT_EQ(LaunchAt(0).cooperative, 0u);
  EXPECT_EQ(LaunchAt(1).cooperative, 1u);
  EXPECT_THAT(LaunchAt(1).cluster, ElementsAre(2, 1, 1));
  EXPECT_EQ(*reinterpret_cast<const uint32_t*>(LaunchAt(1).params[0]), 0u) << "nobody has come yet";
  artifact.launch.launches[1].cluster = {};
  kernel = Load(artifact);
  ASSERT_TRUE(kernel->Launch(Args(n), nullptr));
  EXPECT_EQ(LaunchAt(3).cooperative, 1u);
  EXPECT_THAT(LaunchAt(3).cluster, ElementsAre(0, 0, 0));
}

TEST_F(KernelTest, TheShortPathSeesNewPointersScalarsAndShapes) {
  auto kernel = Load(Program());
  const int64_t n = 40, larger = 41;
  auto args = Args(n);
  ASSERT_TRUE(kernel->Launch(args, nullptr));
  args = Args(n, 0x3000, 0x4000);
  args[2] = Arg::Of(2.0);
  ASSERT_TRUE(kernel->Launch(args, nullptr));
  ASSERT_TRUE(kernel->Launch(Args(larger), nullptr));
  ASSERT_TRUE(kernel->Launch(Args(n), nullptr));
  EXPECT_EQ(LaunchAt(2).params[0], 0x3000u);
  EXPECT_EQ(LaunchAt(2).params[3], std::bit_cast<uint32_t>(2.0f));
  EXPECT_EQ(LaunchAt(3).params[1], 0x4000u);
  EXPECT_EQ(LaunchAt(4).grid[0], 41u);
  EXPECT_EQ(LaunchAt(6).grid[0], 40u);
  args[3] = Arg();  // a scalar is checked on the short path too
  EXPECT_FALSE(kernel->Launch(args, nullptr));
}

TEST_F(KernelTest, ManyShapesAreForgottenInTurnAndStayRight) {
  auto kernel = Load(Program());
  for (int64_t n = 1; n <= 50; ++n) ASSERT_TRUE(kernel->Launch(Args(n), nullptr));
  for (int64_t n = 1; n <= 50; ++n) {
    ASSERT_TRUE(kernel->Launch(Args(n), nullptr));
    EXPECT_EQ(LaunchAt(LaunchCount() - 1).grid[0], uint32_t(n));
  }
}

// The first launch of all, and those behind one outside: a graph's are its own, and go with it.
TEST_F(KernelTest, CapturedLaunchesShareNoWorkspaceWithOthers) {
  const auto capture = Fake<void(int)>("kiln_fake_capture");
  capture(KILN_FAKE_CAPTURED);
  Load(Program()).reset();
  EXPECT_EQ(LiveModules(), modules_);
  auto kernel = Load(Program());
  capture(KILN_FAKE_NO_CAPTURE);
  const auto captured = Fake<int64_t()>("kiln_fake_captured_allocations");
  const int64_t n = 40;
  void* const stream = reinterpret_cast<void*>(1);
  capture(KILN_FAKE_CAPTURED);
  auto first = kernel->Launch(Args(n), stream);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(captured(), 1);
  EXPECT_EQ(Fake<int64_t()>("kiln_fake_captured_fills")(), 1) << "or the flags of a replay would be those that the one before left";
  EXPECT_EQ(LiveAllocations(), allocations_) << "freed in the graph, or it could be launched once only";
  capture(KILN_FAKE_NO_CAPTURE);
  ASSERT_TRUE(kernel->Launch(Args(n), stream));
  EXPECT_EQ(LiveAllocations(), allocations_ + 1);
  capture(KILN_FAKE_CAPTURED);
  ASSERT_TRUE(kernel->Launch(Args(n), stream));
  capture(KILN_FAKE_NO_CAPTURE);
  EXPECT_EQ(captured(), 2);
  EXPECT_EQ(LaunchAt(4).params[1], LaunchAt(5).params[0]);
  EXPECT_NE(LaunchAt(4).params[1], LaunchAt(2).params[1]);
  ASSERT_TRUE(kernel->Launch(Args(n), stream));
  EXPECT_EQ(LaunchAt(6).params[1], LaunchAt(2).params[1]);
  capture(KILN_FAKE_CAPTURED);
  FailNext("cuMemAllocAsync", 801);
  const auto failed = kernel->Launch(Args(n), stream);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("allocate 160 bytes in a captured graph"));
}

// The first launch on a stream, a larger one and the end of a kernel, while another thread captures.
TEST_F(KernelTest, GraphsOfOtherThreadsAreNotBroken) {
  const auto capture = Fake<void(int)>("kiln_fake_capture");
  capture(KILN_FAKE_CAPTURED_ELSEWHERE);
  auto kernel = Load(Program());
  const int64_t n = 40, larger = 80;
  void* const stream = reinterpret_cast<void*>(1);
  for (const int64_t* size : {&n, &larger}) {
    auto launched = kernel->Launch(Args(*size), stream);
    ASSERT_TRUE(launched) << launched.error().message;
    EXPECT_EQ(LiveAllocations(), allocations_ + 1);
  }
  kernel.reset();
  EXPECT_EQ(LiveAllocations(), allocations_);
  EXPECT_EQ(LiveModules(), modules_);
  EXPECT_NE(device_->driver().stream_synchronize(stream), 0) << "the thread's capture mode was not put back";
}

// A capture goes on behind a launch that failed.
TEST_F(KernelTest, AFailedLaunchLeavesNoMemoryInItsGraph) {
  const auto captured = Fake<int64_t()>("kiln_fake_captured_allocations");
  Artifact program = Program();
  program.launch.workspaces.push_back({DType::kF32, {Symbol(0), Constant(int64_t(1) << 28)}, /*zeroed=*/false});
  auto kernel = Load(Program()), large = Load(program);
  const int64_t n = 40;
  void* const stream = reinterpret_cast<void*>(1);
  Fake<void(int)>("kiln_fake_capture")(KILN_FAKE_CAPTURED);
  ASSERT_TRUE(kernel->Launch(Args(n), stream));
  for (const char* symbol : {"cuLaunchKernel", "cuLaunchKernelEx", "cuMemsetD8Async"}) {
    FailNext(symbol, 1);
    const auto failed = kernel->Launch(Args(n), stream);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().name, "CUDA_ERROR_INVALID_VALUE");
    EXPECT_EQ(LiveAllocations(), allocations_) << symbol;
  }
  EXPECT_EQ(large->Launch(Args(n), stream).error().name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(LiveAllocations(), allocations_);
  const int64_t before = captured();
  auto args = Args(n);
  args[3] = Arg();
  EXPECT_FALSE(kernel->Launch(args, stream));
  EXPECT_EQ(captured(), before) << "a wrong scalar leaves no node in the graph";
}

TEST_F(KernelTest, StreamsDoNotShareWorkspaces) {
  auto kernel = Load(Program());
  const int64_t n = 40, small = 4;
  ASSERT_TRUE(kernel->Launch(Args(n), reinterpret_cast<void*>(1)));
  ASSERT_TRUE(kernel->Launch(Args(n), reinterpret_cast<void*>(2)));
  ASSERT_TRUE(kernel->Launch(Args(small), reinterpret_cast<void*>(1)));
  EXPECT_NE(LaunchAt(0).params[1], LaunchAt(2).params[1]);
  EXPECT_EQ(LaunchAt(0).params[1], LaunchAt(4).params[1]);  // large enough already
  for (uintptr_t stream = 3; stream < 40; ++stream) ASSERT_TRUE(kernel->Launch(Args(n), reinterpret_cast<void*>(stream)));
  EXPECT_LE(LiveAllocations() - allocations_, 8);
}

TEST_F(KernelTest, AnEmptyGridLaunchesNothing) {
  auto kernel = Load(Program());
  const int64_t none = 0;
  auto args = Args(none, 0, 0);
  auto launched = kernel->Launch(args, nullptr);
  EXPECT_TRUE(launched) << launched.error().message;
  EXPECT_EQ(LaunchCount(), 0u);
}

TEST_F(KernelTest, ConcurrentLaunchesKeepTheirOwnArguments) {
  auto kernel = Load(Program());
  std::vector<std::thread> threads;
  for (int64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) ASSERT_TRUE(kernel->Launch(Args(t, uint64_t(t) << 16), reinterpret_cast<void*>(t)));
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(LaunchCount(), 1600u);
  for (uint32_t i = 0; i < 1600; i += 2) {
    EXPECT_STREQ(LaunchAt(i).entry, "first");
    EXPECT_STREQ(LaunchAt(i + 1).entry, "second");
    EXPECT_EQ(LaunchAt(i).params[0], LaunchAt(i).params[2] << 16);
    EXPECT_EQ(LaunchAt(i).stream, LaunchAt(i + 1).stream);
  }
}

TEST_F(KernelTest, ResourcesAndTheCompilersLogAreKept) {
  auto kernel = Load(Program());
  EXPECT_EQ(kernel->module().loaded_from(), "ptx");
  EXPECT_THAT(kernel->module().log(), HasSubstr("Used 24 registers"));
  EXPECT_EQ(kernel->module().resources()[0].registers, 24);
  const auto attribute = Fake<int(const char*, int)>("kiln_fake_function_attribute");
  EXPECT_EQ(attribute("first", kMaxDynamicSharedBytes), 65536);
  EXPECT_EQ(attribute("second", kMaxDynamicSharedBytes), -1);
  Artifact large = Program();
  large.launch.launches[1].cluster = {16, 1, 1};
  auto cluster = Load(large);
  EXPECT_EQ(attribute("second", kNonPortableCluster), 1);
}

TEST_F(KernelTest, ACubinIsPreferredAndThePtxStandsIn) {
  Artifact artifact = Program();
  artifact.cubin = artifact.code;
  EXPECT_EQ(Load(artifact)->module().loaded_from(), "cubin");
  artifact.cubin = "a cubin of another architecture";
  EXPECT_EQ(Load(artifact)->module().loaded_from(), "ptx");
}

TEST_F(KernelTest, TheDriverDoesNotOptimizeLongCode) {
  Artifact artifact = Program();
  artifact.unoptimized = true;
  EXPECT_THAT(Load(artifact)->module().log(), HasSubstr("not optimized"));
}

TEST_F(KernelTest, FailuresSayWhatWasAskedAndLeakNothing) {
  Artifact artifact = Program();
  artifact.code = "nonsense";
  auto broken = Kernel::Load(artifact, device_);
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().name, "CUDA_ERROR_INVALID_PTX");
  EXPECT_THAT(broken.error().message, HasSubstr("ptxas fatal   : no entry"));

  artifact = Program();
  artifact.launch.launches[1].entry = "third";
  auto absent = Kernel::Load(artifact, device_);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().operation, "find kernel third in the code");

  artifact = Program();
  artifact.target = "cuda:sm_100a";
  EXPECT_EQ(Kernel::Load(artifact, device_).error().kind, Error::Kind::kArtifact);
  artifact = Program();
  artifact.launch.launches[1].cluster = {8, 4, 1};
  EXPECT_EQ(Kernel::Load(artifact, device_).error().kind, Error::Kind::kArtifact);

  auto kernel = Load(Program());
  const int64_t n = 8;
  FailNext("cuLaunchKernel", 700);
  auto launched = kernel->Launch(Args(n), nullptr);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.error().name, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_THAT(launched.error().message, HasSubstr("launch first: CUDA_ERROR_ILLEGAL_ADDRESS; the kernel went outside a tensor"));
  FailNext("cuMemAlloc_v2", 2);
  EXPECT_EQ(Load(Program())->Launch(Args(n), nullptr).error().name, "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(KernelTest, TheCallersContextIsPutBack) {
  auto second = OpenFakeDevice(DriverKind::kCuda, 1);
  auto outer = second->Enter();
  ASSERT_TRUE(outer);
  const Driver& driver = second->driver();
  void *before = nullptr, *after = nullptr;
  driver.context_get(&before);
  auto kernel = Load(Program());
  const int64_t n = 8;
  ASSERT_TRUE(kernel->Launch(Args(n), nullptr));
  driver.context_get(&after);
  EXPECT_EQ(before, after);
  EXPECT_NE(before, nullptr);
}

TEST_F(KernelTest, HipTakesHsaco) {
  device_ = OpenFakeDevice(DriverKind::kHip);
  Artifact artifact = Program();
  artifact.target = "hip:gfx942";
  artifact.kind = CodeKind::kHsaco;
  artifact.launch.launches[1].cluster = {};
  auto kernel = Load(artifact);
  EXPECT_EQ(kernel->module().loaded_from(), "hsaco");
  const int64_t n = 8;
  auto args = Args(n);
  EXPECT_FALSE(kernel->Launch(args, nullptr));  // CUDA tensors
  args[0].tensor.place = args[1].tensor.place = Place::kHip;
  auto launched = kernel->Launch(args, nullptr);
  ASSERT_TRUE(launched) << launched.error().message;
  EXPECT_EQ(LaunchCount(), 2u);
  artifact.kind = CodeKind::kPtx;
  EXPECT_FALSE(Kernel::Load(artifact, device_));
}

TEST_F(KernelTest, MemoryGoesBothWaysAndTimesAreMeasured) {
  auto buffer = DeviceBuffer::Allocate(device_, 8);
  ASSERT_TRUE(buffer);
  const char out[8] = "kiln42!";
  char back[8] = {};
  EXPECT_TRUE(buffer->CopyFrom(out, 8));
  EXPECT_TRUE(buffer->CopyTo(back, 8));
  EXPECT_STREQ(back, out);
  EXPECT_FALSE(buffer->CopyFrom(out, 9));
  EXPECT_TRUE(buffer->Fill(0xff));
  EXPECT_TRUE(buffer->CopyTo(back, 8));
  EXPECT_EQ(uint8_t(back[3]), 0xff);
  auto kernel = Load(Program());
  const int64_t n = 8;
  auto times = MeasureLaunches(*kernel, Args(n), nullptr, 2, 5);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_EQ(times->size(), 5u);
  EXPECT_EQ(LaunchCount(), 14u);
}

}  // namespace
}  // namespace kiln::runtime
