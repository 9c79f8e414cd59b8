// SPDX-License-Identifier: Apache-2.0
#include "cache/object/address.h"

#include <gtest/gtest.h>

#include "cache/testing.h"

namespace kiln::cache::object {
namespace {

TEST(AddressTest, Buckets) {
  const auto aws = ParseAddress("s3://kernels/team/one/", "", "eu-central-1");
  ASSERT_TRUE(aws) << aws.error();
  EXPECT_EQ(aws->Origin(), "https://s3.eu-central-1.amazonaws.com:443");
  EXPECT_EQ(aws->region, "eu-central-1");
  EXPECT_EQ(aws->PathOf(Digest()), "/kernels/team/one/" + std::string(64, '0'));
  const auto own = ParseAddress("s3://kernels", "http://127.0.0.1:9000", "");
  ASSERT_TRUE(own) << own.error();
  EXPECT_EQ(*own, (Address{false, {"127.0.0.1", 9000}, "/kernels", "us-east-1"}));
  EXPECT_EQ(ParseAddress("s3://kernels", "https://[fd00::2]:9000/", "x")->Origin(), "https://[fd00::2]:9000");
  EXPECT_EQ(ParseAddress("s3://kernels", "https://[fd00::2]", "x")->Origin(), "https://[fd00::2]:443");
}

TEST(AddressTest, Servers) {
  EXPECT_EQ(*ParseAddress("https://cache.example/kiln", "", ""), (Address{true, {"cache.example", 443}, "/kiln", {}}));
  EXPECT_EQ(*ParseAddress("http://cache.example:8080", "", ""), (Address{false, {"cache.example", 8080}, "", {}}));
  EXPECT_EQ(ParseAddress("http://cache.example/ac/", "", "")->PathOf(testing::KeyOf(1)), "/ac/" + testing::KeyOf(1).ToHex());
}

TEST(AddressTest, WhatIsWrongIsSaid) {
  struct Case {
    const char *store, *endpoint, *region, *said;
  };
  for (const auto& [store, endpoint, region, said] :
       {Case{"redis://a:1", "", "", "does not begin with s3://"}, Case{"s3://", "", "", "no name of a bucket"},
        Case{"s3://a b", "", "", "no name of a bucket"}, Case{"s3://a/../b", "", "", "no name of a folder"}, Case{"s3://..", "", "", "bucket"},
        Case{"s3://a//b", "", "", "no name of a folder"}, Case{"s3://a/b?c", "", "", "no name of a folder"},
        Case{"s3://a/%2e", "", "", "no name of a folder"}, Case{"s3://a", "a:1", "", "--object-endpoint"},
        Case{"s3://a", "https://a:0", "", "HOST:PORT"}, Case{"s3://a", "https://a/b", "", "no path"}, Case{"s3://a", "", "a/b", "--object-region"},
        Case{"https://user:secret@a/b", "", "", "--object-credentials"}, Case{"s3://key:secret@a", "", "", "--object-credentials"},
        Case{"s3://a", "https://key:secret@b", "", "--object-credentials"}, Case{"https://a/b", "https://c", "", "belong to an s3:// store"},
        Case{"https://a/b", "", "x", "belong to an s3:// store"}, Case{"https:///b", "", "", "HOST:PORT"},
        Case{"https://a:x/b", "", "", "HOST:PORT"}}) {
    const auto address = ParseAddress(store, endpoint, region);
    ASSERT_FALSE(address) << store << " " << endpoint;
    EXPECT_NE(address.error().find(said), std::string::npos) << address.error();
    EXPECT_EQ(address.error().find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace kiln::cache::object
