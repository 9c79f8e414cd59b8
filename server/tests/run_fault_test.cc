// SPDX-License-Identifier: Apache-2.0
//
// What a kernel does wrong costs its call alone: the answer names it, the worker is replaced, the next call runs.
#include "server/testing/run_fixture.h"

namespace kiln::server::testing {
namespace {

// Its rows are taken from where the caller says.
constexpr const char* kRow = R"(kiln 1
func @row(%A: global f32[64, 64], %B: global f32[64, 64], %row: i32) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    %s = alloc shared f32[64, 64]
    copy %A[0, 0; 64, 64] -> %s[0, 0; 64, 64]
    for parallel %i, %j in 64, 64 {
      store %B[%i, %j] = %s[%i + %row, %j]
    }
  }
}
)";

// Half of the threads wait for each other.
constexpr const char* kHalfWaits = R"(kiln 1
func @half(%A: global f32[1], %B: global f32[1]) thread(%t) {
  kernel @main grid(2) threads 128 blocks(%bx) {
    if %t < 64 {
      barrier
    }
  }
}
)";

// Threads of one block write one element each with a value of their own, and so do both blocks.
constexpr const char* kRace = R"(kiln 1
func @race(%A: global f32[8, 16], %B: global f32[8, 16]) {
  kernel @main grid(2) threads 64 blocks(%bx) {
    for parallel %i in 16 {
      store %B[3, %i] = %A[%bx, %i]
    }
  }
}
)";

// Both blocks write a row of a temporary tensor.
constexpr const char* kRaceInAWorkspace = R"(kiln 1
func @temporary(%A: global f32[8, 16], %B: global f32[8, 16]) {
  workspace %partial: global f32[4, 16]
  kernel @main grid(2) threads 64 blocks(%bx) {
    for parallel %i in 16 {
      store %partial[3, %i] = %A[%bx, %i]
    }
  }
}
)";

// The last row of a tensor of any size.
constexpr const char* kLast = R"(kiln 1
func @last[%m](%A: global f32[%m, 64], %B: global f32[64]) outputs(1) {
  kernel @main grid(1) threads 64 blocks(%bx) {
    for parallel %j in 64 {
      store %B[%j] = %A[%m - 1, %j]
    }
  }
}
)";

// Threads write one element, different values; then all wait for what never comes.
constexpr const char* kRaceThenSpin = R"(kiln 1
func @race_then_spin(%A: global f32[64, 64], %B: global f32[64, 64]) outputs(1) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    %s = alloc shared f32[1]
    for parallel %i, %j in 64, 64 {
      if %A[%i, %j] < 10000.0 {
        store %s[0] = %A[%i, %j] + 1.0
      }
    }
    while %s[0] > 0.0 {
      store %B[1, 0] = 1.0
    }
  }
}
)";

class RunFaultTest : public RunTest {
 protected:
  RunAnswer Row(std::int64_t row, bool check) {
    RunClient client = RunClient(kRow, "emu:sm_80").Tensor(Counting(4096), {64, 64}).Tensor(Counting(4096), {64, 64});
    client.start().add_arguments()->set_integer(row);
    client.options().set_check(check);
    return client.Run(*daemon_);
  }
};

TEST_F(RunFaultTest, AnIllegalAccessIsNamedWithoutACheckToo) {
  Start({"--emulators=1"});
  ASSERT_EQ(Row(0, false).FaultKind(), "");
  for (const std::int64_t row : {std::int64_t{300}, std::int64_t{1} << 17}) {  // near enough to hit what lies beside, and far away
    const RunAnswer wild = Row(row, false);
    ASSERT_TRUE(wild.status.ok()) << wild.status.error_message();
    ASSERT_EQ(wild.FaultKind(), "out of bounds");
    EXPECT_NE(wild.result.faults(0).statement().text().find("store %B"), std::string::npos);
    EXPECT_FALSE(wild.result.finished());
    EXPECT_EQ(Emulators().worker_crashes(), 0u);
    ExpectDoubleWorks();
  }
}

TEST_F(RunFaultTest, ACheckedRunSaysWhereItWent) {
  Start({"--emulators=1"});
  const RunAnswer answer = Row(2, true);
  ASSERT_EQ(answer.FaultKind(), "out of bounds");
  const v1::RunFault& fault = answer.result.faults(0);
  EXPECT_GE(fault.address(), 64u * 64 * 4);
  EXPECT_NE(fault.message().find("thread " + std::to_string(fault.thread()) + " of block (0, 0, 0) reads"), std::string::npos) << fault.message();
  EXPECT_NE(fault.statement().text().find("store %B"), std::string::npos);
  EXPECT_EQ(Emulators().worker_crashes(), 0u);
  ExpectDoubleWorks();
}

