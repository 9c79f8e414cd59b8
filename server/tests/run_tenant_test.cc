// SPDX-License-Identifier: Apache-2.0
//
// Run for several tenants: what one leaves behind or asks for is not the other's.
#include "server/testing/callers.h"
#include "server/testing/run_fixture.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <iterator>
#include <set>
#include <sstream>

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

constexpr const char* kSquare = R"(kiln 1
func @square[%m](%A: global f32[%m, 64], %B: global f32[%m, 64]) outputs(1) {
  kernel @main grid((%m + 63) // 64) threads 128 blocks(%bx) {
    %t = alloc fragment f32[64, 64]
    copy %A[%bx * 64, 0; 64, 64] -> %t[0, 0; 64, 64]
    for parallel %i, %j in 64, 64 {
      store %t[%i, %j] = %t[%i, %j] * %t[%i, %j]
    }
    copy %t[0, 0; 64, 64] -> %B[%bx * 64, 0; 64, 64]
  }
}
)";

class RunTenantTest : public TwoTenantsTest {
 protected:
  static RunClient DoubleAs(const std::string& secret) { return RunClient(kDouble, "emu:sm_80").As(secret).Tensor(Counting(64), {1, 64}); }
  static RunClient ByKeyAs(const std::string& secret, const std::string& key) {
    RunClient client = DoubleAs(secret);
    client.start().set_key(key);
    return client;
  }
  // What the kernel of that tenant made of 5.
  float OfFive(const std::string& secret) {
    const RunAnswer answer = DoubleAs(secret).Run(*daemon_);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return answer.outputs.empty() ? -1.0f : answer.Floats().at(5);
  }

  // Of kilnd with one compile worker and one emulator, when both run.
  std::set<pid_t> Workers() {
    std::set<pid_t> workers;
    EXPECT_TRUE(daemon_->Eventually([&] {
      const auto all = Daemon::Children(Zygote());
      workers = {all.begin(), all.end()};
      return workers.size() == 2;
    }));
    return workers;
  }

  static v1::CompileRequest Request(const char* program) {
    v1::CompileRequest request;
    request.set_module(program);
    request.set_target("emu:sm_80");
    return request;
  }

  v1::CompileReply CompileAs(const std::string& secret, const char* program) {
    v1::CompileReply compiled;
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    const grpc::Status status = daemon_->stub().Compile(&context, Request(program), &compiled);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return compiled;
  }

  // The key under which the store keeps its only entry, as admins see it.
  std::string KeptUnder() {
    v1::CacheEntry entry;
    EXPECT_TRUE(daemon_->Eventually([&] {
      grpc::ClientContext context;
      return daemon_->stub().CacheList(&context, {})->Read(&entry);
    })) << "it is on the disk a moment after it was answered";
    return entry.key();
  }

