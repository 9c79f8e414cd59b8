// SPDX-License-Identifier: Apache-2.0
//
// What Runs under way may hold: calls, memory, and for how long.
#include "server/testing/run_fixture.h"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;
using std::chrono::seconds;

// A Run in the client's hands, message by message.
class OpenRun {
 public:
  OpenRun(Daemon& daemon, const std::string& secret, const v1::RunStart& start) {
    context_.AddMetadata("authorization", "Bearer " + secret);
    context_.set_deadline(std::chrono::system_clock::now() + seconds(60));
    stream_ = daemon.stub().Run(&context_);
    v1::RunRequest request;
    *request.mutable_start() = start;
    stream_->Write(request);
  }
  ~OpenRun() { context_.TryCancel(); }

  // From now on a thread waits for the end.
  void Watch() {
    end_ = std::async(std::launch::async, [this] { return Finish(); });
  }
  bool Ended() const { return end_.wait_for(seconds(0)) == std::future_status::ready; }
  grpc::Status End() { return end_.get(); }

  void Send(const std::string& data) {
    v1::RunRequest request;
    for (std::size_t at = 0; at < data.size(); at += 1 << 20) {
      request.set_data(data.substr(at, 1 << 20));
      stream_->Write(request);
    }
    stream_->WritesDone();
  }

  // Waits for the end.
  grpc::Status Finish() {
    for (v1::RunReply ignored; stream_->Read(&ignored);) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RunRequest, v1::RunReply>> stream_;
  std::future<grpc::Status> end_;
};
using OpenRuns = std::vector<std::unique_ptr<OpenRun>>;

class RunBudgetTest : public TwoTenantsTest {
 protected:
  static v1::RunStart Announce(std::uint64_t bytes) {
    RunClient client(kDouble, "emu:sm_80");
    client.Tensor({}, {1, 64}).start().mutable_arguments(0)->mutable_tensor()->set_bytes(bytes);
    return client.start();
  }
  // As many calls as may be open. Two more are opened with them: when two were refused, the others are known to be held.
  OpenRuns Open(const std::string& secret, const v1::RunStart& start, const std::string& refusal, std::size_t count = 1) {
    OpenRuns runs;
    while (runs.size() < count + 2) {
      runs.push_back(std::make_unique<OpenRun>(*daemon_, secret, start));
      runs.back()->Watch();
    }
    const auto ended = [](const std::unique_ptr<OpenRun>& run) { return run->Ended(); };
    EXPECT_TRUE(daemon_->Eventually([&] { return std::ranges::count_if(runs, ended) >= 2; }, seconds(20)));
    const auto refused = std::ranges::stable_partition(runs, std::not_fn(ended));
    EXPECT_EQ(refused.size(), 2u);
    for (const auto& run : refused) ExpectRefused(run->End(), refusal);
    runs.erase(refused.begin(), refused.end());
    return runs;
  }
  grpc::Status Double(const std::string& secret, std::size_t rows) {
    const auto rows64 = static_cast<std::int64_t>(rows);
    return RunClient(kDouble, "emu:sm_80").As(secret).Tensor(Counting(rows * 64), {rows64, 64}).Run(*daemon_).status;
  }
  static void ExpectRefused(const grpc::Status& status, const std::string& word) {
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_NE(status.error_message().find(word), std::string::npos) << status.error_message();
  }
  // The daemon has given back what was cancelled.
  bool WorksAgain(const std::string& secret, std::size_t rows) {
    return daemon_->Eventually([&] { return Double(secret, rows).ok(); }, seconds(40));
  }
};

TEST_F(RunBudgetTest, OutputsAreReservedBeforeTheRun) {
  Start({"--run-data=64KiB", "--run-data-total=80KiB"});
  EXPECT_TRUE(Double(bob_, 100).ok());  // 25 KiB in and 25 KiB out
  auto holds = Open(alice_, Announce(40 << 10), "--run-data-total");
  ExpectRefused(Double(bob_, 100), "--run-data-total");
  EXPECT_TRUE(Double(bob_, 40).ok());  // and nothing of the run that was refused is held any more
  EXPECT_EQ(daemon_->Stats().devices(0).runs(), 2u);
  holds.clear();
  EXPECT_TRUE(WorksAgain(bob_, 100));
}

TEST_F(RunBudgetTest, OneTenantLeavesTheOthersAFifth) {
  Start({"--run-data=100KiB", "--run-data-total=100KiB"});
  auto holds = Open(alice_, Announce(72 << 10), "--run-data-total");
  ExpectRefused(Double(alice_, 16), "alice");
  EXPECT_TRUE(Double(bob_, 16).ok());
  holds.clear();
  EXPECT_TRUE(Double(bob_, 16).ok());
  EXPECT_TRUE(WorksAgain(alice_, 16));
}

TEST_F(RunBudgetTest, ProgramsThatWaitForTheirTensorsCountToo) {
  Start({"--run-data=64KiB", "--run-data-total=64KiB"});
  v1::RunStart start = Announce(256);
  start.mutable_program()->mutable_module()->append(40 << 10, ' ');
  const auto holds = Open(alice_, start, "--run-data-total");
  ExpectRefused(Double(bob_, 60), "--run-data-total");
}

TEST_F(RunBudgetTest, CallsAreCounted) {
  Start({"--run-calls=5"});
  auto most = Open(alice_, Announce(256), "alice", 4);
  ExpectRefused(Double(alice_, 1), "alice");
  EXPECT_TRUE(Double(bob_, 1).ok());
  const auto last = Open(bob_, Announce(256), "--run-calls");
  ExpectRefused(Double(bob_, 1), "--run-calls");
  most.clear();
  EXPECT_TRUE(WorksAgain(alice_, 1));
}

// A run is one request, its compile included.
TEST_F(RunBudgetTest, TheQuotaOfRequestsCountsRuns) {
  const fs::path access = folder_ / "access.toml";
  WriteGuarded(access, "[[tenant]]\nname = \"alice\"\nrequests = 1\n");
  Start({"--access=" + access.string()});
  EXPECT_TRUE(Double(alice_, 1).ok()) << "it was compiled";
  auto open = Open(alice_, Announce(256), "1 requests under way, which is its quota");
  ExpectRefused(Double(alice_, 1), "1 requests under way, which is its quota");
  EXPECT_TRUE(Double(bob_, 1).ok());
  open.clear();
  EXPECT_TRUE(WorksAgain(alice_, 1));
}

TEST_F(RunBudgetTest, WhatWaitsDoesNotRunOnceTheSecondsAreUsedUp) {
  const fs::path access = folder_ / "access.toml";
  WriteGuarded(access, "[[tenant]]\nname = \"alice\"\ngpu-seconds = 2\n");
  int refused = 0;
  WithinOneHour([&] {
    Start({"--access=" + access.string(), "--emulators=1"});
    EXPECT_TRUE(Double(alice_, 1).ok());
    std::vector<std::future<RunAnswer>> runs;
    for (int i = 0; i < 4; ++i)
      runs.push_back(std::async(std::launch::async, [this] {
        RunClient client = Forever();
        client.As(alice_).options().set_timeout_seconds(2.5);
        return client.Run(*daemon_);
      }));
    refused = 0;
    for (auto& run : runs) refused += run.get().status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  });
  EXPECT_EQ(refused, 3);
}

TEST_F(RunBudgetTest, TensorsThatDoNotComeEndTheCall) {
  Start({"--run-transfer=2", "--run-calls=1"});
  OpenRun silent(*daemon_, alice_, Announce(256));
  const auto began = std::chrono::steady_clock::now();
  ExpectRefused(silent.Finish(), "--run-transfer");
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(45)) << "a minute is what they have unless told otherwise";
  EXPECT_TRUE(WorksAgain(bob_, 1));
}

