// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/protocol.h"

#include <gtest/gtest.h>

namespace kiln::cache::redis {
namespace {

TEST(ProtocolTest, CommandsAreBinarySafe) {
  const std::string_view zero("a\0\r\n", 4);
  EXPECT_EQ(Format({"SET", zero, ""}), "*3\r\n$3\r\nSET\r\n$4\r\n" + std::string(zero) + "\r\n$0\r\n\r\n");
}

TEST(ProtocolTest, RepliesComeInAnyPieces) {
  const std::string bytes = "+OK\r\n:-7\r\n$-1\r\n*2\r\n$3\r\nabc\r\n*1\r\n-ERR no\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    ReplyReader reader(1000);
    std::vector<Reply> replies;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_TRUE(reader.Feed(std::string_view(bytes).substr(at, piece)));
      for (;;) {
        auto next = reader.Next();
        ASSERT_TRUE(next);
        if (!*next) break;
        replies.push_back(std::move(**next));
      }
    }
    ASSERT_EQ(replies.size(), 4u) << piece;
    EXPECT_EQ(replies[0].text, "OK");
    EXPECT_EQ(replies[1].integer, -7);
    EXPECT_EQ(replies[2].kind, Reply::Kind::kNull);
    ASSERT_EQ(replies[3].items.size(), 2u);
    EXPECT_EQ(replies[3].items[0].text, "abc");
    EXPECT_TRUE(replies[3].items[1].items[0].IsError("ERR"));
  }
}

TEST(ProtocolTest, HostileRepliesAreRefused) {
  for (const char* wrong : {"HTTP/1.1 400 Bad Request\r\n", "*999999999\r\n", "*4294967298\r\n", "*-2\r\n", "$-2\r\n", "$99999999999999999999\r\n",
                            "$x\r\n", ":\r\n", "*2\r\n:1\r\nHTTP\r\n"}) {
    ReplyReader reader(1000);
    ASSERT_TRUE(reader.Feed(wrong));
    EXPECT_FALSE(reader.Next()) << wrong;
  }
}

TEST(ProtocolTest, AReplyHasALimit) {
  ReplyReader reader(1000);
  ASSERT_TRUE(reader.Feed("$5000\r\n" + std::string(900, 'x')));
  ASSERT_TRUE(reader.Next());
  EXPECT_FALSE(reader.Feed(std::string(100, 'x')));
  ReplyReader many(1000);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(many.Feed("$100\r\n" + std::string(100, 'x') + "\r\n"));
    ASSERT_TRUE(many.Next()) << "each by itself is small enough";
  }
}

// An item takes many times the memory of its bytes, so a limit of bytes is not enough.
TEST(ProtocolTest, AReplyHasNotTooManyItems) {
  std::string bytes = "*300000\r\n";
  for (int i = 0; i < 300'000; ++i) bytes += "*3\r\n:1\r\n:1\r\n:1\r\n";
  ReplyReader reader(std::size_t{64} << 20);
  ASSERT_TRUE(reader.Feed(bytes));
  EXPECT_FALSE(reader.Next());
  ReplyReader several(std::size_t{64} << 20);  // each by itself is small enough
  std::string one = "*100000\r\n";
  for (int i = 0; i < 100'000; ++i) one += ":1\r\n";
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(several.Feed(one));
    const auto next = several.Next();
    ASSERT_TRUE(next && *next) << i;
    EXPECT_EQ((*next)->items.size(), 100'000u);
    EXPECT_TRUE(several.empty());
  }
}

TEST(ProtocolTest, DeepNestingIsRefused) {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += "*1\r\n";
  ReplyReader reader(std::size_t{64} << 20);
  ASSERT_TRUE(reader.Feed(bytes));
  EXPECT_FALSE(reader.Next());
}

}  // namespace
}  // namespace kiln::cache::redis
