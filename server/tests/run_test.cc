// SPDX-License-Identifier: Apache-2.0
//
// Run from the outside: kilnd with the real worker and the emulator.
#include "server/testing/run_fixture.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "server/worker/sandbox.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

// Reads a row of shared memory that is not there.
constexpr const char* kRowTooFar = R"(kiln 1
func @row_too_far(%A: global f32[64, 64], %B: global f32[64, 64]) outputs(1) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    %s = alloc shared f32[64, 64]
    copy %A[0, 0; 64, 64] -> %s[0, 0; 64, 64]
    for parallel %i, %j in 64, 64 {
      if %A[0, 0] < 1000000.0 {
        store %B[%i, %j] = %s[%i + 1, %j]
      }
    }
  }
}
)";

// A scalar, a tensor with strides of its own and one that is written in place, two launches.
constexpr const char* kTwoLaunches = R"(kiln 1
func @two[%s](%A: global f32[8, 8] strides(%s, 1), %B: global f32[8, 8], %f: f32) {
  kernel @first grid(1) threads 64 blocks(%bx) {
    for parallel %i, %j in 8, 8 {
      store %B[%i, %j] = %B[%i, %j] + %A[%i, %j]
    }
  }
  kernel @second grid(1) threads 64 blocks(%by) {
    for parallel %i, %j in 8, 8 {
      store %B[%i, %j] = %B[%i, %j] * %f
    }
  }
}
)";

class RunOnTest : public RunTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(RunOnTest, GivesTheRightResultForShapesThatDivideNothing) {
  Start();
  for (const std::size_t rows : {1, 64, 77, 1000}) {
    const RunAnswer answer = Double(rows, GetParam());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.FaultKind(), "");
    ASSERT_EQ(answer.outputs.size(), 1u);
    EXPECT_EQ(answer.result.outputs(0).name(), "B");
    EXPECT_EQ(answer.result.outputs(0).tensor().shape(0), static_cast<std::int64_t>(rows));
    EXPECT_TRUE(answer.result.finished());
    EXPECT_EQ(answer.result.microseconds_size(), 1);
    std::vector<float> expected = Counting(rows * 64);
    for (float& value : expected) value *= 2;
    EXPECT_EQ(answer.Floats(), expected) << rows;
  }
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Targets, RunOnTest, ::testing::Values("emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"));

TEST_F(RunTest, TakesScalarsStridesOffsetsAndTensorsWrittenInPlace) {
  Start();
  const std::vector<float> a = Counting(8 * 20 + 4);  // rows of 20 with 8 that count, from the fourth element on
  RunClient client = RunClient(kTwoLaunches, "emu:gfx942").Tensor(a, {8, 8}, {20, 1}, 16).Tensor(std::vector<float>(64, 1.0f), {8, 8});
  const RunAnswer answer = client.Scalar(0.5).Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.FaultKind(), "");
  ASSERT_EQ(answer.result.outputs_size(), 1);
  EXPECT_EQ(answer.result.outputs(0).param(), 1u);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      EXPECT_EQ(answer.Floats().at(std::size_t(i * 8 + j)), (1.0f + a[std::size_t(4 + i * 20 + j)]) * 0.5f) << i << " " << j;
    }
  }
}

TEST_F(RunTest, SharesTheCacheWithCompile) {
  Start();
  v1::CompileRequest request;
  request.set_module(kDouble);
  request.set_target("emu:sm_80");
  const auto compiled = daemon_->Compile(request);
  ASSERT_TRUE(compiled.status.ok()) << compiled.status.error_message();
  const RunAnswer answer = Double();
  EXPECT_EQ(answer.result.origin(), v1::MEMORY);
  EXPECT_EQ(answer.result.key(), compiled.reply.key());
  RunClient by_key("", "emu:sm_80");
  by_key.start().set_key(compiled.reply.key());
  const RunAnswer again = by_key.Tensor(Counting(4096), {64, 64}).Run(*daemon_);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.Floats(), answer.Floats());
  RunClient unknown("", "emu:sm_80");
  unknown.start().set_key(std::string(32, 'x'));
  EXPECT_EQ(unknown.Run(*daemon_).status.error_code(), StatusCode::NOT_FOUND);
}

