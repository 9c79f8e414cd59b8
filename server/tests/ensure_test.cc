// SPDX-License-Identifier: Apache-2.0
//
// Manifests and rankings from the outside.
#include "server/testing/daemon_fixture.h"

#include <algorithm>
#include <future>
#include <map>
#include <set>

#include "server/testing/tune_client.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

class EnsureTest : public DaemonTest {
 protected:
  struct Ensured {
    grpc::Status status;
    std::vector<v1::EnsureProgress> progress;
    std::vector<v1::EnsuredKernel> kernels;
  };

  static v1::EnsureRequest Manifest(uint32_t first, uint32_t end, Order order = Order::kAnswer) {
    v1::EnsureRequest manifest;
    for (uint32_t amount = first; amount < end; ++amount) {
      *manifest.add_requests() = MakeRequest(order, amount);
      manifest.mutable_requests()->rbegin()->clear_target();
    }
    manifest.add_targets("cuda:sm_80");
    manifest.add_targets("hip:gfx942");
    return manifest;
  }

  Ensured Ensure(const v1::EnsureRequest& manifest) {
    Ensured result;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
    for (v1::EnsureProgress progress; reader->Read(&progress);) {
      result.kernels.insert(result.kernels.end(), progress.kernels().begin(), progress.kernels().end());
      result.progress.push_back(progress);
    }
    result.status = reader->Finish();
    return result;
  }
};

TEST_F(EnsureTest, CompilesWhatIsNotKnownAndTellsHowFarItIs) {
  daemon_->Start();
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, i)).status.ok());
  const auto manifest = Manifest(0, 30);
  const Ensured result = Ensure(manifest);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const v1::EnsureProgress& last = result.progress.back();
  EXPECT_EQ(last.total(), 60u);
  EXPECT_EQ(last.known(), 5u);
  EXPECT_EQ(last.compiled(), 55u);
  EXPECT_EQ(last.failed(), 0u);
  EXPECT_EQ(last.remaining_seconds(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(result.progress, {}, &v1::EnsureProgress::compiled));
  EXPECT_TRUE(std::ranges::any_of(result.progress, [](const auto& p) { return p.compiled() < 55 && p.remaining_seconds() > 0; }));
  EXPECT_EQ(daemon_->Stats().compiles(), 60u);

  std::set<std::pair<uint32_t, std::string>> seen;
  for (const v1::EnsuredKernel& kernel : result.kernels) {
    EXPECT_TRUE(seen.emplace(kernel.request(), kernel.target()).second);
    v1::LookupRequest lookup;
    lookup.set_key(kernel.key());
    grpc::ClientContext context;
    v1::CompileReply reply;
    ASSERT_TRUE(daemon_->stub().Lookup(&context, lookup, &reply).ok());
    EXPECT_EQ(reply.artifact().target(), kernel.target());
    EXPECT_EQ(reply.artifact().code().size(), 1 + 100 * kernel.request());
  }
  EXPECT_EQ(seen.size(), 60u);

  const Ensured again = Ensure(manifest);
  EXPECT_EQ(again.progress.back().known(), 60u);
  EXPECT_EQ(daemon_->Stats().compiles(), 60u);
}

TEST_F(EnsureTest, WhatFailsIsToldAndTheRestIsMade) {
  daemon_->Start();
  auto manifest = Manifest(0, 4);
  *manifest.add_requests() = MakeRequest(Order::kRefuse);
  manifest.add_requests()->set_module("no module");
  for (int round = 0; round < 2; ++round) {
    const Ensured result = Ensure(manifest);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.progress.back().failed(), 4u);
    for (const v1::EnsuredKernel& kernel : result.kernels) {
      EXPECT_EQ(kernel.key().empty(), kernel.request() >= 4);
      if (kernel.request() < 4) continue;
      EXPECT_EQ(kernel.code(), static_cast<uint32_t>(StatusCode::INVALID_ARGUMENT));
      EXPECT_GE(kernel.failure().diagnostics_size(), 1);
      EXPECT_FALSE(kernel.message().empty());
    }
  }
}