TEST_F(RunBudgetTest, OutputsThatNobodyReadsEndTheCall) {
  Start({"--run-transfer=10", "--run-calls=1"});
  RunClient client = RunClient(kDouble, "emu:sm_80").Tensor(Counting(20'000 * 64), {20'000, 64});
  OpenRun deaf(*daemon_, alice_, client.start());
  deaf.Send(client.data());
  EXPECT_TRUE(daemon_->Eventually([&] { return Emulators().runs() == 1; }, seconds(30)));
  ExpectRefused(Double(bob_, 1), "--run-calls");
  EXPECT_TRUE(WorksAgain(bob_, 1));
}

TEST_F(RunBudgetTest, AWorkerHasATenthOfASecondAtLeast) {
  Start();
  RunClient client = Forever();
  client.options().set_timeout_seconds(0.001);
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_EQ(answer.FaultKind(), "timeout") << answer.status.error_message();
  EXPECT_NE(answer.result.faults(0).message().find("after 0.1 s"), std::string::npos) << answer.result.faults(0).message();
}

// The element before the first is the half of a byte that was not sent.
TEST_F(RunBudgetTest, HalvesOfBytesBeforeATensorAreOutsideOfIt) {
  Start();
  RunClient client(kDouble, "emu:sm_80");
  v1::RunTensor& tensor = *client.start().add_arguments()->mutable_tensor();
  tensor.set_dtype(v1::I4);
  for (const std::int64_t extent : {2, 1}) tensor.add_shape(extent);
  for (const std::int64_t stride : {-1, 1}) tensor.add_strides(stride);
  tensor.set_bytes(1);
  client.data() = "x";
  const grpc::Status status = client.Run(*daemon_).status;
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("do not lie within the 1 bytes"), std::string::npos) << status.error_message();
}

}  // namespace
}  // namespace kiln::server::testing