TEST_F(RunTest, RepeatedLaunchesAreTimedAndChangeNoResult) {
  Start();
  RunClient client = RunClient(kTwoLaunches, "emu:sm_80").Tensor(Counting(64), {8, 8}, {8, 1}).Tensor(Counting(64), {8, 8});
  client.Scalar(1.0).options().set_repeat(5);
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.result.microseconds_size(), 5);
  EXPECT_EQ(answer.Floats().at(10), 20.0f);
}

TEST_F(RunTest, ItsArgumentsAndRepetitionsHaveLimits) {
  Start({"--max-run-arguments=3", "--max-run-repeats=2"});
  const auto refusal = [&](unsigned repeats, int scalars) {
    RunClient client = RunClient(kTwoLaunches, "emu:sm_80").Tensor(Counting(64), {8, 8}, {8, 1}).Tensor(Counting(64), {8, 8});
    for (int i = 0; i < scalars; ++i) client.Scalar(1.0);
    client.options().set_repeat(repeats);
    const grpc::Status status = client.Run(*daemon_).status;
    EXPECT_EQ(status.error_code(), status.ok() ? StatusCode::OK : StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_EQ(refusal(2, 1), "");
  EXPECT_EQ(refusal(3, 1), "a run that is timed 3 times; this kilnd times it at most 2 (--max-run-repeats)");
  EXPECT_EQ(refusal(2, 2), "a run of 4 arguments; this kilnd takes 3 (--max-run-arguments)");
}

TEST_F(RunTest, ChecksNameTheStatementThatGoesWrong) {
  Start();
  RunClient client = RunClient(kRowTooFar, "emu:sm_90a").Tensor(Counting(4096), {64, 64});
  client.options().set_check(true);
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.FaultKind(), "out of bounds");
  const v1::RunFault& fault = answer.result.faults(0);
  EXPECT_NE(fault.statement().text().find("store %B"), std::string::npos) << fault.DebugString();
  EXPECT_GT(fault.statement().number(), 0u);
  EXPECT_EQ(fault.block_size(), 3);
  EXPECT_EQ(fault.buffer(), "s");
  EXPECT_GE(fault.address(), 64u * 64 * 4) << "row 64, whichever thread comes first";
  EXPECT_LT(fault.address(), 65u * 64 * 4);
  EXPECT_FALSE(answer.result.finished());
  EXPECT_EQ(answer.outputs.size(), 0u);
  EXPECT_EQ(Emulators().faults(), 1u);
  ExpectDoubleWorks();
}

TEST_F(RunTest, AKernelThatLoopsForeverCostsThatRun) {
  Start({"--emulators=1"});
  RunClient client = Forever();
  client.options().set_timeout_seconds(0.5);
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.FaultKind(), "timeout") << answer.result.faults(0).message();
  EXPECT_NE(answer.result.faults(0).message().find("0.5 s"), std::string::npos) << answer.result.faults(0).message();
  EXPECT_LT(answer.took, std::chrono::seconds(20));
  ExpectDoubleWorks();
}

TEST_F(RunTest, TheDaemonsLimitHoldsWithoutATimeout) {
  Start({"--run-limit=0.5"});
  EXPECT_EQ(Forever().Run(*daemon_).FaultKind(), "timeout");
  RunClient greedy = Forever();
  greedy.options().set_timeout_seconds(7);
  const RunAnswer refused = greedy.Run(*daemon_);
  EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.status.error_message().find("--run-limit"), std::string::npos) << refused.status.error_message();
}

