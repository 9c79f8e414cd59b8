// SPDX-License-Identifier: Apache-2.0
#include "cache/object/object_tier.h"

#include <future>

#include "cache/object/tests/object_test_fixture.h"

namespace kiln::cache::object {
namespace {

using cache::testing::KeyOf;
using cache::testing::MakeEntry;
using cache::testing::NumberedEntry;
using cache::testing::RandomBytes;
using testing::Eventually;
using testing::Reply;
using testing::TestServer;
using Conditional = TestServer::Conditional;

class ObjectTierTest : public testing::ObjectTest {};

TEST_F(ObjectTierTest, KeepsWhatWasPut) {
  auto options = Options();
  options.store.timeout = std::chrono::seconds(5);
  Connect(std::move(options));
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{50'000}, std::size_t{3'000'000}}) {
    const Entry entry = MakeEntry(KeyOf(static_cast<int>(size)), RandomBytes(size, 1));
    EXPECT_FALSE(tier_->Get(entry.key())->has_value());
    ASSERT_TRUE(PutAndWait(*tier_, entry));
    EXPECT_EQ(*server_->object(PathOf(entry.key())), Pack(entry));
    const auto found = tier_->Get(entry.key());
    ASSERT_TRUE(found && *found) << size;
    EXPECT_EQ((*found)->sealed(), entry.sealed());
  }
  const TierStats stats = tier_->Stats();
  EXPECT_EQ(stats.hits, 4u);
  EXPECT_EQ(stats.misses, 4u);
  EXPECT_EQ(stats.puts, 4u);
  EXPECT_EQ(stats.errors, 0u);
  EXPECT_TRUE(*tier_->Erase(KeyOf(1)));
  EXPECT_FALSE(*tier_->Erase(KeyOf(1)));
  EXPECT_FALSE(tier_->Get(KeyOf(1))->has_value());
  EXPECT_EQ(Said(), "") << "nothing went wrong";
}

TEST_F(ObjectTierTest, ConnectionsAreUsedAgain) {
  Connect();
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(tier_->Get(KeyOf(i))->has_value());
  EXPECT_EQ(server_->connections(), 1);
}

TEST_F(ObjectTierTest, LargeEntriesStayOut) {
  auto options = Options();
  options.max_entry = 10'000;
  Connect(std::move(options));
  const Entry small = NumberedEntry(1, 9'000), large = NumberedEntry(2, 10'001);
  EXPECT_TRUE(PutAndWait(*tier_, small));
  EXPECT_TRUE(PutAndWait(*tier_, large));
  EXPECT_TRUE(tier_->Get(small.key())->has_value());
  EXPECT_FALSE(server_->object(PathOf(large.key())));
  // Another host may put larger ones. They are left where they are.
  for (const Entry& others : {large, NumberedEntry(3, 100'000)}) {
    server_->Set(PathOf(others.key()), Pack(others));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(WhyNot(others.key()), ErrorCode::kInvalid);
    EXPECT_TRUE(server_->object(PathOf(others.key())));
  }
  EXPECT_TRUE(tier_->available());
  EXPECT_EQ(tier_->Stats().corrupt, 0u);
}

TEST_F(ObjectTierTest, DamagedEntriesAreNeverServed) {
  Connect();
  const Entry entry = NumberedEntry(1, 200), other = NumberedEntry(2, 200);
  const std::string right = Pack(entry), head(entry.head()), path = PathOf(entry.key());
  bool served = false;
  const auto refused = [&](const std::string& planted) {
    // What was planted before is evicted only now, or this with it.
    const bool found_corrupt = Eventually([&] {
      server_->Set(path, planted);
      const auto found = tier_->Get(entry.key());
      served = served || (found && *found);
      return !found && found.error().code == ErrorCode::kCorrupt;
    });
    return found_corrupt && !served && Eventually([&] { return !server_->object(path); });
  };
  for (std::size_t i = 0; i < head.size(); i += 7) {
    std::string damaged = right;
    damaged[i] ^= 1;
    EXPECT_TRUE(refused(damaged)) << i;
  }
  for (std::size_t i = head.size(); i < right.size(); i += 7) {
    std::string damaged = right;
    damaged[i] ^= 1;
    server_->Set(path, damaged);
    const auto found = tier_->Get(entry.key());
    EXPECT_TRUE(!found || !*found || (*found)->sealed() == entry.sealed()) << i;  // not there: the last one is evicted only now
  }
  EXPECT_TRUE(refused(Pack(other))) << "another key's";
  EXPECT_TRUE(refused(head + Compress(other.body()))) << "another body";
  EXPECT_TRUE(refused(head)) << "no body";
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused(right.substr(0, right.size() - 1)));
  EXPECT_TRUE(refused(head + Compress(std::string(std::size_t{64} << 20, 'x')))) << "a body that would swell";
  EXPECT_TRUE(refused("<html>Sign in to this network</html>"));
  EXPECT_GT(tier_->Stats().corrupt, 10u);
  EXPECT_TRUE(PutAndWait(*tier_, entry));
  EXPECT_TRUE(tier_->Get(entry.key())->has_value());
}

TEST_F(ObjectTierTest, WhereNobodyMayRemoveTheNextPutReplacesWhatIsCorrupt) {
  ConnectTo({.lie = [](const auto& asked, const auto& send) { return asked.method == "DELETE" && send(Reply("405 Method Not Allowed")); }});
  const Entry entry = NumberedEntry(1);
  server_->Set(PathOf(entry.key()), "damaged");
  EXPECT_EQ(WhyNot(entry.key()), ErrorCode::kCorrupt);
  EXPECT_TRUE(PutAndWait(*tier_, entry));
  EXPECT_TRUE(tier_->Get(entry.key())->has_value());
  EXPECT_EQ(*server_->object(PathOf(entry.key())), Pack(entry));
  const auto erased = tier_->Erase(entry.key());
  ASSERT_FALSE(erased);
  EXPECT_EQ(erased.error().code, ErrorCode::kInvalid);
  EXPECT_TRUE(tier_->available());
}

TEST_F(ObjectTierTest, TheFirstPutStays) {
  Connect();
  const Entry first = MakeEntry(KeyOf(1), "first"), second = MakeEntry(KeyOf(1), "second");
  EXPECT_TRUE(PutAndWait(*tier_, first));
  EXPECT_TRUE(PutAndWait(*tier_, second)) << "what is there is as good";
  EXPECT_EQ((*tier_->Get(KeyOf(1)))->blob("ptx"), "first");
  EXPECT_EQ(server_->asked("PUT"), 2);
  EXPECT_EQ(server_->asked("HEAD"), 0);
}

TEST_F(ObjectTierTest, WhatIsNotTakenInIsReplacedOnce) {
  Connect();
  const Entry first = MakeEntry(KeyOf(1), "first"), second = MakeEntry(KeyOf(1), "second"), third = MakeEntry(KeyOf(1), "third");
  EXPECT_TRUE(PutAndWait(*tier_, first));
  tier_->Refused(KeyOf(1));
  EXPECT_EQ((*tier_->Get(KeyOf(1)))->blob("ptx"), "first") << "others may take it";
  EXPECT_TRUE(PutAndWait(*tier_, second));
  EXPECT_EQ((*tier_->Get(KeyOf(1)))->blob("ptx"), "second");
  EXPECT_TRUE(PutAndWait(*tier_, third));
  EXPECT_EQ((*tier_->Get(KeyOf(1)))->blob("ptx"), "second");
  EXPECT_EQ(server_->asked("DELETE"), 0);
}

class UnconditionalTest : public ObjectTierTest, public ::testing::WithParamInterface<Conditional> {};

TEST_P(UnconditionalTest, AStoreThatKnowsNoConditionsIsAskedFirst) {
  ConnectTo({.conditional = GetParam()});
  const Entry first = MakeEntry(KeyOf(1), "first"), second = MakeEntry(KeyOf(1), "second");
  EXPECT_TRUE(PutAndWait(*tier_, first));
  EXPECT_EQ(server_->asked("PUT"), 2) << "without the condition";
  EXPECT_TRUE(PutAndWait(*tier_, second));
  EXPECT_EQ((*tier_->Get(KeyOf(1)))->blob("ptx"), "first");
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(2)));
  EXPECT_EQ(server_->asked("PUT"), 3) << "it is not tried again";
  EXPECT_EQ(server_->asked("HEAD"), 2);
  EXPECT_EQ(tier_->Stats().errors, 0u);
}

INSTANTIATE_TEST_SUITE_P(Answers, UnconditionalTest, ::testing::Values(Conditional::kUnknown, Conditional::kBad));

// Two hosts put one key at once, and S3 takes neither's word for what is there.
TEST_F(ObjectTierTest, AConflictMeansThatAnotherPutsIt) {
  ConnectTo({.lie = [](const auto& asked, const auto& send) {
    return asked.method == "PUT" && asked.path == PathOf(KeyOf(1)) && send(testing::S3Error("409 Conflict", "ConditionalRequestConflict"));
  }});
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  EXPECT_EQ(server_->asked("PUT"), 1);
  EXPECT_EQ(tier_->Stats().errors, 0u);
  EXPECT_EQ(Said(), "");
}

// WebDAV's, where there is no such folder.
TEST_F(ObjectTierTest, AnotherConflictIsAnError) {
  ConnectTo({.lie = [](const auto& asked, const auto& send) { return asked.method == "PUT" && send(Reply("409 Conflict")); }});
  EXPECT_FALSE(PutAndWait(*tier_, NumberedEntry(1)));
  EXPECT_TRUE(SaysEventually("it answers 409")) << Said();
}

TEST_F(ObjectTierTest, APassingErrorNeitherOverwritesNorEndsTheCondition) {
  std::atomic<bool> passing = false;
  ConnectTo({.lie = [&](const auto& asked, const auto& send) {
    return passing && asked.method == "PUT" && !asked.header("if-none-match").empty() && send(testing::S3Error("400 Bad Request", "RequestTimeout"));
  }});
  ASSERT_TRUE(PutAndWait(*tier_, MakeEntry(KeyOf(1), "first")));
  passing = true;
  const auto put = PutAndWait(*tier_, MakeEntry(KeyOf(1), "second"));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kUnreachable) << put.error().message;
  EXPECT_EQ((*tier_->Get(KeyOf(1)))->blob("ptx"), "first");
  passing = false;
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(2)));
  EXPECT_EQ(server_->asked("HEAD"), 0) << "it is still asked with the condition";
  EXPECT_EQ(Said(), "");
}

