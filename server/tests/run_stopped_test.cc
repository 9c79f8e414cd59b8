// SPDX-License-Identifier: Apache-2.0
//
// A device's worker that stands still (SIGSTOP), before its next run or in the middle of one: it is ended and replaced, and holds up nothing
// but its run, and that no longer than the run's time.
#include "server/testing/run_fixture.h"

#include <functional>
#include <future>
#include <map>

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

class RunStoppedTest : public TwoTenantsTest {
 protected:
  // Nothing needs to be compiled from here on: who comes besides the compile worker is a device's.
  void StartWarm(std::vector<std::string> options) {
    options.push_back("--workers=1");
    Start(std::move(options));
    for (const std::string& secret : {alice_, bob_}) {
      for (const char* program : {kDouble, kForever}) ASSERT_TRUE(Compiles(secret, program));
    }
    ASSERT_TRUE(daemon_->Eventually([&] {  // who lists the GPUs is one too, and ends then
      others_ = Daemon::Children(Zygote());
      return others_.size() == 1;
    }));
  }

  std::vector<pid_t> DeviceWorkers() {
    std::vector<pid_t> workers = Daemon::Children(Zygote());
    std::erase_if(workers, [&](pid_t worker) { return std::ranges::find(others_, worker) != others_.end(); });
    return workers;
  }

  RunAnswer DoubleAs(const std::string& secret) { return RunClient(kDouble, "emu:sm_80").As(secret).Tensor(Counting(64), {1, 64}).Run(*daemon_); }
  void ExpectDoubleWorksFor(const std::string& secret) {
    const RunAnswer answer = DoubleAs(secret);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.FaultKind(), "");
    EXPECT_EQ(answer.Floats().at(5), 10.0f);
  }

  // The only one of the devices' that there is, when it has no run.
  pid_t StopIdleWorker() {
    const auto workers = DeviceWorkers();
    EXPECT_EQ(workers.size(), 1u);
    ::kill(workers.at(0), SIGSTOP);
    return workers.at(0);
  }

  // The one that computes: it has long begun its run. 0 where the run is over before.
  pid_t StopRunningWorker(const std::function<bool()>& over = [] { return false; }) {
    pid_t found = 0;
    std::map<pid_t, long> before;
    EXPECT_TRUE(daemon_->Eventually(
        [&] {
          for (const pid_t worker : DeviceWorkers()) {
            const long ticks = TicksOf(worker);
            if (ticks >= before.try_emplace(worker, ticks).first->second + 20) return ::kill(found = worker, SIGSTOP) == 0;
          }
          return over();
        },
        std::chrono::seconds(60)));
    return found;
  }

 private:
  bool Compiles(const std::string& secret, const char* program) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    v1::CompileRequest request;
    request.set_module(program);
    request.set_target("emu:sm_80");
    v1::CompileReply reply;
    return daemon_->stub().Compile(&context, request, &reply).ok();
  }

  // Of a processor's time, as proc(5) has them: the 14th and 15th field.
  static long TicksOf(pid_t process) {
    std::string line;
    std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), line);
    std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
    std::string skipped;
    for (int field = 3; field < 14; ++field) rest >> skipped;
    long user = 0, system = 0;
    rest >> user >> system;
    return user + system;
  }

  std::vector<pid_t> others_;
};

TEST_F(RunStoppedTest, AnIdleWorkerIsNoRunsFault) {
  StartWarm({"--emulators=1"});
  ExpectDoubleWorksFor(alice_);
  const pid_t stopped = StopIdleWorker();
  ExpectDoubleWorksFor(alice_);
  EXPECT_EQ(Remaining({stopped}), "");
  EXPECT_EQ(Emulators().worker_crashes(), 0u);
  EXPECT_EQ(Emulators().runs(), 2u);
}

TEST_F(RunStoppedTest, AnotherTenantsIdleWorkerIsEnded) {
  StartWarm({"--emulators=1"});
  ExpectDoubleWorksFor(alice_);
  const pid_t stopped = StopIdleWorker();
  ExpectDoubleWorksFor(bob_);
  EXPECT_EQ(Remaining({stopped}), "");
}

TEST_F(RunStoppedTest, InTheMiddleOfARunItEndsInTheRunsTime) {
  StartWarm({"--emulators=1"});
  RunAnswer answer;
  pid_t stopped = 0;
  int timeout = 3;
  for (;; timeout *= 4) {  // as the machine needs to stop it before the emulator has ended the run, and told where
    ASSERT_LT(timeout, 60) << "it is never stopped in time";
    auto running = std::async(std::launch::async, [&] {
      RunClient client = Forever().As(alice_);
      client.options().set_timeout_seconds(timeout);
      return client.Run(*daemon_);
    });
    ASSERT_TRUE(Busy(1));
    stopped = StopRunningWorker([&] { return running.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    if (stopped == 0) continue;
    auto next = std::async(std::launch::async, [&] { ExpectDoubleWorksFor(alice_); });
    answer = running.get();
    next.get();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.FaultKind(), "timeout");
    if (!answer.result.faults(0).has_statement()) break;
  }
  const std::string& message = answer.result.faults(0).message();
  EXPECT_NE(message.find("the run was ended after " + std::to_string(timeout) + " s"), std::string::npos) << message;
  EXPECT_FALSE(answer.result.finished());
  EXPECT_TRUE(answer.outputs.empty());
  EXPECT_EQ(Remaining({stopped}), "");
  EXPECT_GE(daemon_->LinesWith({"event=worker-replaced", "cause=\"deadline\""}), 1u);
  ExpectDoubleWorksFor(alice_);
}

TEST_F(RunStoppedTest, OtherRunsAreServedMeanwhile) {
  StartWarm({"--emulators=2"});
  grpc::ClientContext context;
  auto running = std::async(std::launch::async, [&] { return Forever().As(alice_).Run(*daemon_, context); });
  ASSERT_TRUE(Busy(1));
  const pid_t stopped = StopRunningWorker();
  for (const std::string& secret : {alice_, bob_, alice_}) ExpectDoubleWorksFor(secret);
  EXPECT_EQ(running.wait_for(milliseconds(0)), std::future_status::timeout) << "it has 60 s";
  EXPECT_EQ(Emulators().busy(), 1u);
  context.TryCancel();
  EXPECT_EQ(running.get().status.error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(Remaining({stopped}), "");
  ASSERT_TRUE(Busy(0));
  EXPECT_EQ(Emulators().worker_crashes(), 0u);
  ExpectDoubleWorksFor(alice_);
}

}  // namespace
}  // namespace kiln::server::testing