// Whether a process wants a processor whenever it is looked at, for a quarter of a second.
bool StaysRunning(pid_t process) {
  for (int look = 0; look < 25; ++look) {
    std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    std::getline(stat, line);
    const size_t name = line.rfind(')');
    if (name == std::string::npos || line.compare(name, 3, ") R") != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // between looks
  }
  return true;
}

TEST_F(RunTest, AKilledWorkerCostsItsRunAndIsReplaced) {
  Start({"--emulators=1", "--workers=1"});
  auto running = std::async(std::launch::async, [&] { return Forever().Run(*daemon_); });
  ASSERT_TRUE(Busy(1));
  ASSERT_TRUE(daemon_->Eventually([&] {  // others, like the one that looks for GPUs, may be busy too, for a while
    for (const pid_t worker : Daemon::Children(Zygote())) {
      if (StaysRunning(worker)) ::kill(worker, SIGKILL);
    }
    return running.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  const RunAnswer answer = running.get();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.FaultKind(), "crash");
  EXPECT_NE(answer.result.faults(0).message().find("SIGKILL"), std::string::npos) << answer.result.faults(0).message();
  EXPECT_EQ(Emulators().worker_crashes(), 1u);
  ExpectDoubleWorks();
}

TEST_F(RunTest, ACancelledRunStopsItsWorker) {
  Start({"--emulators=1"});
  EXPECT_EQ(Forever().Run(*daemon_, milliseconds(500)).status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Busy(0));
  ExpectDoubleWorks();
}

TEST_F(RunTest, ARunThatWaitsCanBeCancelled) {
  Start({"--emulators=1"});
  grpc::ClientContext its, next;
  auto running = std::async(std::launch::async, [&] { return Forever().Run(*daemon_, its); });
  ASSERT_TRUE(Busy(1));
  const RunClient client = RunClient(kDouble, "emu:sm_80").Tensor(Counting(64), {1, 64});
  auto waiting = std::async(std::launch::async, [&] { return client.Run(*daemon_, next); });
  EXPECT_TRUE(daemon_->Eventually([&] { return Emulators().queued() == 1; }));
  next.TryCancel();
  EXPECT_EQ(waiting.get().status.error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon_->Eventually([&] { return Emulators().queued() == 0; }));
  EXPECT_TRUE(Busy(1)) << "the other one goes on";
  its.TryCancel();
  EXPECT_EQ(running.get().status.error_code(), StatusCode::CANCELLED);
  ExpectDoubleWorks();
  EXPECT_EQ(Emulators().runs(), 1u);
}

TEST_F(RunTest, AFullQueueRefusesAtOnce) {
  Start({"--emulators=1", "--queue=1"});
  auto running = std::async(std::launch::async, [&] { return Forever().Run(*daemon_); });
  ASSERT_TRUE(Busy(1));  // until the worker has taken it, it fills the queue
  auto waiting = std::async(std::launch::async, [&] { return Forever().Run(*daemon_); });
  ASSERT_TRUE(daemon_->Eventually([&] { return Emulators().queued() == 1; }));
  const RunAnswer refused = Forever().Run(*daemon_);
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.status.error_details().find("google.rpc.RetryInfo"), std::string::npos);
  daemon_->Kill();
}

TEST_F(RunTest, MoreDataThanTheDaemonTakesIsRefused) {
  Start({"--run-data=32KiB", "--run-data-total=64KiB"});
  const auto is_refused = [&](const RunAnswer& answer, StatusCode code, const std::string& word) {
    EXPECT_EQ(answer.status.error_code(), code) << answer.status.error_message();
    EXPECT_NE(answer.status.error_message().find(word), std::string::npos) << answer.status.error_message();
  };
  is_refused(Double(200), StatusCode::RESOURCE_EXHAUSTED, "--run-data");  // the input alone
  is_refused(Double(100), StatusCode::INVALID_ARGUMENT, "--run-data");    // with its output
  ExpectDoubleWorks();

  RunClient lies = RunClient(kDouble, "emu:sm_80").Tensor(Counting(64), {1, 64});
  lies.data() += "more";
  is_refused(lies.Run(*daemon_), StatusCode::INVALID_ARGUMENT, "more data");
  lies.data().resize(100);
  is_refused(lies.Run(*daemon_), StatusCode::INVALID_ARGUMENT, "100 of the tensors' 256 bytes");
  lies.start().mutable_arguments(0)->mutable_tensor()->set_bytes(~std::uint64_t{0});
  is_refused(lies.Run(*daemon_), StatusCode::RESOURCE_EXHAUSTED, "--run-data");
}

TEST_F(RunTest, APieceOfDataIsBounded) {
  Start();
  RunClient client = RunClient(kDouble, "emu:sm_80").Tensor(Counting(10'000 * 64), {10'000, 64});
  EXPECT_EQ(client.Run(*daemon_, std::chrono::seconds(30), 2 << 20).status.error_code(), StatusCode::INVALID_ARGUMENT);
  const RunAnswer answer = client.Run(*daemon_, std::chrono::seconds(60), 1000);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.Floats().at(10'000 * 64 - 2), 2.0f * (10'000 * 64 - 2));
}

TEST_F(RunTest, WhatDoesNotFitTheKernelIsToldByName) {
  Start();
  const auto refused = [&](RunClient client, const std::string& word) {
    const RunAnswer answer = client.Run(*daemon_);
    EXPECT_EQ(answer.status.error_code(), StatusCode::INVALID_ARGUMENT) << answer.status.error_message();
    EXPECT_NE(answer.status.error_message().find(word), std::string::npos) << answer.status.error_message();
  };
  refused(RunClient(kDouble, "emu:sm_80"), "num_args should be 1");
  refused(RunClient(kDouble, "emu:sm_80").Tensor(Counting(32), {1, 32}), "A.shape[1]");
  refused(RunClient(kDouble, "emu:sm_80").Tensor(Counting(32), {1, 64}), "do not lie within the 128 bytes");
  refused(RunClient(kDouble, "emu:sm_80").Tensor(Counting(64), {1, 64}, {64, -1}), "do not lie within");
  refused(RunClient(kDouble, "emu:sm_80").Tensor(Counting(64), {1, 64}, {64}), "strides");
  refused(RunClient(kDouble, "emu:sm_80").Tensor(Counting(64), {std::int64_t{1} << 62, 64}), "do not lie within");
  refused(RunClient(kDouble, "emu:sm_80").Scalar(1), "tensor");
  RunClient elsewhere = RunClient(kDouble, "emu:sm_80").Tensor(Counting(64), {1, 64});
  elsewhere.start().mutable_program()->set_target("cuda:sm_80");
  refused(elsewhere, "leave its target empty");
  refused(RunClient("kiln 1\nnonsense", "emu:sm_80"), "nonsense");
}

TEST_F(RunTest, UnknownDevicesAreNamed) {
  Start();
  for (const char* device : {"cuda:7", "emu:sm_13", "tpu", ""}) {
    const RunAnswer answer = RunClient(kDouble, device).Tensor(Counting(64), {1, 64}).Run(*daemon_);
    EXPECT_EQ(answer.status.error_code(), StatusCode::NOT_FOUND) << answer.status.error_message();
  }
  grpc::ClientContext context;
  v1::CapabilitiesReply capabilities;
  ASSERT_TRUE(daemon_->stub().Capabilities(&context, {}, &capabilities).ok());
  std::set<std::string> names;
  for (const v1::DeviceInfo& device : capabilities.devices()) names.insert(device.name());
  for (const char* name : {"emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"}) EXPECT_TRUE(names.contains(name)) << name;
}

// A driver that allocates, copies and times, and launches nothing.
TEST_F(RunTest, GpusOfTheHostAreDevicesThroughTheirDriver) {
  UseFakeDriver();
  Start();
  ::unsetenv("LD_LIBRARY_PATH");
  grpc::ClientContext context;
  v1::CapabilitiesReply capabilities;
  ASSERT_TRUE(daemon_->stub().Capabilities(&context, {}, &capabilities).ok());
  ASSERT_GE(capabilities.devices_size(), 2);
  EXPECT_EQ(capabilities.devices(0).name(), "cuda:0");
  EXPECT_EQ(capabilities.devices(0).target(), "cuda:sm_90a");

  RunClient client = RunClient(kTwoLaunches, "cuda:1").Tensor(Counting(64), {8, 8}, {8, 1}).Tensor(Counting(64), {8, 8}).Scalar(1.0);
  client.options().set_repeat(3);
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_TRUE(answer.result.finished());
  EXPECT_EQ(answer.result.target(), "cuda:sm_90a");
  EXPECT_EQ(answer.result.device(), "Fake GPU");
  EXPECT_EQ(answer.result.microseconds_size(), 3);
  EXPECT_EQ(answer.Floats(), Counting(64));  // there and back
  EXPECT_EQ(daemon_->Stats().devices(2).name(), "cuda:1");
  EXPECT_EQ(daemon_->Stats().devices(2).runs(), 1u);
  EXPECT_NE(daemon_->LogText().find("devices=\"cuda:0,cuda:1\" protections=\"user="), std::string::npos);
  EXPECT_EQ(daemon_->LogText().find("trouble="), std::string::npos);
  if (!kSanitized) {
    EXPECT_NE(daemon_->LogText().find("calls=allow-list privileges=none-new", daemon_->LogText().find("devices=\"cuda:0")), std::string::npos);
  }
}

// One that launches through a socket: it works as it did when workers had a deny-list alone, and the log says why.
TEST_F(RunTest, ADriverThatDoesNotWorkWhenClosedRunsLoosely) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  UseFakeDriver();
  ::setenv("KILN_FAKE_DRIVER_SOCKETS", "1", 1);
  Start();
  ::unsetenv("LD_LIBRARY_PATH");
  ::unsetenv("KILN_FAKE_DRIVER_SOCKETS");
  const RunAnswer answer = Double(64, "cuda:0");
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.FaultKind(), "");
  const std::string log = daemon_->LogText();
  EXPECT_NE(log.find("level=warning event=workers devices=\"cuda:0,cuda:1\""), std::string::npos) << log;
  EXPECT_NE(log.find("calls=deny-list privileges=none-new\" trouble=\"launch copy_words: CUDA_ERROR_OPERATING_SYSTEM"), std::string::npos) << log;
}

