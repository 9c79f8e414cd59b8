// SPDX-License-Identifier: Apache-2.0
//
// SIGTERM while requests are under way that have not come to a worker yet: each that was accepted is answered.
#include "server/testing/held_fixture.h"

#include <future>
#include <vector>

#include <gmock/gmock.h>

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;
using ::testing::ContainsRegex;

class DrainTest : public HeldTest {
 protected:
  void Drain() {
    ::kill(daemon_->pid(), SIGTERM);
    ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().state() == "draining"; }));
  }

  std::future<grpc::Status> Stream(const v1::CompileRequest& request) {
    return std::async(std::launch::async, [this, request] {
      grpc::ClientContext context;
      const auto reader = daemon_->stub().CompileStream(&context, request);
      for (v1::CompileProgress progress; reader->Read(&progress);) {
      }
      return reader->Finish();
    });
  }
};

TEST_F(DrainTest, WhatWaitsForTheExecutorIsCompiled) {
  StartHeld({"--grace=60"});
  std::vector<std::future<Daemon::Result>> calls;
  for (uint32_t i = 0; i < 20; ++i) {
    calls.push_back(std::async(std::launch::async, [this, i] { return daemon_->Compile(MakeRequest(Order::kAnswer, i)); }));
  }
  auto stream = Stream(MakeRequest(Order::kAnswer, 20));
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().requests() == 21; }));
  Drain();
  EXPECT_THAT(daemon_->LogText(), ContainsRegex("event=draining calls=2[1-9]"));  // the Stats that looked may be some
  auto late = std::async(std::launch::async, [this] { return daemon_->Compile(MakeRequest(Order::kAnswer, 30)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().requests() == 22; }));
  GoOn();
  for (auto& call : calls) {
    const auto result = call.get();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.reply.origin(), v1::COMPILED);
  }
  const grpc::Status status = stream.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(late.get().status.error_code(), StatusCode::UNAVAILABLE) << "it came after the drain had begun";
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(DrainTest, TheGracePeriodEndsForWhatWaitsForTheExecutorToo) {
  StartHeld({"--grace=0.3"});
  auto call = std::async(std::launch::async, [this] { return daemon_->Compile(MakeRequest(Order::kAnswer)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().requests() == 1; }));
  ::kill(daemon_->pid(), SIGTERM);
  EXPECT_FALSE(call.get().status.ok());
  GoOn();
  EXPECT_EQ(daemon_->Wait(), 0);
}

// Most of it is not even in the queue, which is full again and again.
TEST_F(DrainTest, AManifestIsCompiledToItsEnd) {
  daemon_->Start({"--workers=1", "--queue=2", "--grace=60"});
  v1::EnsureRequest manifest;
  for (uint32_t i = 0; i < 9; ++i) *manifest.add_requests() = MakeRequest(Order::kSleep, kLong + i);
  v1::EnsureProgress last;
  auto call = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
    for (v1::EnsureProgress progress; reader->Read(&progress);) last = progress;
    return reader->Finish();
  });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 2; }));
  Drain();
  const grpc::Status status = daemon_->Woken(call);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(last.compiled(), 9u);
  EXPECT_EQ(last.failed(), 0u);
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(DrainTest, AManifestEndsWithTheGracePeriod) {
  daemon_->Start({"--workers=1", "--grace=0.3"});
  v1::EnsureRequest manifest;
  for (uint32_t i = 0; i < 9; ++i) *manifest.add_requests() = MakeRequest(Order::kHang, i);
  auto call = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
    for (v1::EnsureProgress progress; reader->Read(&progress);) {
    }
    return reader->Finish();
  });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  EXPECT_EQ(daemon_->Stop(), 0);
  EXPECT_FALSE(call.get().ok());
}

}  // namespace
}  // namespace kiln::server::testing
