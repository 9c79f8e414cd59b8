// SPDX-License-Identifier: Apache-2.0
#include "cache/digest.h"

#include <gtest/gtest.h>

#include <unordered_set>

namespace kiln::cache {
namespace {

TEST(Digest, AgreesWithFips180) {
  EXPECT_EQ(Sha256("").ToHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc").ToHex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256(std::string(1'000'000, 'a')).ToHex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, HasherIsIndependentOfThePieces) {
  Hasher hasher;
  EXPECT_EQ(hasher.Update("a").Update("").Update("bc").Finish(), Sha256("abc"));
  EXPECT_EQ(hasher.Finish(), Sha256("")) << "Finish starts over";
}

TEST(Digest, HexRoundTrip) {
  const Digest digest = Sha256("abc");
  EXPECT_EQ(Digest::FromHex(digest.ToHex()), digest);
  std::string upper = digest.ToHex();
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(Digest::FromHex(upper), digest);
}

TEST(Digest, RejectsWhatIsNoDigest) {
  const std::string hex = Sha256("abc").ToHex();
  EXPECT_FALSE(Digest::FromHex(""));
  EXPECT_FALSE(Digest::FromHex(hex.substr(1)));
  EXPECT_FALSE(Digest::FromHex(hex + "0"));
  std::string wrong = hex;
  wrong[10] = 'g';
  EXPECT_FALSE(Digest::FromHex(wrong));
  EXPECT_FALSE(Digest::FromBytes("short"));
}

TEST(Digest, OrderIsThatOfTheText) {
  const Digest a = Sha256("1");
  const Digest b = Sha256("2");
  EXPECT_EQ(a < b, a.ToHex() < b.ToHex());
  EXPECT_EQ((std::unordered_set<Digest>{a, b, a}).size(), 2u);
}

}  // namespace
}  // namespace kiln::cache
