// SPDX-License-Identifier: Apache-2.0
#include "cache/signature.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

class SigningKeyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / "kiln-key-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = fs::path(folder_) / "signing-key.pem";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_;
  fs::path path_;
};

// RFC 8032, 7.1, test 2.
TEST(Signature, AgreesWithTheRfc) {
  const auto key = PublicKey::FromText("ed25519:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
  ASSERT_TRUE(key);
  const std::string signature =
      "\x92\xa0\x09\xa9\xf0\xd4\xca\xb8\x72\x0e\x82\x0b\x5f\x64\x25\x40\xa2\xb2\x7b\x54\x16\x50\x3f\x8f\xb3\x76\x22\x23"
      "\xeb\xdb\x69\xda\x08\x5a\xc1\xe4\x3e\x15\x99\x6e\x45\x8f\x36\x13\xd0\xf1\x1d\x8c\x38\x7b\x2e\xae\xb4\x30\x2a\xee"
      "\xb0\x0d\x29\x16\x12\xbb\x0c" +
      std::string(1, '\0');
  EXPECT_TRUE(IsSigned(*key, "r", signature));
  EXPECT_FALSE(IsSigned(*key, "s", signature));
  EXPECT_FALSE(IsSigned(*key, "r", signature.substr(1)));
}

TEST(Signature, EveryBitCounts) {
  const SigningKey key = SigningKey::Make();
  const std::string message = "an artifact";
  const std::string signature = key.Sign(message);
  EXPECT_EQ(signature, key.Sign(message)) << "same key and message, same bytes";
  EXPECT_TRUE(IsSigned(key.public_key(), message, signature));
  EXPECT_FALSE(IsSigned(SigningKey::Make().public_key(), message, signature));
  for (std::size_t bit = 0; bit < signature.size() * 8; ++bit) {
    std::string flipped = signature;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(IsSigned(key.public_key(), message, flipped)) << bit;
  }
}

TEST_F(SigningKeyTest, AFifoIsNoKeyAndIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(SigningKey::LoadOrMake(path_).error().message, ::testing::HasSubstr("no ordinary file"));
}

TEST_F(SigningKeyTest, AKeyOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_TRUE(SigningKey::LoadOrMake(path_));
  ASSERT_EQ(::chown(path_.c_str(), 4242, 4242), 0);
  EXPECT_THAT(SigningKey::LoadOrMake(path_).error().message, ::testing::HasSubstr("belongs to user 4242"));
}

TEST(PublicKey, HasAText) {
  const PublicKey key = SigningKey::Make().public_key();
  EXPECT_EQ(PublicKey::FromText(key.ToText()), key);
  EXPECT_FALSE(PublicKey::FromText("rsa:00"));
  EXPECT_FALSE(PublicKey::FromText("ed25519:00"));
  EXPECT_FALSE(PublicKey::FromBytes("short"));
}

TEST_F(SigningKeyTest, IsMadeOnceForItsOwnerAlone) {
  const auto first = SigningKey::LoadOrMake(path_);
  ASSERT_TRUE(first) << first.error().message;
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(SigningKey::LoadOrMake(path_)->public_key(), first->public_key());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "nothing else is left behind";

  ::chmod(path_.c_str(), 0640);
  EXPECT_THAT(SigningKey::LoadOrMake(path_).error().message, ::testing::HasSubstr("chmod 600"));
  ::chmod(path_.c_str(), 0600);
  std::ofstream(path_) << "nonsense";
  EXPECT_THAT(SigningKey::LoadOrMake(path_).error().message, ::testing::HasSubstr("no Ed25519"));
  EXPECT_THAT(SigningKey::LoadOrMake("/proc/nowhere/key").error().message, ::testing::HasSubstr("cannot be"));
}

// By a process of the same number, as the first one of a container has.
TEST_F(SigningKeyTest, IsMadeBesideWhatAKilledOneLeft) {
  std::ofstream(path_.string() + "." + std::to_string(::getpid())) << "half of a k";
  const auto key = SigningKey::LoadOrMake(path_);
  EXPECT_TRUE(key) << key.error().message;
}

}  // namespace
}  // namespace kiln::cache
