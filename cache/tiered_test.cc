// SPDX-License-Identifier: Apache-2.0
#include "cache/tiered.h"

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>

#include "cache/memory_tier.h"
#include "cache/testing.h"

namespace kiln::cache {
namespace {

using testing::KeyOf;
using testing::ManualClock;
using testing::NumberedEntry;

// Does as it is told and counts how often it was asked.
class FakeTier final : public Tier {
 public:
  std::string_view name() const override { return "fake"; }
  bool blocking() const override { return true; }
  bool outside() const override { return from_others; }
  bool read_only() const override { return given_only; }
  bool available() const override { return up; }
  std::expected<std::optional<Entry>, Error> Get(const Digest& key) override {
    ++asked;
    if (failure) return std::unexpected(*failure);
    const auto at = entries.find(key);
    if (at == entries.end()) return std::nullopt;
    return at->second;
  }
  void Put(Entry entry, PutDone done) override {
    ++asked;
    std::expected<void, Error> outcome;
    if (failure) outcome = std::unexpected(*failure);
    else entries.insert_or_assign(entry.key(), entry);
    if (hold) held.emplace_back(std::move(done));
    else if (done) done(outcome);
  }
  std::expected<bool, Error> Erase(const Digest& key) override {
    if (failure) return std::unexpected(*failure);
    return entries.erase(key) > 0;
  }
  void Refused(const Digest& key) override { ++refused[key]; }
  void Touch(const Digest& key) override { ++touched[key]; }
  TierStats Stats() const override { return {}; }
  std::uint64_t losses() const override { return lost; }

  void LoseAll() {
    entries.clear();
    ++lost;
  }

  bool from_others = false, given_only = false, up = true;
  int asked = 0;
  std::uint64_t lost = 0;
  bool hold = false;
  std::vector<PutDone> held;
  std::optional<Error> failure;
  std::map<Digest, Entry> entries;
  std::map<Digest, int> touched, refused;
};

class TieredTest : public ::testing::Test {
 protected:
  TieredCache::Options Options() {
    return {.disable_for = std::chrono::seconds(10), .on_error = [this](std::string_view tier, const Error& error) {
              errors.push_back(std::string(tier) + ": " + std::string(ToString(error.code)));
            }};
  }

  ManualClock clock;
  std::vector<std::string> errors;
  std::shared_ptr<MemoryTier> memory = std::make_shared<MemoryTier>(MemoryTier::Options{});
  std::shared_ptr<FakeTier> disk = std::make_shared<FakeTier>();
  TieredCache cache{{memory, disk}, clock, Options()};
};

TEST_F(TieredTest, AHitBelowFillsTheTiersAbove) {
  disk->entries.emplace(KeyOf(1), NumberedEntry(1));
  EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(1))) << "asks memory only";
  EXPECT_EQ(disk->asked, 0);
  auto hit = cache.Get(KeyOf(1));
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->level, 1u);
  EXPECT_EQ(hit->tier, "fake");
  hit = cache.GetWithoutBlocking(KeyOf(1));
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->level, 0u);
  EXPECT_EQ(disk->asked, 1);
}

TEST_F(TieredTest, WhatIsNotAcceptedIsErasedAndSeenByNobody) {
  std::promise<void> asked, may_go_on;
  TieredCache::Options options = Options();
  options.accept = [&](const Entry& entry) {
    if (entry.key() != KeyOf(1)) return true;
    asked.set_value();
    may_go_on.get_future().wait();
    return false;
  };
  TieredCache filtered({memory, disk}, clock, std::move(options));
  disk->entries.emplace(KeyOf(1), NumberedEntry(1));
  disk->entries.emplace(KeyOf(2), NumberedEntry(2));
  auto got = std::async(std::launch::async, [&] { return filtered.Get(KeyOf(1)); });
  asked.get_future().wait();
  EXPECT_FALSE(filtered.GetWithoutBlocking(KeyOf(1))) << "while it is looked at";
  may_go_on.set_value();
  EXPECT_FALSE(got.get());
  EXPECT_FALSE(filtered.GetWithoutBlocking(KeyOf(1)));
  EXPECT_FALSE(disk->entries.contains(KeyOf(1)));
  EXPECT_TRUE(filtered.Get(KeyOf(2)));
  EXPECT_TRUE(filtered.GetWithoutBlocking(KeyOf(2)));
  EXPECT_TRUE(filtered.Report()[1].enabled);
}

TEST_F(TieredTest, PutGoesToAllAndAnswersOnce) {
  int answers = 0;
  disk->hold = true;
  cache.Put(NumberedEntry(1), [&](std::expected<void, Error> outcome) {
    ++answers;
    EXPECT_TRUE(outcome);
  });
  EXPECT_EQ(answers, 0) << "the disk has not answered";
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(1)));
  disk->held.front()({});
  EXPECT_EQ(answers, 1);
}