  // Keeps the artifact of `other` as the tenant's result for kDouble.
  void PutInsteadOfDouble(const std::string& secret, const char* other) {
    const v1::CompileReply compiled = CompileAs(secret, other);
    grpc::ClientContext putting;
    putting.AddMetadata("authorization", "Bearer " + secret);
    v1::PutRequest put;
    *put.mutable_request() = Request(kDouble);
    *put.mutable_artifact() = compiled.artifact();
    v1::PutReply kept;
    const grpc::Status status = daemon_->stub().Put(&putting, put, &kept);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
};

TEST_F(RunTenantTest, AnArtifactThatOneTenantPutRunsForNobodyElse) {
  Start({"--emulators=1", "--accept-put=yes"});
  PutInsteadOfDouble(alice_, kSquare);
  EXPECT_EQ(OfFive(alice_), 25.0f);
  EXPECT_EQ(OfFive(bob_), 10.0f);
  EXPECT_EQ(OfFive(alice_), 25.0f);
}

// The key of the program names two artifacts in the life of one worker.
TEST_F(RunTenantTest, AnArtifactThatWasReplacedDoesNotRunAgain) {
  Start({"--emulators=1", "--workers=1", "--accept-put=yes"});
  EXPECT_EQ(OfFive(alice_), 10.0f);
  const auto before = Workers();
  PutInsteadOfDouble(alice_, kSquare);
  EXPECT_EQ(OfFive(alice_), 25.0f);
  EXPECT_EQ(Workers(), before);
}

TEST_F(RunTenantTest, WithoutCompileOnlyWhatItsTenantHasRuns) {
  const std::string runner = NewToken("runner", "alice", "run");
  Start({"--emulators=1"});
  const auto expect_refused = [&](const RunClient& client) {
    const RunAnswer answer = client.Run(*daemon_);
    EXPECT_EQ(answer.status.error_code(), StatusCode::PERMISSION_DENIED) << answer.status.error_message();
    EXPECT_NE(answer.status.error_message().find("needs the scope compile"), std::string::npos) << answer.status.error_message();
  };
  expect_refused(DoubleAs(runner));
  expect_refused(DoubleAs(runner));
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
  EXPECT_EQ(Emulators().runs(), 0u);

  const std::string key = CompileAs(alice_, kDouble).key();
  EXPECT_EQ(OfFive(runner), 10.0f);
  EXPECT_TRUE(ByKeyAs(runner, key).Run(*daemon_).status.ok());
  RunClient refreshing = DoubleAs(runner);
  refreshing.start().mutable_program()->set_refresh(true);
  EXPECT_TRUE(refreshing.Run(*daemon_).status.ok());
  RunClient otherwise = DoubleAs(runner);
  otherwise.start().mutable_program()->mutable_options()->set_fast_math(true);
  expect_refused(otherwise);
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
  EXPECT_EQ(Emulators().runs(), 3u);

  ASSERT_EQ(daemon_->Stop(), 0);
  Start({"--emulators=1"});
  EXPECT_EQ(OfFive(runner), 10.0f) << "from the disk";
  expect_refused(otherwise);
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
}

TEST_F(RunTenantTest, WhatAnotherTenantHasIsNotThere) {
  const std::string runner = NewToken("runner", "bob", "run");
  Start({"--emulators=1"});
  const std::string key = CompileAs(alice_, kDouble).key();
  const std::string kept_under = KeptUnder();
  const std::string of_nobody(32, 'x');
  ASSERT_NE(kept_under, key);
  ASSERT_TRUE(ByKeyAs(alice_, key).Run(*daemon_).status.ok());
  // All but the key itself, which is the message's last word.
  const auto said_of = [&](const std::string& secret, const std::string& which) {
    const RunAnswer answer = ByKeyAs(secret, which).Run(*daemon_);
    EXPECT_EQ(answer.status.error_code(), StatusCode::NOT_FOUND) << answer.status.error_message();
    EXPECT_TRUE(answer.outputs.empty());
    const std::string& said = answer.status.error_message();
    return said.substr(0, said.size() - std::min<std::size_t>(said.size(), 64));
  };
  for (const std::string& secret : {bob_, runner}) {
    EXPECT_EQ(said_of(secret, key), said_of(secret, of_nobody));
    EXPECT_EQ(said_of(secret, kept_under), said_of(secret, of_nobody));
  }
  EXPECT_EQ(DoubleAs(runner).Run(*daemon_).status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
  EXPECT_EQ(Emulators().runs(), 1u) << "alice's";

  EXPECT_EQ(OfFive(bob_), 10.0f);
  EXPECT_EQ(daemon_->Stats().compiles(), 2u) << "bob's own";
  EXPECT_EQ(OfFive(runner), 10.0f);
  EXPECT_TRUE(ByKeyAs(runner, key).Run(*daemon_).status.ok());
}

TEST_F(RunTenantTest, EachTenantHasAWorkerOfItsOwn) {
  Start({"--emulators=1", "--workers=1"});
  OfFive(alice_);
  const auto first = Workers();
  OfFive(alice_);
  EXPECT_EQ(Workers(), first);
  OfFive(bob_);
  const auto second = Workers();
  std::set<pid_t> fresh;
  std::ranges::set_difference(second, first, std::inserter(fresh, fresh.end()));
  EXPECT_EQ(fresh.size(), 2u) << "one of the device, one that compiled";
  OfFive(bob_);
  EXPECT_EQ(Workers(), second);
}

TEST_F(RunTenantTest, TenantsThatTakeTurnsKeepTheirWorkersWhileThereAreEnough) {
  Start({"--emulators=2", "--workers=1"});
  OfFive(alice_);
  OfFive(bob_);
  std::set<pid_t> all;
  const auto three = [&] {
    const auto now = Daemon::Children(Zygote());
    all = {now.begin(), now.end()};
    return all.size() == 3;
  };
  ASSERT_TRUE(daemon_->Eventually(three));
  const auto before = all;
  for (int i = 0; i < 3; ++i) {
    OfFive(alice_);
    OfFive(bob_);
  }
  ASSERT_TRUE(daemon_->Eventually(three));
  EXPECT_EQ(all, before);
}

TEST_F(RunTenantTest, ARevokedTokensRunEndsAmongItsTensors) {
  Start({"--emulators=1"});
  const RunClient client = DoubleAs(alice_);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + alice_);
  const auto stream = daemon_->stub().Run(&context);
  v1::RunRequest request;
  *request.mutable_start() = client.start();
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(daemon_->Eventually([&] { return MemoriesOfRuns() == 1; }));
  std::erase_if(tokens_, [](const Token& token) { return token.name == "alice"; });
  ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", tokens_));
  ASSERT_TRUE(daemon_->Eventually([&] { return DoubleAs(alice_).Run(*daemon_).status.error_code() == StatusCode::UNAUTHENTICATED; }));
  request.set_data(client.data());
  stream->Write(request);
  stream->WritesDone();
  v1::RunReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(MemoriesOfRuns(), 0);
  EXPECT_NE(daemon_->LogText().find("audit=\"ended\" method=\"Run\" caller=\"token alice\""), std::string::npos) << daemon_->LogText();
}

TEST_F(RunTenantTest, ARevokedTokensRunEndsWithoutItsResult) {
  Start({"--emulators=1"});
  auto run = std::async(std::launch::async, [&] {
    RunClient client = Forever().As(alice_);
    client.options().set_timeout_seconds(6);
    return client.Run(*daemon_);
  });
  ASSERT_TRUE(Busy(1));
  std::erase_if(tokens_, [](const Token& token) { return token.name == "alice"; });
  ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", tokens_));
  const RunAnswer answer = run.get();
  EXPECT_EQ(answer.status.error_code(), StatusCode::UNAUTHENTICATED) << answer.status.error_message();
  EXPECT_TRUE(answer.outputs.empty());
}

TEST_F(RunTenantTest, AFloodLeavesTheOthersTheirTurnAndAPlace) {
  Start({"--emulators=1", "--queue=10"});
  EXPECT_EQ(OfFive(bob_), 10.0f);
  grpc::ClientContext context;
  auto running = std::async(std::launch::async, [&] { return Forever().As(alice_).Run(*daemon_, context); });
  ASSERT_TRUE(Busy(1));
  std::atomic<int> ended = 0, refused = 0;
  std::vector<std::future<void>> flood;
  for (int i = 0; i < 11; ++i) {
    flood.push_back(std::async(std::launch::async, [&] {
      RunClient client = Forever().As(alice_);
      client.options().set_timeout_seconds(0.4);
      const RunAnswer answer = client.Run(*daemon_);
      ++(answer.status.ok() ? ended : refused);
      EXPECT_TRUE(answer.status.ok() || answer.status.error_code() == StatusCode::RESOURCE_EXHAUSTED) << answer.status.error_message();
    }));
  }
  EXPECT_TRUE(daemon_->Eventually([&] { return refused == 3; })) << refused;
  ASSERT_TRUE(daemon_->Eventually([&] { return Emulators().queued() == 8; }));
  auto bobs = std::async(std::launch::async, [&] { return OfFive(bob_); });
  ASSERT_TRUE(daemon_->Eventually([&] { return Emulators().queued() == 9; }));
  context.TryCancel();
  EXPECT_EQ(bobs.get(), 10.0f);
  std::istringstream log(daemon_->LogText());
  int bobs_runs = 0, alices_before = 0;
  for (std::string line; bobs_runs < 2 && std::getline(log, line);) {
    if (line.find(" event=run ") == std::string::npos) continue;
    bobs_runs += line.find("tenant=\"bob\"") != std::string::npos;
    alices_before += line.find("outcome=\"timeout\"") != std::string::npos;
  }
  EXPECT_EQ(bobs_runs, 2);
  EXPECT_LT(alices_before, 8) << "first come, first served";  // one, or some more where bob's first run took long
  for (auto& one : flood) one.get();
  EXPECT_EQ(ended, 8);
  EXPECT_FALSE(running.get().status.ok());
}

TEST_F(RunTenantTest, AFloodLeavesAnotherItsShareOfTheDevice) {
  Start({"--emulators=1", "--queue=20"});  // of which the flood leaves a fifth: room for three
  struct Counts {
    std::atomic<unsigned> done = 0, refused = 0;
  } flood, small;
  const auto run_as = [&](const std::string& secret, Counts& counts) {
    RunClient client = Forever().As(secret);
    client.options().set_timeout_seconds(0.1);  // each as long as any other
    const RunAnswer answer = client.Run(*daemon_);
    if (answer.status.ok()) {
      ++counts.done;
    } else {
      EXPECT_EQ(answer.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << answer.status.error_message();
      ++counts.refused;
      std::this_thread::sleep_for(milliseconds(100));  // paces who is refused
    }
  };
  Callers many(24, [&](unsigned, unsigned) { run_as(alice_, flood); });
  ASSERT_TRUE(daemon_->Eventually([&] { return flood.refused > 0; })) << "it is a flood";
  Callers few(3, [&](unsigned, unsigned) { run_as(bob_, small); });  // so that one waits whenever another ends
  ASSERT_TRUE(daemon_->Eventually([&] { return small.done > 3; }, std::chrono::seconds(60)));
  const unsigned flood_before = flood.done, small_before = small.done;
  ASSERT_TRUE(daemon_->Eventually([&] { return small.done + flood.done >= small_before + flood_before + 60; }, std::chrono::minutes(2)));
  const double its = small.done - small_before, theirs = flood.done - flood_before;
  EXPECT_GE(its, 0.8 * (its + theirs) / 2) << theirs;
  EXPECT_EQ(small.refused, 0u);
  std::printf("%.0f %% of its fair share under the flood\n", 100 * its / ((its + theirs) / 2));
}

}  // namespace
}  // namespace kiln::server::testing
