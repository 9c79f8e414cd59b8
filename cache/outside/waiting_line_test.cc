// SPDX-License-Identifier: Apache-2.0
#include "cache/outside/waiting_line.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace kiln::cache {
namespace {

bool Add(WaitingLine<std::string>& line, std::string item, std::uint64_t bytes) { return line.Add(item, bytes); }

TEST(WaitingLineTest, IsBounded) {
  WaitingLine<std::string> line(100);
  EXPECT_TRUE(Add(line, "a", 60));
  std::string kept = "b";
  EXPECT_FALSE(line.Add(kept, 41));
  EXPECT_EQ(kept, "b") << "as it was";
  EXPECT_TRUE(line.Add(kept, 40));
  EXPECT_EQ(line.Take(10, 1000), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(Add(line, "large", 1000)) << "alone";
  EXPECT_FALSE(Add(line, "small", 1));
}

TEST(WaitingLineTest, GivesOutInOrderAndNotTooMuch) {
  WaitingLine<std::string> line(100);
  for (const char* item : {"a", "b", "c", "d"}) EXPECT_TRUE(Add(line, item, 10));
  EXPECT_EQ(line.Take(1, 100), (std::vector<std::string>{"a"}));
  EXPECT_EQ(line.Take(10, 11), (std::vector<std::string>{"b", "c"}));
  line.Close();
  EXPECT_EQ(line.Take(10, 100), (std::vector<std::string>{"d"})) << "what waits is still given out";
  EXPECT_TRUE(line.Take(10, 100).empty());
}

TEST(WaitingLineTest, WhoWaitsIsWoken) {
  WaitingLine<std::string> line(100);
  std::vector<std::string> taken;
  std::thread taker([&] {
    for (auto items = line.Take(1, 1); !items.empty(); items = line.Take(1, 1)) taken.push_back(items[0]);
  });
  for (const char* item : {"a", "b", "c"}) EXPECT_TRUE(Add(line, item, 10));
  line.Close();
  taker.join();
  EXPECT_EQ(taken, (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace kiln::cache
