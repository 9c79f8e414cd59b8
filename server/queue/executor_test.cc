// SPDX-License-Identifier: Apache-2.0
#include "server/queue/executor.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/testing.h"

namespace kiln::server {
namespace {

// Of one thread, which stands still until GoOn.
class HeldExecutor {
 public:
  explicit HeldExecutor(std::size_t capacity) : executor_(1, capacity, clock_) {
    std::promise<void> held;
    executor_.PostFirst([&held, gate = go_on_.get_future().share()] {
      held.set_value();
      gate.wait();
    });
    held.get_future().wait();
  }
  void GoOn() { go_on_.set_value(); }
  bool Post(const std::string& tenant, std::function<void()> body = [] {}) {
    Executor::Task task = Taking1Ms(std::move(body));
    return executor_.Post(tenant, task);
  }
  void PostFirst(Executor::Task task) { executor_.PostFirst(std::move(task)); }
  void Resume(const std::string& tenant, std::function<void()> body) { executor_.Resume(tenant, Taking1Ms(std::move(body))); }

 private:
  Executor::Task Taking1Ms(std::function<void()> body) {
    return [this, body = std::move(body)] {
      body();
      clock_.Advance(std::chrono::milliseconds(1));
    };
  }

  cache::testing::ManualClock clock_;
  std::promise<void> go_on_;
  Executor executor_;
};

TEST(Executor, AFloodLeavesPlacesToOthers) {
  HeldExecutor executor(100);
  const auto fill = [&](const std::string& tenant) {
    int posted = 0;
    while (executor.Post(tenant)) ++posted;
    return posted;
  };
  EXPECT_EQ(fill("flood"), 80);
  EXPECT_EQ(fill("other"), 16);
  EXPECT_TRUE(executor.Post("third"));
  EXPECT_FALSE(executor.Post("flood"));
  executor.PostFirst([] {});  // however full it is, as Resume
  executor.Resume("flood", [] {});
  executor.GoOn();
}

TEST(Executor, TenantsTakeTurnsAndEachIsServedInItsOrder) {
  std::vector<std::string> order;
  {
    HeldExecutor executor(1000);
    for (int i = 0; i < 100; ++i) executor.Post("flood", [&order, i] { order.push_back("flood " + std::to_string(i)); });
    for (int i = 0; i < 2; ++i) executor.Post("small", [&order, i] { order.push_back("small " + std::to_string(i)); });
    executor.PostFirst([&order] { order.push_back("first"); });
    executor.PostFirst([&order] { order.push_back("second"); });
    executor.GoOn();
  }
  ASSERT_EQ(order.size(), 104u);
  EXPECT_EQ(order[0], "first");
  EXPECT_EQ(order[1], "second");
  const auto place = [&](const std::string& what) { return std::ranges::find(order, what) - order.begin(); };
  EXPECT_LE(place("small 0"), 4);
  EXPECT_LT(place("small 0"), place("small 1"));
  for (int i = 1; i < 100; ++i) EXPECT_LT(place("flood " + std::to_string(i - 1)), place("flood " + std::to_string(i)));
}

TEST(Executor, WhatIsResumedWaitsForItsTenantsTurn) {
  std::vector<std::string> order;
  {
    HeldExecutor executor(1000);
    for (int i = 0; i < 100; ++i) executor.Resume("flood", [&order, i] { order.push_back("flood " + std::to_string(i)); });
    executor.Post("small", [&order] { order.push_back("small"); });
    executor.GoOn();
  }
  ASSERT_EQ(order.size(), 101u);
  EXPECT_LE(std::ranges::find(order, "small") - order.begin(), 2);
  std::erase(order, "small");
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], "flood " + std::to_string(i));
}

// Both keep something waiting; what is the flood's takes four times as long.
TEST(Executor, SharesAreOfTime) {
  struct Tenant {
    std::string name;
    int waiting;
    std::chrono::milliseconds cost;
    std::chrono::milliseconds spent{0};
  };
  Tenant flood{"flood", 500, std::chrono::milliseconds(4)}, small{"small", 8, std::chrono::milliseconds(1)};
  cache::testing::ManualClock clock;
  std::function<void(Tenant&)> post;
  std::promise<void> all_wait, enough;
  bool told = false;
  {
    Executor executor(1, 1000, clock);
    post = [&](Tenant& tenant) {
      Executor::Task task = [&] {
        if (flood.spent + small.spent >= std::chrono::seconds(2)) return std::exchange(told, true) ? void() : enough.set_value();
        clock.Advance(tenant.cost);
        tenant.spent += tenant.cost;
        post(tenant);
      };
      EXPECT_TRUE(executor.Post(tenant.name, task));
    };
    executor.PostFirst([all = all_wait.get_future().share()] { all.wait(); });
    for (Tenant* tenant : {&flood, &small}) {
      for (int i = 0; i < tenant->waiting; ++i) post(*tenant);
    }
    all_wait.set_value();
    enough.get_future().wait();
  }
  EXPECT_NEAR(static_cast<double>(small.spent.count()), 1000, 50);
}

// What a task holds is let go without the executor's mutex: it may post in turn.
TEST(Executor, WhatATaskHoldsMayPost) {
  const cache::testing::ManualClock clock;
  Executor executor(1, 10, clock);
  std::promise<void> posted;
  auto poster = std::shared_ptr<int>(new int, [&](const int* it) {
    delete it;
    executor.PostFirst([&posted] { posted.set_value(); });
  });
  Executor::Task task = [held = std::move(poster)] {};
  ASSERT_TRUE(executor.Post("t", task));
  EXPECT_EQ(posted.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace kiln::server