// Trouble that a closed worker has had once is no proof.
TEST_F(RunTest, ADriverThatFailsForAWhileRunsInClosedWorkers) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  UseFakeDriver();
  const fs::path mended = folder_ / "mended";
  ::setenv("KILN_FAKE_DRIVER_MENDED", mended.c_str(), 1);
  Start();
  ::unsetenv("LD_LIBRARY_PATH");
  ::unsetenv("KILN_FAKE_DRIVER_MENDED");
  const RunAnswer answer = Double(64, "cuda:0");
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.FaultKind(), "");
  EXPECT_TRUE(fs::exists(mended)) << "a loose worker was asked";
  const std::string log = daemon_->LogText();
  if (log.find("files=landlock-") == std::string::npos) GTEST_SKIP() << "it fails where it cannot write files";
  EXPECT_EQ(log.find("trouble="), std::string::npos) << log;
  EXPECT_NE(log.find("calls=allow-list privileges=none-new", log.find("devices=\"cuda:0")), std::string::npos) << log;
}

TEST_F(RunTest, TheLogTellsWhyThereIsNoGpu) {
  if (::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/kfd", F_OK) == 0) GTEST_SKIP() << "there may be one";
  Start();
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("event=gpus found=\"none\"") != std::string::npos; }));
  EXPECT_NE(daemon_->LogText().find("cannot open the cuda driver (libcuda.so.1: "), std::string::npos);
  grpc::ClientContext context;
  v1::CapabilitiesReply capabilities;
  ASSERT_TRUE(daemon_->stub().Capabilities(&context, {}, &capabilities).ok());
  ASSERT_EQ(capabilities.gpu_problems_size(), 2);
  EXPECT_NE(capabilities.gpu_problems(0).find("install NVIDIA's driver"), std::string::npos);
}

