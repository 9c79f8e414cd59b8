// SPDX-License-Identifier: Apache-2.0
//
// Rank with a worker that expects what it is told.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>
#include <vector>

#include "server/testing/daemon_fixture.h"
#include "server/testing/fake_orders.h"
#include "server/testing/tune_client.h"

namespace kiln::server {
namespace {

using namespace testing;
using grpc::StatusCode;

struct RankAnswer {
  grpc::Status status;
  std::map<std::uint32_t, v1::RankedCandidate> candidates;
};

class RankTest : public DaemonTest {
 protected:
  RankAnswer Rank(const v1::RankRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    RankAnswer answer;
    const auto reader = daemon_->stub().Rank(&context, request);
    for (v1::RankProgress news; reader->Read(&news);)
      for (const auto& one : news.candidates()) answer.candidates[one.candidate()] = one;
    answer.status = reader->Finish();
    return answer;
  }
  static v1::RankRequest Asking(const std::vector<v1::CompileRequest>& candidates) {
    v1::RankRequest request;
    for (const v1::CompileRequest& candidate : candidates) *request.add_candidates() = candidate;
    return request;
  }
};

TEST_F(RankTest, EachHasAnEstimateOrSaysWhyNot) {
  daemon_->Start();
  const RankAnswer answer = Rank(Asking({MakeRequest(Order::kAnswer, 30), MakeRequest(Order::kRefuse), MakeRequest(Order::kAnswer, 10)}));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.candidates.size(), 3u);
  EXPECT_EQ(answer.candidates.at(0).estimate().microseconds(), 30);
  EXPECT_EQ(answer.candidates.at(2).estimate().microseconds(), 10);
  EXPECT_FALSE(answer.candidates.at(1).has_estimate());
  EXPECT_EQ(answer.candidates.at(1).code(), static_cast<std::uint32_t>(StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(daemon_->Stats().tiers(0).entries(), 0u) << "nothing is kept";
}

// What ends the planner's worker is not tried for ever, and does not keep the program from being compiled.
TEST_F(RankTest, APlannerThatDiesBarsNoCompile) {
  daemon_->Start();
  const auto request = MakeRequest(Order::kFailToRank, 7);
  for (int round = 0; round < 3; ++round) {
    const RankAnswer answer = Rank(Asking({request}));
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.candidates.at(0).code(), static_cast<std::uint32_t>(StatusCode::INTERNAL));
  }
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 2u);
  EXPECT_TRUE(daemon_->Compile(request).status.ok());
  EXPECT_EQ(Rank(Asking({request})).candidates.at(0).code(), static_cast<std::uint32_t>(StatusCode::INTERNAL));
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 2u);
}

// The memory that a call holds for its candidates is there for the next, however the call ended.
TEST_F(RankTest, WhatItHoldsIsGivenBack) {
  daemon_->Start({"--workers=1", "--request-memory=1MiB"});
  v1::CompileRequest program = MakeRequest(Order::kAnswer, 1);
  program.set_module(Scale(64) + "# " + std::string(std::size_t{190} << 10, 'a') + "\n");
  const v1::RankRequest large = Asking(std::vector(3, program));  // two of them are more than all requests together may hold
  v1::RankRequest slow = large;
  slow.mutable_candidates(0)->mutable_options()->set_max_registers(Encode(Order::kSleep, kLong));
  grpc::ClientContext context;
  const auto reader = daemon_->stub().Rank(&context, slow);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  const RankAnswer refused = Rank(large);
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.status.error_message();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  ASSERT_TRUE(daemon_->Eventually([&] { return Rank(large).status.ok(); }));
  EXPECT_TRUE(Rank(large).status.ok());
}

}  // namespace
}  // namespace kiln::server