TEST_F(EnsureTest, RanksWithTheSameManifestShareEveryCompile) {
  daemon_->Start();
  const auto manifest = Manifest(1, 40);
  std::vector<std::future<Ensured>> ranks;
  for (int i = 0; i < 16; ++i) ranks.push_back(std::async(std::launch::async, [&] { return Ensure(manifest); }));
  for (auto& rank : ranks) {
    const Ensured result = rank.get();
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.progress.back().known() + result.progress.back().compiled(), 78u);
  }
  EXPECT_EQ(daemon_->Stats().compiles(), 78u);
}

// Two at a time, of which the first end together: what lies between them tells nothing.
TEST_F(EnsureTest, TheEstimateOfAFewKernelsIsRightAfterATenth) {
  daemon_->Start({"--workers=2"});
  const Ensured result = Ensure(Manifest(27, 35, Order::kSleep));  // 16 of 270 to 340 ms
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const v1::EnsureProgress& last = result.progress.back();
  const auto tenth = std::ranges::find_if(result.progress, [&](const auto& p) { return p.compiled() * 10 >= last.total(); });
  ASSERT_NE(tenth, result.progress.end());
  ASSERT_TRUE(tenth->has_remaining_seconds());
  const double actual = last.elapsed_seconds() - tenth->elapsed_seconds();
  // What a busy machine adds to a kernel, the estimate adds to the seven rounds that follow.
  const double added = std::max(0.0, last.elapsed_seconds() - 16 * 0.305 / 2);
  EXPECT_NEAR(tenth->remaining_seconds(), actual, 0.25 * actual + 7 * added);
}

TEST_F(EnsureTest, ARefreshCompilesWhatIsKnown) {
  daemon_->Start();
  auto manifest = Manifest(0, 3);
  ASSERT_EQ(Ensure(manifest).progress.back().compiled(), 6u);
  for (v1::CompileRequest& request : *manifest.mutable_requests()) request.set_refresh(true);
  for (int round = 1; round <= 2; ++round) {
    const Ensured result = Ensure(manifest);
    EXPECT_EQ(result.progress.back().compiled(), 6u);
    EXPECT_EQ(result.progress.back().known(), 0u);
    EXPECT_EQ(daemon_->Stats().compiles(), 6u * (1 + round));
  }
}

TEST_F(EnsureTest, AFullQueueIsWaitedFor) {
  daemon_->Start({"--workers=1", "--queue=1"});
  auto waiting = std::async(std::launch::async, [&] { return Ensure(Manifest(kLong, kLong + 3, Order::kSleep)); });
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().refused() > 0; }));
  const Ensured result = daemon_->Woken(waiting);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.progress.back().compiled(), 6u);
}

TEST_F(EnsureTest, CancellingFreesTheWorkers) {
  daemon_->Start();
  grpc::ClientContext context;
  const auto reader = daemon_->stub().EnsureKernels(&context, Manifest(0, 20, Order::kHang));
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 2; }));
  context.TryCancel();
  for (v1::EnsureProgress progress; reader->Read(&progress);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 0 && daemon_->Stats().queued() == 0; }));
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer)).status.ok());
}

TEST_F(EnsureTest, ManifestsUnderWayAreBounded) {
  daemon_->Start({"--manifest-memory=1MiB"});
  auto manifest = Manifest(0, 2, Order::kHang);
  for (auto& request : *manifest.mutable_requests()) request = Padded(request, 200'000);
  grpc::ClientContext contexts[2];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::EnsureProgress>>> open;
  for (auto& context : contexts) open.push_back(daemon_->stub().EnsureKernels(&context, manifest));
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 2; }));
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().joined() >= 2; })) << "both are there";
  const Ensured refused = Ensure(manifest);
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.status.error_message().find("--manifest-memory"), std::string::npos) << refused.status.error_message();
  for (auto& context : contexts) context.TryCancel();
  for (auto& reader : open) {
    for (v1::EnsureProgress progress; reader->Read(&progress);) {
    }
    (void)reader->Finish();
  }
  EXPECT_TRUE(Ensure(Manifest(5, 6)).status.ok());
}