TEST_F(TieredTest, WhatIsPutFarStaysOutOfMemory) {
  cache.PutFar(NumberedEntry(1));
  EXPECT_EQ(disk->entries.count(KeyOf(1)), 1u);
  EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(1)));
  TieredCache alone({memory}, clock, Options());
  alone.PutFar(NumberedEntry(2));
  EXPECT_FALSE(alone.Get(KeyOf(2))) << "there is no other tier";
}

TEST_F(TieredTest, AHitInMemoryIsAUseBelow) {
  cache.Put(NumberedEntry(1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(1)));
  EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(2)));
  EXPECT_EQ(disk->touched, (std::map<Digest, int>{{KeyOf(1), 3}}));
}

TEST_F(TieredTest, AHitSaysWhetherATierThatLastsHasIt) {
  disk->hold = true;
  cache.Put(NumberedEntry(1));
  cache.Put(NumberedEntry(1));
  EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(1))->durable);
  std::vector<bool> told;
  cache.MakeDurable(KeyOf(1), [&](std::expected<void, Error> outcome) { told.push_back(outcome.has_value()); });
  disk->held[0]({});
  EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(1))->durable) << "one of two puts is under way";
  EXPECT_TRUE(told.empty());
  disk->held[1]({});
  EXPECT_EQ(told, std::vector<bool>{true});
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(1))->durable);
  disk->hold = false;
  disk->entries.emplace(KeyOf(2), NumberedEntry(2));
  EXPECT_TRUE(cache.Get(KeyOf(2))->durable);
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(2))->durable) << "a copy of what the disk has";
}

TEST_F(TieredTest, WhatCouldNotBeKeptIsPutAgain) {
  disk->failure = Error{ErrorCode::kFull, "full"};
  cache.Put(NumberedEntry(1));
  EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(1))->durable);
  EXPECT_TRUE(errors.empty()) << "the tier tells that once itself";
  std::vector<bool> told;
  const auto note = [&](std::expected<void, Error> outcome) { told.push_back(outcome.has_value()); };
  cache.MakeDurable(KeyOf(1), note);
  disk->failure.reset();
  cache.MakeDurable(KeyOf(1), note);
  cache.MakeDurable(KeyOf(2), note);
  EXPECT_EQ(told, (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(1))->durable);
  EXPECT_TRUE(disk->entries.contains(KeyOf(1)));
}

TEST_F(TieredTest, WhatATierHasLostIsDurableNoMore) {
  for (int i = 1; i <= 3; ++i) cache.Put(NumberedEntry(i));
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(1))->durable);
  disk->LoseAll();
  for (int i = 1; i <= 3; ++i) EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(i))->durable) << i;
  std::optional<bool> kept;
  cache.MakeDurable(KeyOf(1), [&](std::expected<void, Error> outcome) { kept = outcome.has_value(); });
  EXPECT_EQ(kept, true);
  EXPECT_TRUE(disk->entries.contains(KeyOf(1))) << "put again";
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(1))->durable);
  EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(2))->durable);
  disk->entries.emplace(KeyOf(4), NumberedEntry(4));
  EXPECT_TRUE(cache.Get(KeyOf(4))->durable);
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(4))->durable) << "found since in what is there now";
  disk->LoseAll();
  for (const int i : {1, 4}) EXPECT_FALSE(cache.GetWithoutBlocking(KeyOf(i))->durable) << i;
}

TEST_F(TieredTest, MemoryAloneIsNotStored) {
  disk->failure = Error{ErrorCode::kFull, "disk full"};
  std::optional<std::expected<void, Error>> outcome;
  cache.Put(NumberedEntry(1), [&](std::expected<void, Error> result) { outcome = std::move(result); });
  ASSERT_TRUE(outcome && !*outcome);
  EXPECT_EQ(outcome->error().code, ErrorCode::kFull);
  EXPECT_TRUE(cache.Get(KeyOf(1))) << "but it is served";
}

TEST_F(TieredTest, AnUnreachableTierIsLeftAloneForAWhile) {
  disk->entries.emplace(KeyOf(1), NumberedEntry(1));
  disk->failure = Error{ErrorCode::kUnreachable, "I/O error"};
  EXPECT_FALSE(cache.Get(KeyOf(1)));
  EXPECT_EQ(errors, std::vector<std::string>{"fake: unreachable"});
  EXPECT_FALSE(cache.Report()[1].enabled);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(cache.Get(KeyOf(1)));
  EXPECT_EQ(disk->asked, 1);

  clock.Advance(std::chrono::seconds(11));
  EXPECT_FALSE(cache.Get(KeyOf(1))) << "one trial, which fails";
  EXPECT_FALSE(cache.Get(KeyOf(1)));
  EXPECT_EQ(disk->asked, 2);

  clock.Advance(std::chrono::seconds(11));
  disk->failure.reset();
  EXPECT_TRUE(cache.Get(KeyOf(1))) << "an unreachable tier lost nothing";
  EXPECT_TRUE(cache.Report()[1].enabled);
}

