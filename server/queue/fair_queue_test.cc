// SPDX-License-Identifier: Apache-2.0
#include "server/queue/fair_queue.h"

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/testing.h"

namespace kiln::server {
namespace {

using std::chrono::milliseconds;
using Item = std::unique_ptr<std::string>;  // which a queue cannot copy

constexpr std::size_t kUrgent = 0, kPatient = 1, kLast = 2;  // classes; the last has a tier of its own

class FairQueueTest : public testing::Test {
 protected:
  void Push(const std::string& tenant, const std::string& name, std::size_t cls = kUrgent) {
    queue_.Push(tenant, cls, std::make_unique<std::string>(name));
  }

  // Begins the next item and ends it after a while.
  std::string Serve(milliseconds takes = milliseconds(10)) {
    auto [item, turn] = queue_.Take([](const Item&) { return true; });
    clock_.Advance(takes);
    queue_.Finish(*turn, static_cast<double>(takes.count()));
    return *item;
  }
  std::vector<std::string> ServeAll() {
    std::vector<std::string> names;
    while (queue_.size() > 0) names.push_back(Serve());
    return names;
  }

  static auto Is(const std::string& name) {
    return [name](const Item& item) { return *item == name; };
  }

  cache::testing::ManualClock clock_;
  FairQueue<Item> queue_{{.first_estimate_ms = 10, .capacity = 10, .tiers = {0, 0, 1}}, clock_};
};

using Names = std::vector<std::string>;

TEST_F(FairQueueTest, ATenantsItemsGoByClassAndInTheirOrder) {
  Push("t", "patient 1", kPatient);
  Push("t", "last", kLast);
  Push("t", "urgent 1");
  Push("t", "patient 2", kPatient);
  Push("t", "urgent 2");
  EXPECT_EQ(queue_.size(), 5u);
  EXPECT_EQ(ServeAll(), (Names{"urgent 1", "urgent 2", "patient 1", "patient 2", "last"}));
}

TEST_F(FairQueueTest, TenantsTakeTurnsHoweverMuchOneSends) {
  for (int i = 0; i < 6; ++i) Push("flood", "flood " + std::to_string(i));
  for (int i = 0; i < 2; ++i) Push("small", "small " + std::to_string(i));
  EXPECT_EQ(queue_.NextTenant(), "flood") << "of two with equal time the first by name";
  EXPECT_EQ(ServeAll(), (Names{"flood 0", "small 0", "flood 1", "small 1", "flood 2", "flood 3", "flood 4", "flood 5"}));
}

// Both keep something waiting.
TEST_F(FairQueueTest, SharesAreOfTimeAndNotOfItems) {
  const std::map<std::string, milliseconds> cost = {{"cheap", milliseconds(5)}, {"dear", milliseconds(40)}};
  std::map<std::string, milliseconds> had;
  for (const auto& [tenant, one] : cost) Push(tenant, tenant);
  for (milliseconds spent{0}; spent < milliseconds(4'000);) {
    const std::string tenant = queue_.NextTenant();
    Push(tenant, tenant);
    EXPECT_EQ(Serve(cost.at(tenant)), tenant);
    had[tenant] += cost.at(tenant);
    spent += cost.at(tenant);
  }
  EXPECT_NEAR(static_cast<double>(had["cheap"].count()), 2'000, 50);
  EXPECT_NEAR(static_cast<double>(had["dear"].count()), 2'000, 50);
}

TEST_F(FairQueueTest, UrgencyIsATenantsOwnBusiness) {
  for (int i = 0; i < 3; ++i) Push("a", "urgent", kUrgent);
  for (int i = 0; i < 3; ++i) Push("b", "patient", kPatient);
  EXPECT_EQ(ServeAll(), (Names{"urgent", "patient", "urgent", "patient", "urgent", "patient"}));
}

TEST_F(FairQueueTest, ALaterTierWaitsAndHasAccountsOfItsOwn) {
  Push("a", "last of a", kLast);
  Push("b", "last of b", kLast);
  for (int i = 0; i < 2; ++i) Push("a", "urgent");
  EXPECT_EQ(Serve(), "urgent");
  EXPECT_EQ(Serve(), "urgent");
  EXPECT_EQ(queue_.NextTenant(), "a") << "what it had before is of the other tier";
  EXPECT_EQ(Serve(), "last of a");
  Push("c", "patient", kPatient);
  EXPECT_EQ(ServeAll(), (Names{"patient", "last of b"}));
}

TEST_F(FairQueueTest, WhatRunsCountsByTheTimeThatPasses) {
  Push("long", "long 1");
  auto [item, turn] = queue_.Take([](const Item&) { return true; });
  EXPECT_EQ(turn->tenant, "long");
  EXPECT_EQ(turn->began, clock_.SteadyNow());
  for (int i = 0; i < 4; ++i) Push("short", "short " + std::to_string(i));
  Push("long", "long 2");
  clock_.Advance(milliseconds(100));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Serve(), "short " + std::to_string(i)) << "the long one has had more, and has more all the while";
  queue_.Finish(*turn, 15);  // so much of the time was its own
  EXPECT_EQ(Serve(), "long 2");
  EXPECT_EQ(Serve(), "short 3");
}

TEST_F(FairQueueTest, AFloodLeavesPlacesToOthersAndToItsOwnOtherClasses) {
  const auto fill = [&](const std::string& tenant, std::size_t cls) {
    std::size_t pushed = 0;
    for (; queue_.HasRoomFor(tenant, cls); ++pushed) Push(tenant, tenant, cls);
    return pushed;
  };
  EXPECT_EQ(fill("flood", kPatient), 8u) << "no longer shorter than four times the two free places";
  EXPECT_EQ(fill("flood", kUrgent), 2u);
  EXPECT_FALSE(queue_.HasRoomFor("other", kUrgent)) << "full for all";
  Serve();
  EXPECT_TRUE(queue_.HasRoomFor("other", kUrgent));
  EXPECT_TRUE(queue_.HasRoomFor("flood", kUrgent));
  EXPECT_FALSE(queue_.HasRoomFor("flood", kPatient));
  Push("flood", "beyond", kPatient);  // whether or not there is room
  Push("flood", "beyond", kPatient);
  EXPECT_EQ(queue_.size(), 11u);
  EXPECT_EQ(ServeAll().size(), 11u);
  EXPECT_TRUE(queue_.HasRoomFor("flood", kPatient));
}

TEST(FairQueue, IsUnboundedUnlessToldOtherwise) {
  const cache::testing::ManualClock clock;
  FairQueue<int> queue({}, clock);
  for (int i = 0; i < 1'000; ++i) {
    EXPECT_TRUE(queue.HasRoomFor("t", 0));
    queue.Push("t", 0, int(i));
  }
  EXPECT_EQ(queue.Take([](int) { return true; }).item, 0);
}

TEST_F(FairQueueTest, WhatIsRemovedFreesItsPlace) {
  Push("t", "one");
  for (const std::string name : {"two", "three", "four"}) Push("t", name, kPatient);
  Push("other", "two");
  auto removed = queue_.Remove("t", Is("three"));
  ASSERT_TRUE(removed);
  EXPECT_EQ(**removed, "three");
  EXPECT_EQ(queue_.size(), 4u);
  EXPECT_FALSE(queue_.Remove("t", Is("three"))) << "once";
  EXPECT_FALSE(queue_.Remove("nobody", Is("two")));
  EXPECT_TRUE(queue_.Remove("other", Is("two"))) << "the tenant's own";
  EXPECT_EQ(ServeAll(), (Names{"one", "two", "four"}));
  EXPECT_FALSE(queue_.Remove("t", Is("one"))) << "it has begun";
}

TEST_F(FairQueueTest, WhatIsNotWantedHasNoTurnAndCostsNothing) {
  for (const std::string name : {"gone", "a 1", "a 2"}) Push("a", name);
  for (const std::string name : {"b 1", "b 2"}) Push("b", name);
  const auto taken = queue_.Take([](const Item& item) { return *item != "gone"; });
  EXPECT_EQ(*taken.item, "gone");
  EXPECT_FALSE(taken.turn);
  EXPECT_EQ(ServeAll(), (Names{"a 1", "b 1", "a 2", "b 2"}));
}

TEST_F(FairQueueTest, WhatIsPromotedGoesToTheEndOfAnEarlierLine) {
  for (const std::string name : {"patient 1", "patient 2"}) Push("t", name, kPatient);
  Push("t", "urgent");
  Push("other", "last", kLast);
  queue_.Promote(kUrgent, Is("patient 2"));
  queue_.Promote(kPatient, Is("urgent"));  // it is more urgent already
  queue_.Promote(kUrgent, Is("none"));
  queue_.Promote(kPatient, Is("last"));
  EXPECT_EQ(queue_.size(), 4u);
  Push("late", "late", kLast);
  EXPECT_EQ(ServeAll(), (Names{"last", "urgent", "patient 2", "patient 1", "late"}));
}

TEST_F(FairQueueTest, NothingIsLeftAfterClear) {
  Push("a", "a");
  Push("b", "b", kLast);
  Push("a", "a's", kPatient);
  Names names;
  for (const Item& item : queue_.Clear()) names.push_back(*item);
  EXPECT_EQ(names, (Names{"a", "a's", "b"}));
  EXPECT_EQ(queue_.size(), 0u);
  EXPECT_TRUE(queue_.Clear().empty());
}

}  // namespace
}  // namespace kiln::server