// Which takes a while; who waits for it takes no thread from the others.
TEST_F(RunTest, RunsForGpusWaitUntilTheirDriverHasListedThem) {
  UseFakeDriver();
  ::setenv("KILN_FAKE_DRIVER_DELAY", "20", 1);
  Start();
  ::unsetenv("LD_LIBRARY_PATH");
  ::unsetenv("KILN_FAKE_DRIVER_DELAY");
  std::vector<std::future<RunAnswer>> waiting;
  for (int i = 0; i < 40; ++i) {
    waiting.push_back(std::async(std::launch::async, [&] { return RunClient(kDouble, "cuda:7").Tensor(Counting(64), {1, 64}).Run(*daemon_); }));
  }
  EXPECT_TRUE(daemon_->Eventually([&] { return MemoriesOfRuns() == 40; })) << "all of them have come";
  ExpectDoubleWorks();
  const auto waits = [](const std::future<RunAnswer>& one) { return one.wait_for(milliseconds(0)) == std::future_status::timeout; };
  EXPECT_TRUE(std::ranges::all_of(waiting, waits)) << "the driver's twenty seconds are not over";
  for (auto& one : waiting) EXPECT_EQ(one.get().status.error_code(), StatusCode::NOT_FOUND);

  RunClient hasty = RunClient(kDouble, "cuda:0").Tensor(Counting(64), {1, 64});
  hasty.options().set_timeout_seconds(1);
  const RunAnswer late = hasty.Run(*daemon_);
  ASSERT_TRUE(late.status.ok()) << late.status.error_message();
  ASSERT_EQ(late.FaultKind(), "timeout");
  EXPECT_TRUE(late.result.faults(0).message().starts_with("the run was ended after 1 s, while its driver started; this kilnd"))
      << late.result.faults(0).message();
}