TEST_F(TieredTest, ACorruptEntryDisablesNothing) {
  disk->failure = Error{ErrorCode::kCorrupt, "digest disagrees"};
  EXPECT_FALSE(cache.Get(KeyOf(1)));
  EXPECT_TRUE(cache.Report()[1].enabled);
  EXPECT_EQ(errors.size(), 1u);
}

TEST_F(TieredTest, EraseTellsWhenATierCouldNot) {
  memory->Put(NumberedEntry(1));
  EXPECT_EQ(cache.Erase(KeyOf(1)), true);
  EXPECT_EQ(cache.Erase(KeyOf(1)), false);
  disk->failure = Error{ErrorCode::kUnreachable, "I/O error"};
  EXPECT_FALSE(cache.Erase(KeyOf(1)));
  EXPECT_FALSE(cache.Erase(KeyOf(1))) << "disabled is not erased either";
}

TEST_F(TieredTest, WithoutTiersNothingIsStored) {
  TieredCache empty({}, clock, {});
  std::optional<std::expected<void, Error>> outcome;
  empty.Put(NumberedEntry(1), [&](std::expected<void, Error> result) { outcome = std::move(result); });
  EXPECT_TRUE(outcome && !*outcome);
  EXPECT_FALSE(empty.Get(KeyOf(1)));
}

class OutsideTierTest : public TieredTest {
 protected:
  TieredCache::Options TakingIn() {
    TieredCache::Options options = Options();
    options.take_in = [this](std::string_view, const Entry& entry) -> std::optional<Entry> {
      ++offered;
      if (entry.metadata() == "forged") return std::nullopt;
      return testing::MakeEntry(entry.key(), "taken in");
    };
    return options;
  }

  int offered = 0;
  std::shared_ptr<FakeTier> others = [] {
    auto tier = std::make_shared<FakeTier>();
    tier->from_others = true;
    return tier;
  }();
  TieredCache shared{{memory, disk, others}, clock, TakingIn()};
};

TEST_F(OutsideTierTest, WhatComesFromOutsideIsTakenIn) {
  others->entries.emplace(KeyOf(1), NumberedEntry(1));
  const auto hit = shared.Get(KeyOf(1));
  ASSERT_TRUE(hit);
  EXPECT_TRUE(hit->outside);
  EXPECT_EQ(hit->level, 2u);
  EXPECT_EQ(hit->entry.blob("ptx"), "taken in");
  EXPECT_EQ(disk->entries.at(KeyOf(1)).blob("ptx"), "taken in");
  EXPECT_EQ(others->entries.at(KeyOf(1)).digest(), NumberedEntry(1).digest());
  const auto again = shared.Get(KeyOf(1));
  EXPECT_EQ(again->level, 0u);
  EXPECT_TRUE(again->durable);
  EXPECT_EQ(offered, 1);
}

TEST_F(OutsideTierTest, WhatAFartherOneHasTheNearerOnesGetAsItWasFound) {
  const auto farther = std::make_shared<FakeTier>();
  farther->from_others = true;
  TieredCache cache({memory, disk, others, farther}, clock, TakingIn());
  farther->entries.emplace(KeyOf(1), NumberedEntry(1));
  farther->entries.emplace(KeyOf(2), testing::MakeEntry(KeyOf(2), "x", "forged"));
  EXPECT_EQ(cache.Get(KeyOf(1))->level, 3u);
  EXPECT_EQ(others->entries.at(KeyOf(1)).digest(), NumberedEntry(1).digest()) << "with the seal of who made it";
  EXPECT_EQ(disk->entries.at(KeyOf(1)).blob("ptx"), "taken in");
  EXPECT_FALSE(cache.Get(KeyOf(2)));
  EXPECT_FALSE(others->entries.contains(KeyOf(2)));
}

TEST_F(OutsideTierTest, WhoWantsOnlyWhatThisHostHasWaitsForNoOther) {
  others->entries.emplace(KeyOf(1), NumberedEntry(1));
  disk->entries.emplace(KeyOf(2), NumberedEntry(2));
  EXPECT_FALSE(shared.GetOwn(KeyOf(1)));
  EXPECT_EQ(shared.GetOwn(KeyOf(2))->level, 1u);
  EXPECT_EQ(others->asked, 0);
}

