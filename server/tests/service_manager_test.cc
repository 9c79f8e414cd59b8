// SPDX-License-Identifier: Apache-2.0
//
// systemd's side of a service, played by the test: notifications, the watchdog, an inherited socket; and --check-config.
#include "server/testing/daemon_fixture.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <future>

#include <gmock/gmock.h>

#include "clients/common/unique_fd.h"

namespace kiln::server::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ServiceManagerTest : public DaemonTest {
 protected:
  sockaddr_un AddressOf(const fs::path& path) const {
    sockaddr_un address{.sun_family = AF_UNIX};
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }

  UniqueFd Bind(const fs::path& path, int type) const {
    UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    const sockaddr_un address = AddressOf(path);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

  // The next notification, or nothing in that time.
  static std::string Notification(const UniqueFd& fd, milliseconds patience = std::chrono::seconds(20)) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(patience.count())) <= 0) return "";
    std::array<char, 256> text;
    const ssize_t got = ::recv(fd.get(), text.data(), text.size(), 0);
    return std::string(text.data(), got < 0 ? 0 : static_cast<std::size_t>(got));
  }

  struct Ran {
    int status;
    std::string out;
  };
  static Ran Run(const std::string& command) {
    FILE* pipe = ::popen(command.c_str(), "r");
    Ran ran{};
    std::array<char, 4096> chunk;
    for (std::size_t got; (got = std::fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) ran.out.append(chunk.data(), got);
    ran.status = WEXITSTATUS(::pclose(pipe));
    return ran;
  }

  std::string Check(const std::string& more) const {
    return "XDG_CONFIG_HOME=/nowhere KILN_QUEUE=33 " KILN_BIN "/kilnd --check-config --ptxas=none --listen=unix:" + daemon_->Socket() +
           " --state-dir=" + daemon_->State() + " " + more;
  }
};

TEST_F(ServiceManagerTest, IsToldOfTheStartTheHeartbeatAndTheEnd) {
  const UniqueFd notified = Bind(folder_ / "notify", SOCK_DGRAM);
  ::setenv("NOTIFY_SOCKET", (folder_ / "notify").c_str(), 1);
  ::setenv("WATCHDOG_USEC", "200000", 1);
  daemon_->Start();
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(Notification(notified), "READY=1");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Notification(notified), "WATCHDOG=1");
  ::kill(daemon_->pid(), SIGTERM);
  std::string last;
  while ((last = Notification(notified)) == "WATCHDOG=1") {
  }
  EXPECT_EQ(last, "STOPPING=1");
  EXPECT_EQ(daemon_->Wait(), 0);
}

// Its watchdog's period and its time for a stop may be shorter than the grace period.
TEST_F(ServiceManagerTest, IsToldThroughoutADrain) {
  const UniqueFd notified = Bind(folder_ / "notify", SOCK_DGRAM);
  ::setenv("NOTIFY_SOCKET", (folder_ / "notify").c_str(), 1);
  ::setenv("WATCHDOG_USEC", "200000", 1);
  daemon_->Start({"--grace=60"});
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(Notification(notified), "READY=1");
  auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  ::kill(daemon_->pid(), SIGTERM);
  std::string last;
  while ((last = Notification(notified)) == "WATCHDOG=1") {
  }
  EXPECT_EQ(last, "STOPPING=1");
  EXPECT_EQ(Notification(notified), "EXTEND_TIMEOUT_USEC=70000000");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Notification(notified), "WATCHDOG=1");
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(ServiceManagerTest, HandsOverItsSocketWithThoseWhoWaitAtIt) {
  const UniqueFd listening = Bind(daemon_->Socket(), SOCK_STREAM);
  ASSERT_EQ(::listen(listening.get(), 16), 0);
  // A client that comes before the daemon is in the backlog.
  const auto channel = grpc::CreateChannel("unix:" + daemon_->Socket(), grpc::InsecureChannelCredentials());
  channel->GetState(true);
  const std::string start =
      "export LISTEN_FDS=1; LISTEN_PID=$$ exec " KILN_BIN "/kilnd --listen=unix:/nowhere/else.sock --state-dir=" + daemon_->State() +
      " --ptxas=none --worker-executable=" KILN_BIN "/kiln-fake-worker --log-file=" + daemon_->Log() + " --workers=1";
  std::array<const char*, 4> argv = {"bash", "-c", start.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, listening.get(), 3);
  pid_t child = 0;
  ASSERT_EQ(::posix_spawnp(&child, "bash", &actions, nullptr, const_cast<char* const*>(argv.data()), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20))) << daemon_->LogText();
  const auto stub = v1::Kiln::NewStub(channel);
  grpc::ClientContext context;
  v1::CompileReply reply;
  const grpc::Status status = stub->Compile(&context, MakeRequest(Order::kAnswer, 2), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(daemon_->LogText(), HasSubstr("listen=\"unix:" + daemon_->Socket() + "\""));
  ::kill(child, SIGTERM);
  int ended = 0;
  ::waitpid(child, &ended, 0);
  EXPECT_EQ(ended, 0);
  EXPECT_TRUE(fs::exists(daemon_->Socket())) << "it is systemd's";
}

TEST_F(ServiceManagerTest, ASocketOfAnotherKindIsRefused) {
  const std::string start =
      "bash -c 'export LISTEN_FDS=1; LISTEN_PID=$$ exec " KILN_BIN "/kilnd --ptxas=none --state-dir=" + daemon_->State() + " 3</dev/null' 2>&1";
  const Ran ran = Run(start);
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, HasSubstr("ListenStream="));
}