TEST_F(EnsureTest, AnEmptyManifestIsDoneAndATooLargeOneRefused) {
  daemon_->Start();
  EXPECT_TRUE(Ensure({}).status.ok());
  v1::EnsureRequest large;
  for (int i = 0; i < 50'001; ++i) large.add_requests();
  large.add_targets("cuda:sm_80");
  large.add_targets("hip:gfx942");
  const Ensured refused = Ensure(large);
  EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.status.error_message().find("100002"), std::string::npos) << refused.status.error_message();
}

TEST_F(EnsureTest, NobodyNamesMoreTargetsThanThereAre) {
  daemon_->Start();
  v1::EnsureRequest manifest = Manifest(0, 1);
  for (int i = 0; i < 1000; ++i) manifest.add_targets("cuda:sm_80");
  const Ensured refused = Ensure(manifest);
  EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.status.error_message().find("1002 targets"), std::string::npos) << refused.status.error_message();
}

TEST_F(EnsureTest, ATargetThatIsNamedTwiceIsOne) {
  daemon_->Start();
  v1::EnsureRequest manifest = Manifest(0, 3);
  manifest.add_targets("cuda:sm_80");
  manifest.add_targets("cuda -arch=sm_80");
  const Ensured result = Ensure(manifest);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.progress.back().total(), 6u);
  EXPECT_EQ(result.kernels.size(), 6u);
}

TEST_F(EnsureTest, ARequestThatIsTooLargeFailsAloneAndAtOnce) {
  daemon_->Start();
  v1::EnsureRequest manifest = Manifest(0, 2);
  manifest.mutable_requests(1)->set_module(std::string(std::size_t{9} << 20, 'm'));
  const Ensured result = Ensure(manifest);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.progress.back().compiled(), 2u);
  EXPECT_EQ(result.progress.back().failed(), 2u);
  for (const v1::EnsuredKernel& kernel : result.kernels) {
    if (kernel.request() == 0) continue;
    EXPECT_EQ(kernel.code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(kernel.message().find("--max-request"), std::string::npos) << kernel.message();
  }
  EXPECT_EQ(daemon_->Stats().requests(), 4u) << "two lookups and two compiles";
}

TEST_F(EnsureTest, FailuresAreCutToAFewKilobytes) {
  daemon_->Start();
  const Ensured result = Ensure(Manifest(900, 901, Order::kRefuse));
  ASSERT_EQ(result.kernels.size(), 2u);
  for (const v1::EnsuredKernel& kernel : result.kernels) {
    EXPECT_LT(kernel.ByteSizeLong(), 8192u);
    EXPECT_GT(kernel.failure().diagnostics_size(), 10);
    EXPECT_NE(kernel.failure().diagnostics().rbegin()->message().find("more diagnostics"), std::string::npos);
  }
}