// Of S3 a 400 without a word is no answer to the condition; of another server it may be one.
TEST_F(ObjectTierTest, ABadRequestWithoutAWord) {
  for (const bool is_s3 : {true, false}) {
    tier_.reset();
    Serve({.lie = [](const auto& asked, const auto& send) {
      return asked.method == "PUT" && !asked.header("if-none-match").empty() && send(Reply("400 Bad Request"));
    }});
    auto options = Options();
    if (is_s3) options.store.address.region = "us-east-1";
    Connect(std::move(options));
    EXPECT_EQ(PutAndWait(*tier_, NumberedEntry(1)).has_value(), !is_s3);
    EXPECT_EQ(server_->object(PathOf(KeyOf(1))).has_value(), !is_s3);
  }
}

TEST_F(ObjectTierTest, AStoreThatIgnoresConditionsTakesTheLast) {
  ConnectTo({.conditional = Conditional::kIgnored});
  EXPECT_TRUE(PutAndWait(*tier_, MakeEntry(KeyOf(1), "first")));
  EXPECT_TRUE(PutAndWait(*tier_, MakeEntry(KeyOf(1), "second")));
  EXPECT_EQ((*tier_->Get(KeyOf(1)))->blob("ptx"), "second");
}

// A put that is refused for another reason says nothing of conditions.
TEST_F(ObjectTierTest, ABadRequestIsNoAnswerToTheCondition) {
  std::atomic<bool> bad = true;
  ConnectTo({.lie = [&](const auto& asked, const auto& send) {
    return bad && asked.method == "PUT" && send(testing::S3Error("400 Bad Request", "EntityTooLarge"));
  }});
  const auto put = PutAndWait(*tier_, NumberedEntry(1));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kInvalid);
  EXPECT_TRUE(SaysEventually("takes-no-puts: http://127.0.0.1")) << Said();
  EXPECT_TRUE(Said().contains("400 EntityTooLarge"));
  bad = false;
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  EXPECT_TRUE(SaysEventually("takes-puts"));
  EXPECT_EQ(server_->asked("HEAD"), 0);
  EXPECT_TRUE(tier_->available());
}

