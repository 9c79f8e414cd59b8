// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/replies.h"

#include <gtest/gtest.h>

namespace kiln::cache::redis {
namespace {

const HostPort kFrom{"10.0.0.1", 6379};

Reply Read(std::string_view bytes) {
  ReplyReader reader(std::size_t{16} << 20);
  EXPECT_TRUE(reader.Feed(bytes));
  auto reply = reader.Next();
  EXPECT_TRUE(reply && *reply) << bytes;
  return reply && *reply ? std::move(**reply) : Reply();
}

TEST(RepliesTest, Redirections) {
  const auto moved = RedirectionIn(Read("-MOVED 3999 127.0.0.1:6381\r\n"), kFrom);
  ASSERT_TRUE(moved);
  EXPECT_FALSE(moved->asking);
  EXPECT_EQ(moved->to, (HostPort{"127.0.0.1", 6381}));
  EXPECT_TRUE(RedirectionIn(Read("-ASK 3999 fd00::2:6381\r\n"), kFrom)->asking);
  EXPECT_EQ(RedirectionIn(Read("-MOVED 3999 :6381\r\n"), kFrom)->to, (HostPort{"10.0.0.1", 6381}));
  EXPECT_EQ(RedirectionIn(Read("-MOVED 3999 :6381\r\n"), HostPort{"fd00::2", 1})->to, (HostPort{"fd00::2", 6381}));
  for (const std::string wrong : {"-MOVED\r\n", "-MOVED \r\n", "-MOVED 1 x\r\n", "-MOVED 1 a:0\r\n", "-MOVED 1 a:65536\r\n", "-MOVED 1 a b:1 \r\n",
                                  "-MOVED 1 ?:1\r\n", "-ERR 1 a:1\r\n", "+MOVED 1 a:1\r\n", "-ASK 1 a/b:1\r\n"}) {
    EXPECT_FALSE(RedirectionIn(Read(wrong), kFrom)) << wrong;
  }
  EXPECT_FALSE(RedirectionIn(Read("-ASK 1 " + std::string(256, 'a') + ":1\r\n"), kFrom)) << "no name is so long";
}

TEST(RepliesTest, SlotsOfServers) {
  const auto slots = SlotsIn(
      Read("*2\r\n*4\r\n:0\r\n:8191\r\n*2\r\n$1\r\na\r\n:1\r\n*2\r\n$1\r\nb\r\n:2\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$0\r\n\r\n:3\r\n"), kFrom);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[0].last, 8191u);
  EXPECT_EQ(slots[0].master, (HostPort{"a", 1}));
  EXPECT_EQ(slots[0].replicas, (std::vector<HostPort>{{"b", 2}}));
  EXPECT_EQ(slots[1].master, (HostPort{"10.0.0.1", 3}));
  for (const char* wrong : {"*0\r\n", ":1\r\n", "+OK\r\n", "*1\r\n*0\r\n", "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\na\r\n:1\r\n",
                            "*1\r\n*3\r\n:-1\r\n:4\r\n*2\r\n$1\r\na\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
                            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\n?\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n",
                            "*1\r\n*3\r\n:0\r\n:1\r\n:2\r\n", "*1\r\n*3\r\n$1\r\n0\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n"}) {
    EXPECT_TRUE(SlotsIn(Read(wrong), kFrom).empty()) << wrong;
  }
}

TEST(RepliesTest, ServersAreCounted) {
  std::string bytes = "*16384\r\n";
  for (int slot = 0; slot < 16384; ++slot) {
    const std::string s = std::to_string(slot), port = std::to_string(1 + slot);
    bytes += "*4\r\n:" + s + "\r\n:" + s + "\r\n*2\r\n$1\r\na\r\n:" + port + "\r\n*2\r\n$1\r\nb\r\n:" + port + "\r\n";
  }
  const auto slots = SlotsIn(Read(bytes), kFrom);
  EXPECT_EQ(slots.size(), kMostServers / 2);
  std::size_t replicas = 0;
  for (const Slots& one : slots) replicas += one.replicas.size();
  EXPECT_EQ(replicas, kMostServers / 2);
}

}  // namespace
}  // namespace kiln::cache::redis