TEST_F(ServiceManagerTest, CheckConfigNamesEachSettingAndItsOrigin) {
  const fs::path file = folder_ / "kilnd.toml";
  std::ofstream(file) << "workers = 3\nqueue = 44\n";
  const Ran ran = Run(Check("--grace=7 --worker-executable=" KILN_BIN "/kiln-fake-worker --config=" + file.string()) + " 2>&1");
  EXPECT_EQ(ran.status, 0) << ran.out;
  const auto line = [&](const std::string& setting) {
    const std::size_t at = ("\n" + ran.out).find("\n" + setting + " = ");
    return at == ran.out.npos ? "" : ran.out.substr(at, ran.out.find('\n', at) - at);
  };
  EXPECT_THAT(line("workers"), HasSubstr("workers = 3 "));
  EXPECT_THAT(line("workers"), HasSubstr("# " + file.string()));
  EXPECT_THAT(line("queue"), HasSubstr("queue = 33 "));
  EXPECT_THAT(line("queue"), HasSubstr("# environment, KILN_QUEUE"));
  EXPECT_THAT(line("grace"), HasSubstr("# flag"));
  EXPECT_THAT(line("log-level"), HasSubstr("log-level = \"info\""));
  EXPECT_THAT(line("log-level"), HasSubstr("# default"));
  EXPECT_FALSE(fs::exists(daemon_->State())) << "nothing is started or made";
  // What it prints is a config file that means the same.
  std::ofstream(file, std::ios::trunc) << ran.out;
  const Ran again = Run(Check("--config=" + file.string()) + " 2>&1");
  EXPECT_EQ(again.status, 0) << again.out;
  EXPECT_THAT(again.out, HasSubstr("workers = 3 "));
}

TEST_F(ServiceManagerTest, ASettingThatIsNoStringNumberOrBooleanIsRefused) {
  const fs::path file = folder_ / "kilnd.toml";
  for (const char* value : {"[\"unix:/tmp/a.sock\"]", "2027-01-31", "{ port = 1 }"}) {
    std::ofstream(file, std::ios::trunc) << "workers = 3\nlisten = " << value << "\n";
    const Ran ran = Run(Check("--worker-executable=" KILN_BIN "/kiln-fake-worker --config=" + file.string()) + " 2>&1 >/dev/null");
    EXPECT_EQ(ran.status, 2) << value;
    EXPECT_THAT(ran.out, HasSubstr(file.string() + ", line 2: listen takes a string, number or boolean"));
  }
}

TEST_F(ServiceManagerTest, SecondsThatAreNoNumberAreRefused) {
  const fs::path file = folder_ / "kilnd.toml";
  for (const char* name : {"compile-limit", "keepalive", "run-transfer", "run-limit", "grace"}) {
    std::ofstream(file, std::ios::trunc) << name << " = nan\n";
    for (const std::string& setting : {"--" + std::string(name) + "=nan", "--config=" + file.string()}) {
      const Ran ran = Run(Check("--worker-executable=" KILN_BIN "/kiln-fake-worker " + setting + " 2>&1 >/dev/null"));
      EXPECT_EQ(ran.status, 2) << setting;
      EXPECT_THAT(ran.out, HasSubstr(std::string(name) + ": nan is no number"));
    }
  }
}

TEST_F(ServiceManagerTest, CheckConfigFindsWhatCannotWork) {
  const Ran ran = Run(Check("--worker-executable=/nowhere/kiln-worker --trace-file=/proc/1/none/spans.json 2>&1 >/dev/null"));
  EXPECT_EQ(ran.status, 2);
  EXPECT_THAT(ran.out, HasSubstr("worker-executable: /nowhere/kiln-worker cannot be run"));
  EXPECT_THAT(ran.out, HasSubstr("trace-file:"));
  EXPECT_EQ(Run(Check("--no-such-setting=1 2>&1")).status, 2);
  const fs::path broken = folder_ / "broken.pem";
  std::ofstream(broken) << "no certificate";
  const Ran tls = Run(Check("--worker-executable=" KILN_BIN "/kiln-fake-worker --listen=localhost:1 --tls-cert=" + broken.string() +
                            " --tls-key=" + broken.string() + " 2>&1 >/dev/null"));
  EXPECT_EQ(tls.status, 2);
  EXPECT_THAT(tls.out, HasSubstr("tls-cert:"));
}

TEST_F(ServiceManagerTest, AScriptAroundPtxasIsPassedOver) {
  const fs::path bin = folder_ / "bin";
  fs::create_directory(bin);
  std::ofstream(bin / "ptxas") << "#!/bin/sh\nexec true\n";
  fs::permissions(bin / "ptxas", fs::perms::owner_all);
  const std::string daemon = KILN_BIN "/kilnd --check-config --worker-executable=" KILN_BIN "/kiln-fake-worker --state-dir=" + daemon_->State();
  const Ran found = Run("XDG_CONFIG_HOME=/nowhere PATH=" + bin.string() + ":/usr/bin:/bin " + daemon + " 2>&1");
  EXPECT_EQ(found.status, 0) << found.out;
  const Ran named = Run("XDG_CONFIG_HOME=/nowhere " + daemon + " --ptxas=" + (bin / "ptxas").string() + " 2>&1 >/dev/null");
  EXPECT_EQ(named.status, 2);
  EXPECT_THAT(named.out, HasSubstr("is a script"));
}

}  // namespace
}  // namespace kiln::server::testing