TEST_F(ObjectTierTest, AFullStoreStillReads) {
  std::atomic<bool> full = false;
  ConnectTo({.lie = [&](const auto& asked, const auto& send) { return full && asked.method == "PUT" && send(Reply("507 Insufficient Storage")); }});
  ASSERT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  full = true;
  for (int i = 2; i < 8; ++i) {
    const auto put = PutAndWait(*tier_, NumberedEntry(i));
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code, ErrorCode::kFull);
  }
  EXPECT_TRUE(tier_->Stats().read_only);
  EXPECT_EQ(tier_->Stats().dropped_puts, 6u);
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
  full = false;
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(2)));
  EXPECT_FALSE(tier_->Stats().read_only);
}

TEST_F(ObjectTierTest, WhoMayOnlyReadIsServed) {
  ConnectTo(
      {.lie = [](const auto& asked, const auto& send) { return asked.method == "PUT" && send(testing::S3Error("403 Forbidden", "AccessDenied")); }});
  server_->Set(PathOf(KeyOf(1)), Pack(NumberedEntry(1)));
  for (int i = 2; i < 12; ++i) EXPECT_EQ(PutAndWait(*tier_, NumberedEntry(i)).error().code, ErrorCode::kRefused);
  EXPECT_TRUE(tier_->available());
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
  EXPECT_TRUE(Said().contains("403 AccessDenied"));
}