TEST_F(RunTest, NothingIsEmulatedWhereThatIsTurnedOff) {
  Start({"--emulators=0"});
  EXPECT_EQ(Double().status.error_code(), StatusCode::NOT_FOUND);
  const v1::StatsReply stats = daemon_->Stats();
  for (const v1::DeviceStats& device : stats.devices()) EXPECT_NE(device.name(), "emu");
}

TEST_F(RunTest, WorkersEndWithTheDaemon) {
  Start();
  auto hung = std::async(std::launch::async, [&] { return Forever().Run(*daemon_); });
  ASSERT_TRUE(Busy(1));
  const pid_t zygote = Zygote();
  auto processes = Daemon::Children(zygote);
  ASSERT_FALSE(processes.empty());
  processes.push_back(zygote);
  daemon_->Kill();
  EXPECT_EQ(hung.get().status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Remaining(processes), "");
}

TEST_F(RunTest, ARunWhoseClientVanishesWhileItUploadsLeavesNothing) {
  const fs::path access = folder_ / "access.toml";
  WriteGuarded(access, "[[tenant]]\nname = \"*\"\nrequests = 1\n");
  Start({"--run-calls=1", "--access=" + access.string()});
  for (int i = 0; i < 3; ++i) {
    RunClient client = RunClient(kDouble, "emu:sm_80").Tensor(Counting(64 * 64), {64, 64});
    grpc::ClientContext context;
    const auto stream = daemon_->stub().Run(&context);
    v1::RunRequest request;
    *request.mutable_start() = client.start();
    ASSERT_TRUE(stream->Write(request));
    request.set_data(client.data().substr(0, 1000));
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(daemon_->Eventually([&] { return MemoriesOfRuns() == 1; })) << "it has not begun";
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
    ASSERT_TRUE(daemon_->Eventually([&] { return MemoriesOfRuns() == 0; }));
    EXPECT_TRUE(daemon_->Eventually([&] { return Double().status.ok(); })) << "it is counted for ever";
  }
}

// Neither its tensors nor its kernel were there when the drain began.
TEST_F(RunTest, ARunThatStillUploadsWhenADrainBeginsIsAnswered) {
  Start({"--grace=60"});
  RunClient client = RunClient(kDouble, "emu:sm_80").Tensor(Counting(64 * 64), {64, 64});
  grpc::ClientContext context;
  const auto stream = daemon_->stub().Run(&context);
  v1::RunRequest request;
  *request.mutable_start() = client.start();
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(daemon_->Eventually([&] { return MemoriesOfRuns() == 1; })) << "it has not begun";
  ::kill(daemon_->pid(), SIGTERM);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().state() == "draining"; }));
  EXPECT_EQ(Double().status.error_code(), StatusCode::UNAVAILABLE) << "it came after the drain had begun";
  request.set_data(client.data());
  EXPECT_TRUE(stream->Write(request));
  stream->WritesDone();
  v1::RunResult result;
  std::size_t bytes = 0;
  for (v1::RunReply reply; stream->Read(&reply);) {
    if (reply.has_result()) result = reply.result();
    if (reply.part_case() == v1::RunReply::kData) bytes += reply.data().size();
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(result.finished());
  EXPECT_EQ(result.origin(), v1::COMPILED);
  EXPECT_EQ(bytes, 64u * 64 * sizeof(float));
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(RunTest, DrainingEndsWhatStillRuns) {
  Start({"--grace=0.3"});
  auto hung = std::async(std::launch::async, [&] { return Forever().Run(*daemon_); });
  ASSERT_TRUE(Busy(1));
  const auto processes = Daemon::Children(Zygote());
  EXPECT_EQ(daemon_->Stop(), 0);
  EXPECT_EQ(hung.get().status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Remaining(processes), "");
}

}  // namespace
}  // namespace kiln::server::testing