// Just the threads of the range come to it, so nobody waits for the others.
TEST_F(RunFaultTest, ABarrierUnderARangeOfThreadsIsTheirs) {
  Start({"--emulators=1"});
  for (const bool check : {false, true}) {
    RunClient client = RunClient(kHalfWaits, "emu:sm_90a").Tensor({0.0f}, {1}).Tensor({0.0f}, {1});
    client.options().set_check(check);
    const RunAnswer answer = client.Run(*daemon_);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.FaultKind(), "");
    EXPECT_TRUE(answer.result.finished());
    EXPECT_LT(answer.took, std::chrono::seconds(20));
  }
  ExpectDoubleWorks();
}

TEST_F(RunFaultTest, ATimeoutTellsWhatWasFoundAndWhereTheThreadsAre) {
  Start({"--emulators=1"});
  for (const bool check : {false, true}) {
    RunClient client = RunClient(kRaceThenSpin, "emu:sm_90a").Tensor(Counting(4096), {64, 64});
    client.options().set_check(check);
    RunAnswer answer;
    for (int timeout = 2; timeout <= 32 && answer.result.faults_size() < (check ? 2 : 1); timeout *= 4) {  // as the machine needs to find the race
      client.options().set_timeout_seconds(timeout);
      answer = client.Run(*daemon_);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      ASSERT_EQ(answer.FaultKind(), "timeout");
      const std::string& message = answer.result.faults(0).message();
      EXPECT_NE(message.find("ended after " + std::to_string(timeout) + " s"), std::string::npos) << message;
    }
    const v1::RunFault& fault = answer.result.faults(0);
    EXPECT_NE(fault.message().find(" runs (<text>:10)"), std::string::npos) << fault.message();
    EXPECT_NE(fault.statement().text().find("while"), std::string::npos) << fault.DebugString();
    EXPECT_EQ(fault.block_size(), 3);
    ASSERT_EQ(answer.result.faults_size(), check ? 2 : 1);
    EXPECT_EQ(answer.result.faults(check ? 1 : 0).kind(), check ? "race" : "timeout");
    EXPECT_FALSE(answer.result.finished());
    EXPECT_EQ(answer.outputs.size(), 0u);
  }
  ExpectDoubleWorks();
}

// They do not travel in messages between daemon and worker, whose size has a limit (Channel::kMaxMessage).
TEST_F(RunFaultTest, TensorsMayBeLargerThanAnyMessage) {
  constexpr std::int64_t kRows = (std::int64_t{260} << 20) / 256;
  Start({"--emulators=1", "--run-data=300MiB", "--run-data-total=320MiB"});
  RunClient client(kLast, "emu:sm_80");
  client.Tensor(Counting(kRows * 64), {kRows, 64});
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.FaultKind(), "");
  EXPECT_EQ(answer.Floats().at(63), 0x1p24f);  // as far as floats count by ones
}

TEST_F(RunFaultTest, ARaceNamesBothStatementsAndTheElement) {
  Start({"--emulators=1"});
  RunClient client = RunClient(kRace, "emu:gfx942").Tensor(Counting(128), {8, 16}).Tensor(Counting(128), {8, 16});
  client.options().set_check(true);
  client.options().set_seed(3);
  const RunAnswer answer = client.Run(*daemon_), again = client.Run(*daemon_);
  ASSERT_EQ(answer.FaultKind(), "race");
  EXPECT_EQ(again.result.faults(0).DebugString(), answer.result.faults(0).DebugString()) << "the same seed is the same run";
  const v1::RunFault& fault = answer.result.faults(0);
  EXPECT_EQ(fault.buffer(), "B");
  ASSERT_GE(fault.element(), 48u);
  ASSERT_LT(fault.element(), 64u);
  EXPECT_EQ(fault.address(), fault.element() * 4);
  EXPECT_NE(fault.message().find("B[3, " + std::to_string(fault.element() - 48) + "]"), std::string::npos) << fault.message();
  for (const v1::RunStatement& statement : {fault.statement(), fault.other()}) {
    EXPECT_NE(statement.text().find("store %B"), std::string::npos) << fault.DebugString();
  }
  EXPECT_EQ(fault.block_size(), 3);
}

TEST_F(RunFaultTest, AnElementOfAWorkspaceIsCalledByItsNameInTheProgram) {
  Start({"--emulators=1"});
  RunClient client = RunClient(kRaceInAWorkspace, "emu:sm_90a").Tensor(Counting(128), {8, 16}).Tensor(Counting(128), {8, 16});
  client.options().set_check(true);
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_EQ(answer.FaultKind(), "race");
  const v1::RunFault& fault = answer.result.faults(0);
  EXPECT_EQ(fault.buffer(), "partial");
  EXPECT_EQ(fault.address(), fault.element() * 4);
  EXPECT_NE(fault.message().find("partial[3, " + std::to_string(fault.element() - 48) + "]"), std::string::npos) << fault.message();
}

}  // namespace
}  // namespace kiln::server::testing
