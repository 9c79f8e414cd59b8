// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/address.h"

#include <gtest/gtest.h>

namespace kiln::cache::redis {
namespace {

TEST(AddressTest, ServersAreRead) {
  const auto one = ParseStoreAddress("redis://cache.example:7001");
  ASSERT_TRUE(one);
  EXPECT_FALSE(one->tls);
  EXPECT_EQ(one->servers, (std::vector<HostPort>{{"cache.example", 7001}}));
  const auto several = ParseStoreAddress("rediss://10.0.0.1:1,[::1]:65535");
  ASSERT_TRUE(several);
  EXPECT_TRUE(several->tls);
  EXPECT_EQ(several->servers, (std::vector<HostPort>{{"10.0.0.1", 1}, {"::1", 65535}}));
  EXPECT_EQ(several->servers[1].ToText(), "[::1]:65535");
}

TEST(AddressTest, OthersAreRefused) {
  for (const char* wrong : {"", "redis://", "http://a:1", "redis://a", "redis://a:0", "redis://a:65536", "redis://a:1,", "redis://:1",
                            "redis://a:1/0", "redis://a:x", "a:1"}) {
    EXPECT_FALSE(ParseStoreAddress(wrong)) << wrong;
  }
  const auto password = ParseStoreAddress("redis://user:secret@a:1");
  ASSERT_FALSE(password);
  EXPECT_TRUE(password.error().contains("--cluster-credentials")) << password.error();
  EXPECT_FALSE(password.error().contains("secret")) << "it goes into logs";
}

TEST(AddressTest, ServersOfRedirections) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:6381"), (HostPort{"127.0.0.1", 6381}));
  EXPECT_EQ(ParseHostPort("fd00::2:6381"), (HostPort{"fd00::2", 6381}));
  EXPECT_FALSE(ParseHostPort(":6381"));
}

// CRC-16/XMODEM's check value is 0x31c3, the cluster specification's own example.
TEST(AddressTest, Slots) {
  EXPECT_EQ(SlotOf("123456789"), 0x31c3u);
  EXPECT_EQ(SlotOf("{user1000}.following"), SlotOf("{user1000}.followers"));
  EXPECT_EQ(SlotOf("{user1000}.following"), SlotOf("user1000"));
  EXPECT_EQ(SlotOf("foo{{bar}}zap"), SlotOf("{bar"));
  EXPECT_NE(SlotOf("foo{}{bar}"), SlotOf("bar"));  // an empty tag is none
}

}  // namespace
}  // namespace kiln::cache::redis