TEST_F(ObjectTierTest, TheQueueIsBounded) {
  auto options = Options();
  options.queue.max_bytes = 200'000;
  Connect(std::move(options));
  server_->Delay(std::chrono::seconds(2));
  std::atomic<int> kept = 0, lost = 0;
  const SteadyTime began = clock_.SteadyNow();
  for (int i = 0; i < 200; ++i) tier_->Put(NumberedEntry(i, 10'000), [&](const auto& put) { ++(put ? kept : lost); });
  EXPECT_LT(Since(began), std::chrono::milliseconds(500)) << "nobody waits";
  EXPECT_GT(lost, 150);
  server_->Delay(std::chrono::milliseconds(0));
  EXPECT_TRUE(Eventually([&] { return kept + lost == 200; }));
  EXPECT_GT(kept, 5);
  EXPECT_GE(tier_->Stats().dropped_puts, 150u);
}

TEST_F(ObjectTierTest, WhatIsLargerThanTheQueueIsWrittenAlone) {
  auto options = Options();
  options.queue.max_bytes = 100'000;
  Connect(std::move(options));
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1, 1'000'000)));
  EXPECT_TRUE(server_->object(PathOf(KeyOf(1))));
}

TEST_F(ObjectTierTest, AStoreThatHangsDoesNotHoldUpTheEnd) {
  Connect();
  server_->Delay(std::chrono::seconds(60));
  for (int i = 0; i < 50; ++i) tier_->Put(NumberedEntry(i));
  const SteadyTime began = clock_.SteadyNow();
  tier_.reset();
  EXPECT_LT(Since(began), std::chrono::milliseconds(3'500));
}

TEST_F(ObjectTierTest, AResolverThatHangsDoesNotHoldUpTheEnd) {
  std::promise<void> over;
  auto options = Options();
  options.store.resolve = [until = over.get_future().share()](const std::string&) -> std::expected<std::vector<std::string>, Error> {
    until.wait();
    return Fail(ErrorCode::kUnreachable, "no name server answers");
  };
  Open(std::move(options));
  EXPECT_FALSE(tier_->AwaitAvailable(std::chrono::milliseconds(200)));
  const auto end = std::async(std::launch::async, [this] { tier_.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(1)), std::future_status::ready);
  EXPECT_EQ(Said(), "");
  over.set_value();
}

TEST_F(ObjectTierTest, AStoreThatIsNotThereDeletesNothing) {
  const std::uint16_t port = server_->at().port;
  Connect();
  ASSERT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  server_.reset();
  EXPECT_EQ(WhyNot(KeyOf(1)), ErrorCode::kUnreachable);
  EXPECT_FALSE(tier_->available()) << "at once: it cannot be connected to";
  EXPECT_EQ(PutAndWait(*tier_, NumberedEntry(2)).error().code, ErrorCode::kUnreachable);
  EXPECT_TRUE(SaysEventually("left-alone"));
  EXPECT_EQ(tier_->Stats().corrupt, 0u);
  Serve({.port = port});
  server_->Set(PathOf(KeyOf(1)), Pack(NumberedEntry(1)));
  EXPECT_TRUE(tier_->AwaitAvailable(std::chrono::seconds(10)));
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
  EXPECT_EQ(server_->asked("DELETE"), 0);
}

TEST_F(ObjectTierTest, AStoreThatStandsStillIsLeftAloneAndTriedAgain) {
  Connect();
  ASSERT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  server_->Delay(std::chrono::seconds(60));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(tier_->available()) << "one late answer is no reason";
    const SteadyTime began = clock_.SteadyNow();
    EXPECT_EQ(WhyNot(KeyOf(1)), ErrorCode::kUnreachable);
    EXPECT_LT(Since(began), kTimeout + kSlack);
    EXPECT_GE(Since(began), kTimeout);
  }
  EXPECT_FALSE(tier_->available());
  const SteadyTime began = clock_.SteadyNow();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(tier_->Get(KeyOf(1)));
  EXPECT_LT(Since(began), std::chrono::milliseconds(200)) << "nobody waits for it any more";
  server_->Delay(std::chrono::milliseconds(0));
  EXPECT_TRUE(tier_->AwaitAvailable(std::chrono::seconds(10)));
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
}

TEST_F(ObjectTierTest, LateAnswersCountInARow) {
  std::atomic<bool> late = false;
  ConnectTo({.lie = [&](const auto&, const auto&) {
    late.wait(true);
    return false;
  }});
  for (int i = 0; i < 4; ++i) {
    late = true;
    EXPECT_FALSE(tier_->Get(KeyOf(1)));
    EXPECT_FALSE(tier_->Get(KeyOf(1)));
    late = false;
    late.notify_all();
    EXPECT_TRUE(tier_->Get(KeyOf(1)));
    EXPECT_TRUE(tier_->available());
  }
}

TEST_F(ObjectTierTest, ErrorsOfTheStoreCountAndTheMessageSaysWhich) {
  std::atomic<bool> busy = false;
  ConnectTo({.lie = [&](const auto&, const auto& send) { return busy && send(testing::S3Error("503 Slow Down", "SlowDown")); }});
  busy = true;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(WhyNot(KeyOf(1)), ErrorCode::kUnreachable);
  EXPECT_FALSE(tier_->available());
  EXPECT_TRUE(SaysEventually("it answers 503 SlowDown"));
  busy = false;
  EXPECT_TRUE(tier_->AwaitAvailable(std::chrono::seconds(10)));
}

// Each answer comes in time; all of them together do not.
TEST_F(ObjectTierTest, ARequestThatAsksSeveralTimesWaitsNoLongerThanOnce) {
  Connect();
  server_->Delay(kTimeout * 3 / 5);
  Waited waited;
  const SteadyTime began = clock_.SteadyNow();
  for (int i = 0; i < 6; ++i) {
    const auto found = tier_->GetWithin(KeyOf(i), waited);
    EXPECT_TRUE(!found || !*found);
  }
  EXPECT_LT(Since(began), kTimeout + kSlack);
  EXPECT_GE(waited.time, kTimeout);
  Waited waited_for_others{kTimeout};
  EXPECT_FALSE(*tier_->GetWithin(KeyOf(1), waited_for_others)) << "no time is left";
  for (int i = 0; i < 5; ++i) {
    Waited nearly{kTimeout * 9 / 10};
    EXPECT_FALSE(tier_->GetWithin(KeyOf(i), nearly));
  }
  EXPECT_TRUE(tier_->available()) << "a store is not left alone because a request was in a hurry";
}

TEST_F(ObjectTierTest, ManyAtOnce) {
  auto options = Options();
  options.store.timeout = std::chrono::seconds(5);
  Connect(std::move(options));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(PutAndWait(*tier_, NumberedEntry(i, 10'000)));
  std::vector<std::thread> threads;
  std::atomic<int> found = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const auto entry = tier_->Get(KeyOf(i));
        if (entry && *entry && (*entry)->sealed() == NumberedEntry(i, 10'000).sealed()) ++found;
        tier_->Put(NumberedEntry(100 + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, 160);
}

}  // namespace
}  // namespace kiln::cache::object
