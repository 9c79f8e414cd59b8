// SPDX-License-Identifier: Apache-2.0
//
// What a compile worker cannot do, tried in one.
#include "server/sandbox.h"

#include <gmock/gmock.h>

#include "server/landlock.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

using ::testing::HasSubstr;

class SandboxTest : public DaemonTest {
 protected:
  // "refused" or "escaped".
  std::string Try(Escape escape) {
    const auto result = daemon_->Compile(MakeRequest(Order::kEscape, static_cast<uint32_t>(escape)));
    return result.status.ok() ? result.reply.artifact().code() : result.status.error_message();
  }
};

bool IsOfTheFilter(Escape escape) {
  switch (escape) {
    case Escape::kWriteFile:
    case Escape::kReadFile:
    case Escape::kMakeFolder:
    case Escape::kMount: return false;
    default: return true;
  }
}

TEST_F(SandboxTest, LetsAWorkerDoNothingButCompile) {
  daemon_->Start();
  for (uint32_t i = 0; i < static_cast<uint32_t>(Escape::kEnd); ++i) {
    const auto escape = static_cast<Escape>(i);
    if (kSanitized && IsOfTheFilter(escape)) continue;
    if (LandlockVersion() == 0 && !IsOfTheFilter(escape)) continue;
    EXPECT_EQ(Try(escape), "refused") << "escape " << i;
  }
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 0u) << "what is refused is an error of the call, not the end of the worker";
}

TEST_F(SandboxTest, StartsPtxasAndNothingElse) {
  daemon_->Start({"--ptxas=/bin/true"});
  EXPECT_EQ(Try(Escape::kStartPtxas), "escaped") << "that is what it has it for";
  if (LandlockVersion() > 0) {
    EXPECT_EQ(Try(Escape::kExec), "refused");
  }
  for (const Escape escape : {Escape::kInternet, Escape::kTracing, Escape::kSignal}) {
    if (!kSanitized) {
      EXPECT_EQ(Try(escape), "refused") << static_cast<uint32_t>(escape);
    }
  }
}

TEST_F(SandboxTest, TheLogTellsWhatIsInForce) {
  daemon_->Start();
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("protections=") != std::string::npos; }));
  const std::string log = daemon_->LogText();
  if (!kSanitized) {
    EXPECT_THAT(log, HasSubstr("calls=allow-list privileges=none-new"));
  }
  if (LandlockVersion() > 0) {
    EXPECT_THAT(log, HasSubstr("files=landlock-"));
  }
  EXPECT_THAT(log, ::testing::Not(HasSubstr("user=root")));
}

TEST_F(SandboxTest, OfRootBecomesTheUserThatIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  daemon_->Start({"--worker-user=4243"});
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("user=4243 ") != std::string::npos; }));
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer)).status.ok());
  const auto zygotes = Daemon::Children(daemon_->pid());
  ASSERT_EQ(zygotes.size(), 1u);
  for (const pid_t worker : Daemon::Children(zygotes.front())) {
    std::ostringstream status;
    status << std::ifstream("/proc/" + std::to_string(worker) + "/status").rdbuf();
    EXPECT_THAT(status.str(), HasSubstr("Uid:\t4243\t4243\t4243\t4243"));
    EXPECT_THAT(status.str(), HasSubstr("NoNewPrivs:\t1"));
    if (!kSanitized) {
      EXPECT_THAT(status.str(), HasSubstr("Seccomp:\t2"));
    }
  }
}

}  // namespace
}  // namespace kiln::server::testing