TEST_F(EnsureTest, NothingIsStartedForAClientThatDoesNotRead) {
  daemon_->Start();
  v1::EnsureRequest manifest;
  for (int i = 0; i < 20'000; ++i) manifest.add_requests()->set_module("no module " + std::to_string(i));
  manifest.add_targets("cuda:sm_80");
  grpc::ClientContext context;
  const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
  std::uint64_t before = 0;
  ASSERT_TRUE(daemon_->Eventually([&] {
    std::this_thread::sleep_for(milliseconds(300));  // real time of gRPC's windows: that they stay full has no event
    const std::uint64_t now = daemon_->Stats().requests();
    return now > 0 && std::exchange(before, now) == now;
  }));
  EXPECT_LT(before, 15'000u);
  v1::EnsureProgress progress;
  while (reader->Read(&progress)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(progress.failed(), 20'000u);
}

// Rank with a worker that expects what it is told.
struct RankAnswer {
  grpc::Status status;
  std::map<std::uint32_t, v1::RankedCandidate> candidates;
  bool known = false;
};

class RankTest : public DaemonTest {
 protected:
  RankAnswer Rank(const v1::RankRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    RankAnswer answer;
    const auto reader = daemon_->stub().Rank(&context, request);
    for (v1::RankProgress news; reader->Read(&news);) {
      for (const auto& one : news.candidates()) answer.candidates[one.candidate()] = one;
      answer.known |= news.known();
    }
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

// A ranking of a space is known afterwards, also to the next daemon, by its first candidate and for the same board and sizes.
TEST_F(RankTest, ASpaceIsRankedOnce) {
  daemon_->Start();
  v1::RankRequest space = Asking({MakeRequest(Order::kAnswer, 30), MakeRequest(Order::kRefuse), MakeRequest(Order::kAnswer, 10)});
  space.set_space("tiles");
  v1::RankRequest first = Asking({MakeRequest(Order::kAnswer, 30)});
  first.set_space("tiles");
  first.set_known_only(true);
  EXPECT_EQ(Rank(first).status.error_code(), StatusCode::NOT_FOUND);
  const RankAnswer ranked = Rank(space);
  ASSERT_TRUE(ranked.status.ok()) << ranked.status.error_message();
  EXPECT_FALSE(ranked.known);
  for (int round = 0; round < 2; ++round) {
    for (const v1::RankRequest& again : {first, space}) {
      const RankAnswer answer = Rank(again);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      EXPECT_TRUE(answer.known);
      ASSERT_EQ(answer.candidates.size(), 3u);
      EXPECT_EQ(answer.candidates.at(0).estimate().microseconds(), 30);
      EXPECT_EQ(answer.candidates.at(2).estimate().microseconds(), 10);
      EXPECT_EQ(answer.candidates.at(1).message(), ranked.candidates.at(1).message());
      EXPECT_EQ(answer.candidates.at(1).code(), static_cast<std::uint32_t>(StatusCode::INVALID_ARGUMENT));
    }
    if (round == 0) {
      EXPECT_EQ(daemon_->Stop(), 0);
      daemon_->Start();
    }
  }
  v1::RankRequest fewer = space;
  fewer.mutable_candidates()->RemoveLast();
  EXPECT_FALSE(Rank(fewer).known);
  v1::RankRequest other = first;
  other.set_space("other tiles");
  EXPECT_EQ(Rank(other).status.error_code(), StatusCode::NOT_FOUND);
  other = first;
  other.mutable_options()->set_board("another");
  EXPECT_EQ(Rank(other).status.error_code(), StatusCode::NOT_FOUND);
  other = first;
  (*other.mutable_options()->mutable_symbols())["M"] = 3;
  EXPECT_EQ(Rank(other).status.error_code(), StatusCode::NOT_FOUND);
  other = first;
  *other.mutable_candidates(0) = MakeRequest(Order::kAnswer, 31);
  EXPECT_EQ(Rank(other).status.error_code(), StatusCode::NOT_FOUND);
}

TEST_F(RankTest, ASpaceOfWhichACandidateFailedIsRankedAgain) {
  daemon_->Start();
  v1::RankRequest space = Asking({MakeRequest(Order::kAnswer, 30), MakeRequest(Order::kFailToRank, 7)});
  space.set_space("tiles");
  EXPECT_TRUE(Rank(space).status.ok());
  EXPECT_FALSE(Rank(space).known);
}

TEST_F(RankTest, WhatIsOnlyLookedUpHasANameAndOneCandidate) {
  daemon_->Start();
  v1::RankRequest request = Asking({MakeRequest(Order::kAnswer, 30)});
  request.set_known_only(true);
  EXPECT_EQ(Rank(request).status.error_code(), StatusCode::INVALID_ARGUMENT);
  request.set_space("tiles");
  *request.add_candidates() = MakeRequest(Order::kAnswer, 10);
  EXPECT_EQ(Rank(request).status.error_code(), StatusCode::INVALID_ARGUMENT);
  request.clear_candidates();
  request.set_known_only(false);
  EXPECT_EQ(Rank(request).status.error_code(), StatusCode::INVALID_ARGUMENT);
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
  for (int round = 0; round < 3; ++round) {  // each gives back what it held a moment after its end
    EXPECT_TRUE(daemon_->Eventually([&] { return Rank(large).status.ok(); })) << round;
  }
}

}  // namespace
}  // namespace kiln::server::testing