TEST_F(OutsideTierTest, WhatIsRefusedIsNeitherServedNorErased) {
  others->entries.emplace(KeyOf(1), testing::MakeEntry(KeyOf(1), "x", "forged"));
  EXPECT_FALSE(shared.Get(KeyOf(1)));
  EXPECT_FALSE(shared.GetWithoutBlocking(KeyOf(1)));
  EXPECT_TRUE(others->entries.contains(KeyOf(1))) << "others may trust it";
  EXPECT_TRUE(disk->entries.empty());
  EXPECT_EQ(shared.Report()[2].stats.refused, 1u);
  EXPECT_EQ(others->refused[KeyOf(1)], 1) << "the tier knows that the next put is to replace it";
  TieredCache trusts_nobody({memory, disk, others}, clock, Options());
  others->entries.emplace(KeyOf(2), NumberedEntry(2));
  EXPECT_FALSE(trusts_nobody.Get(KeyOf(2)));
}

TEST_F(OutsideTierTest, NoPutWaitsForIt) {
  others->hold = true;
  std::optional<std::expected<void, Error>> outcome;
  shared.Put(NumberedEntry(1), [&](std::expected<void, Error> result) { outcome = std::move(result); });
  ASSERT_TRUE(outcome && *outcome);
  EXPECT_TRUE(others->entries.contains(KeyOf(1)));
  others->held.front()(Fail(ErrorCode::kOverloaded, "lost"));
  EXPECT_TRUE(errors.empty()) << "it tells by itself";
}

TEST_F(OutsideTierTest, WhatOthersCannotTakeInIsNotPutThere) {
  bool shares = false;
  TieredCache::Options options = TakingIn();
  options.shares = [&] { return shares; };
  TieredCache cache({memory, disk, others}, clock, std::move(options));
  cache.Put(NumberedEntry(1));
  cache.PutFar(NumberedEntry(2));
  EXPECT_EQ(disk->entries.size(), 2u);
  EXPECT_TRUE(others->entries.empty());
  shares = true;
  cache.Put(NumberedEntry(3));
  EXPECT_TRUE(others->entries.contains(KeyOf(3)));
}

TEST_F(OutsideTierTest, ItIsNoSubstituteForTheDisk) {
  disk->failure = Error{ErrorCode::kFull, "no space"};
  std::optional<std::expected<void, Error>> outcome;
  shared.Put(NumberedEntry(1), [&](std::expected<void, Error> result) { outcome = std::move(result); });
  EXPECT_TRUE(outcome && !*outcome);
  others->entries.emplace(KeyOf(2), NumberedEntry(2));
  EXPECT_FALSE(shared.Get(KeyOf(2))->durable);
  EXPECT_FALSE(shared.Get(KeyOf(2))->durable);
  std::optional<std::expected<void, Error>> durable;
  shared.MakeDurable(KeyOf(2), [&](std::expected<void, Error> result) { durable = std::move(result); });
  EXPECT_TRUE(durable && !*durable);
  disk->failure.reset();
  shared.MakeDurable(KeyOf(2), [&](std::expected<void, Error> result) { durable = std::move(result); });
  EXPECT_TRUE(durable && *durable);
  EXPECT_TRUE(disk->entries.contains(KeyOf(2)));
}

TEST_F(OutsideTierTest, OneThatOnlyReadsIsTakenInFromAndGivenNothing) {
  others->given_only = true;
  TieredCache reads({memory, disk, others}, clock, TakingIn());
  others->entries.emplace(KeyOf(1), NumberedEntry(1));
  EXPECT_EQ(reads.Get(KeyOf(1))->entry.blob("ptx"), "taken in");
  EXPECT_TRUE(disk->entries.contains(KeyOf(1)));
  reads.Put(NumberedEntry(2));
  EXPECT_TRUE(disk->entries.contains(KeyOf(2)));
  EXPECT_FALSE(others->entries.contains(KeyOf(2)));
}

TEST_F(OutsideTierTest, ItSaysItselfWhenItIsLeftAlone) {
  others->failure = Error{ErrorCode::kUnreachable, "timeout"};
  EXPECT_FALSE(shared.Get(KeyOf(1)));
  EXPECT_FALSE(shared.Get(KeyOf(1)));
  EXPECT_EQ(others->asked, 2);
  others->up = false;
  EXPECT_FALSE(shared.Get(KeyOf(1)));
  EXPECT_EQ(others->asked, 2);
  EXPECT_FALSE(shared.Report()[2].enabled);
  EXPECT_TRUE(shared.Erase(KeyOf(1))) << "only this host's own";
  others->failure.reset();
  others->up = true;
  EXPECT_FALSE(shared.Get(KeyOf(1)));
  EXPECT_EQ(others->asked, 3);
}

}  // namespace
}  // namespace kiln::cache
