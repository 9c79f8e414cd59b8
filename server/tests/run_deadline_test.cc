// SPDX-License-Identifier: Apache-2.0
//
// A client's deadline ends while its Run is at each of the places that runs come through: nothing is run for it any more, and the memory of its
// tensors, its place among the calls and its worker are free.
#include "server/testing/run_fixture.h"

#include <cstdlib>
#include <future>

#include "server/testing/expiring_call.h"

namespace kiln::server::testing {
namespace {

class RunDeadlineTest : public RunTest {
 protected:
  // One call has it all.
  std::vector<std::string> ForOne(std::vector<std::string> more = {}) {
    const std::string access = (folder_ / "access.toml").string();
    WriteGuarded(access, "[[tenant]]\nname = \"*\"\nrequests = 1\n");
    more.insert(more.end(), {"--run-calls=1", "--access=" + access});
    return more;
  }

  void ExpectRunExpires(const RunClient& client, const std::function<bool()>& there, std::size_t send = std::string::npos, bool reads = true) {
    const auto free = [&, before = MemoriesOfRuns()] { return MemoriesOfRuns() == before; };  // a worker has it for as long as it takes to kill it
    ExpectExpires(
        *daemon_, "Run",
        [&](grpc::ClientContext& context) {
          const auto stream = daemon_->stub().Run(&context);
          v1::RunRequest request;
          *request.mutable_start() = client.start();
          stream->Write(request);
          const std::string data = client.data().substr(0, send);
          for (std::size_t at = 0; at < data.size(); at += 1 << 20) {
            request.set_data(data.substr(at, 1 << 20));
            stream->Write(request);
          }
          if (data.size() == client.data().size()) stream->WritesDone();
          for (v1::RunReply reply; reads && stream->Read(&reply);) {
          }
          return stream->Finish();
        },
        [&](const auto&) { return there(); }, false, free);
  }
  bool BecomesFree(long held = 0) {
    return daemon_->Eventually([&] { return MemoriesOfRuns() == held; });
  }
  static RunClient Doubling(std::size_t rows = 64, const std::string& device = "emu:sm_80") {
    return RunClient(kDouble, device).Tensor(Counting(rows * 64), {static_cast<std::int64_t>(rows), 64});
  }
};

TEST_F(RunDeadlineTest, WhileItsTensorsCome) {
  Start(ForOne());
  for (int i = 0; i < 2; ++i) {
    ExpectRunExpires(Doubling(), [&] { return MemoriesOfRuns() == 1; }, 1000);
    EXPECT_TRUE(BecomesFree());
  }
  ExpectDoubleWorks();
}

TEST_F(RunDeadlineTest, WhileItsKernelIsCompiled) {
  daemon_->Start(ForOne());
  RunClient client(MinimalModule(), "emu:sm_80");
  client.start().mutable_program()->mutable_options()->set_max_registers(Encode(Order::kHang));
  for (int i = 0; i < 2; ++i) {
    ExpectRunExpires(client, [&] { return daemon_->Stats().workers_busy() == 1; });
    EXPECT_TRUE(BecomesFree());
    EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 0 && daemon_->Stats().flights() == 0; }));
  }
  client.start().mutable_program()->mutable_options()->set_max_registers(Encode(Order::kAnswer));
  const RunAnswer answer = client.Run(*daemon_);
  EXPECT_NE(answer.status.error_message().find("the fake worker runs nothing"), std::string::npos) << answer.status.error_message();
}

TEST_F(RunDeadlineTest, WhileItWaitsForItsDevicesDriver) {
  UseFakeDriver();
  ::setenv("KILN_FAKE_DRIVER_DELAY", "25", 1);  // less than a driver is waited for
  Start(ForOne());
  ::unsetenv("LD_LIBRARY_PATH");
  ::unsetenv("KILN_FAKE_DRIVER_DELAY");
  for (int i = 0; i < 2; ++i) {
    ExpectRunExpires(Doubling(64, "cuda:0"), [&] { return MemoriesOfRuns() == 1; });
    EXPECT_TRUE(BecomesFree());
  }
  ExpectDoubleWorks();
}

TEST_F(RunDeadlineTest, WhileItWaitsForItsDevice) {
  Start({"--emulators=1", "--run-calls=2"});
  ExpectDoubleWorks();
  auto running = std::async(std::launch::async, [&] { return Forever().Run(*daemon_, std::chrono::seconds(60)); });
  ASSERT_TRUE(Busy(1));
  for (int i = 0; i < 2; ++i) {
    ExpectRunExpires(Doubling(), [&] { return Emulators().queued() == 1; });
    EXPECT_TRUE(daemon_->Eventually([&] { return Emulators().queued() == 0; }));
    EXPECT_TRUE(BecomesFree(1)) << "its memory is kept until its turn";
  }
  EXPECT_EQ(Emulators().busy(), 1u) << "the other one goes on";
  EXPECT_EQ(Emulators().runs(), 1u);
  daemon_->Kill();
}

TEST_F(RunDeadlineTest, WhileItRuns) {
  Start(ForOne({"--emulators=1"}));
  for (int i = 0; i < 2; ++i) {
    ExpectRunExpires(Forever(), [&] { return Emulators().busy() == 1; });
    EXPECT_TRUE(Busy(0));
    EXPECT_TRUE(BecomesFree());
  }
  ExpectDoubleWorks();
}

TEST_F(RunDeadlineTest, WhileItsOutputsAreNotRead) {
  Start(ForOne());
  for (unsigned i = 0; i < 2; ++i) {
    ExpectRunExpires(Doubling(4'000), [&, before = Emulators().runs()] { return Emulators().runs() > before; }, std::string::npos, false);
    EXPECT_TRUE(BecomesFree());
  }
  ExpectDoubleWorks();
}

}  // namespace
}  // namespace kiln::server::testing
