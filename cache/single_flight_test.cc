// SPDX-License-Identifier: Apache-2.0
#include "cache/single_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cache/testing.h"

namespace kiln::cache {
namespace {

using testing::KeyOf;
using testing::ManualClock;
using Flights = SingleFlight<std::string>;
using Shared = std::shared_ptr<const std::string>;

TEST(SingleFlight, AllGetTheSameResult) {
  Flights flights;
  std::vector<Shared> results;
  const auto waiter = [&](FlightEnd end, const Shared& result) {
    EXPECT_EQ(end, FlightEnd::kFinished);
    results.push_back(result);
  };
  auto first = flights.Join(KeyOf(1), waiter);
  ASSERT_TRUE(first.flight);
  EXPECT_FALSE(flights.Join(KeyOf(1), waiter).flight);
  EXPECT_TRUE(flights.Join(KeyOf(2), [](auto...) {}).flight) << "another key, another flight";
  first.flight->Finish("result");
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(*results[0], "result");
  EXPECT_EQ(results[0], results[1]);
  EXPECT_FALSE(flights.Leave(first.ticket)) << "too late";
  EXPECT_TRUE(flights.Join(KeyOf(1), [](auto...) {}).flight) << "the key is free again";
}

TEST(SingleFlight, JoiningWhatExistsStartsNothing) {
  Flights flights;
  int called = 0;
  Flights::Waiter waiter = [&](FlightEnd, const Shared&) { ++called; };
  EXPECT_FALSE(flights.JoinExisting(KeyOf(1), waiter));
  EXPECT_EQ(flights.flights(), 0u);
  auto first = flights.Join(KeyOf(1), [](auto...) {});
  const auto ticket = flights.JoinExisting(KeyOf(1), waiter);
  ASSERT_TRUE(ticket) << "the waiter was still there to be taken";
  EXPECT_TRUE(flights.Leave(first.ticket));
  EXPECT_FALSE(first.flight->stop_token().stop_requested());
  first.flight->Finish("result");
  EXPECT_EQ(called, 1);
}

TEST(SingleFlight, LeavingKeepsTheFlightForTheOthers) {
  Flights flights;
  int called = 0;
  auto first = flights.Join(KeyOf(1), [](auto...) { FAIL() << "it had left"; });
  auto second = flights.Join(KeyOf(1), [&](auto...) { ++called; });
  EXPECT_TRUE(flights.Leave(first.ticket));
  EXPECT_FALSE(flights.Leave(first.ticket));
  EXPECT_FALSE(first.flight->stop_token().stop_requested());
  first.flight->Finish("result");
  EXPECT_EQ(called, 1);
}

TEST(SingleFlight, TheLastToLeaveStopsTheFlight) {
  Flights flights;
  auto first = flights.Join(KeyOf(1), [](auto...) { FAIL(); });
  auto second = flights.Join(KeyOf(1), [](auto...) { FAIL(); });
  bool stopped = false;
  std::stop_callback on_stop(first.flight->stop_token(), [&] {
    stopped = true;
    EXPECT_EQ(flights.flights(), 0u) << "and no lock is held here";
  });
  EXPECT_TRUE(flights.Leave(second.ticket));
  EXPECT_FALSE(stopped);
  EXPECT_TRUE(flights.Leave(first.ticket));
  EXPECT_TRUE(stopped);

  int called = 0;
  auto next = flights.Join(KeyOf(1), [&](FlightEnd, const Shared& result) {
    ++called;
    EXPECT_EQ(*result, "new");
  });
  ASSERT_TRUE(next.flight) << "nobody boards a flight that was stopped";
  first.flight->Finish("late");
  EXPECT_EQ(called, 0);
  next.flight->Finish("new");
  EXPECT_EQ(called, 1);
}

TEST(SingleFlight, ADroppedFlightTellsEverybody) {
  Flights flights;
  int dropped = 0;
  const auto waiter = [&](FlightEnd end, const Shared& result) {
    EXPECT_EQ(end, FlightEnd::kDropped);
    EXPECT_FALSE(result);
    ++dropped;
  };
  {
    auto first = flights.Join(KeyOf(1), waiter);
    (void)flights.Join(KeyOf(1), waiter);
  }
  EXPECT_EQ(dropped, 2);
  EXPECT_EQ(flights.flights(), 0u);
}

TEST(SingleFlight, DeadlinesAreEachWaitersOwn) {
  Flights flights;
  ManualClock clock;
  std::vector<std::string> log;
  const auto waiter = [&](std::string name) {
    return [&log, name](FlightEnd end, const Shared&) { log.push_back(name + (end == FlightEnd::kDeadline ? " late" : " ok")); };
  };
  const SteadyTime start = clock.SteadyNow();
  auto first = flights.Join(KeyOf(1), waiter("a"), start + std::chrono::seconds(1));
  (void)flights.Join(KeyOf(1), waiter("b"), start + std::chrono::seconds(2));
  (void)flights.Join(KeyOf(1), waiter("c"));
  EXPECT_EQ(flights.NextDeadline(), start + std::chrono::seconds(1));
  EXPECT_EQ(flights.Expire(start), 0u);
  EXPECT_EQ(flights.Expire(start + std::chrono::seconds(1)), 1u);
  EXPECT_EQ(flights.NextDeadline(), start + std::chrono::seconds(2));
  first.flight->Finish("result");
  EXPECT_EQ(log, (std::vector<std::string>{"a late", "b ok", "c ok"}));
  EXPECT_EQ(flights.NextDeadline(), std::nullopt);
}

TEST(SingleFlight, TheLastDeadlineStopsTheFlight) {
  Flights flights;
  ManualClock clock;
  auto first = flights.Join(KeyOf(1), [](auto...) {}, clock.SteadyNow());
  EXPECT_EQ(flights.Expire(clock.SteadyNow()), 1u);
  EXPECT_TRUE(first.flight->stop_token().stop_requested());
  EXPECT_EQ(flights.flights(), 0u);
}

TEST(SingleFlight, MayGoBeforeItsFlights) {
  auto flights = std::make_unique<Flights>();
  FlightEnd end = FlightEnd::kFinished;
  auto first = flights->Join(KeyOf(1), [&](FlightEnd how, const Shared&) { end = how; });
  flights.reset();
  EXPECT_EQ(end, FlightEnd::kDropped);
  EXPECT_TRUE(first.flight->stop_token().stop_requested());
  first.flight->Finish("late");
}

// Every join of a round is answered exactly once, each flight delivers its own result, and as many flights start as
// deliver or are stopped.
TEST(SingleFlight, HundredsOfThreads) {
  constexpr int kThreads = 300;
  constexpr int kRounds = 30;
  constexpr int kKeys = 3;
  Flights flights;
  std::atomic<int> joined = 0, answered = 0, left = 0, started = 0;
  std::latch go(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      go.arrive_and_wait();
      for (int round = 0; round < kRounds; ++round) {
        const int key = static_cast<int>(random() % kKeys);
        ++joined;
        auto mine = flights.Join(KeyOf(key), [&, key](FlightEnd end, const Shared& result) {
          EXPECT_EQ(end, FlightEnd::kFinished);
          EXPECT_EQ(*result, std::to_string(key));
          ++answered;
        });
        if (random() % 3 == 0 && flights.Leave(mine.ticket)) ++left;
        if (mine.flight) {
          ++started;
          if (random() % 2 == 0) std::this_thread::yield();
          mine.flight->Finish(std::to_string(key));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(joined, kThreads * kRounds);
  EXPECT_EQ(answered + left, joined);
  EXPECT_GT(started, 0);
  EXPECT_LE(started, joined);
  EXPECT_EQ(flights.flights(), 0u);
}

}  // namespace
}  // namespace kiln::cache
