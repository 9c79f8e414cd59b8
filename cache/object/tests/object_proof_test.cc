// SPDX-License-Identifier: Apache-2.0
//
// Who we are, and who the store is: signatures, passwords, tokens, certificates.
#include <cstdlib>

#include "cache/object/tests/object_test_fixture.h"

namespace kiln::cache::object {
namespace {

using cache::testing::KeyOf;
using cache::testing::NumberedEntry;
using testing::Eventually;
using testing::TestServer;

class ObjectProofTest : public testing::ObjectTest {
 protected:
  ObjectTier::Options As(const Credentials& credentials, std::optional<std::string> region = {}) {
    ObjectTier::Options options = Options();
    options.store.address.region = std::move(region);
    options.store.credentials = [credentials] { return std::optional(credentials); };
    return options;
  }
  void UseAll() {
    EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
    EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
    EXPECT_FALSE(tier_->Get(KeyOf(2))->has_value());
    EXPECT_TRUE(*tier_->Erase(KeyOf(1)));
    EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(3, 2'000'000))) << "one that is so large is announced first";
    EXPECT_EQ(tier_->Stats().errors, 0u);
  }
};

TEST_F(ObjectProofTest, SignsForS3) {
  Serve({.id = "AKIDEXAMPLE", .secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", .region = "eu-central-1"});
  auto options = As({"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""}, "eu-central-1");
  options.store.timeout = std::chrono::seconds(5);
  Connect(std::move(options));
  UseAll();
}

// The examples of "Authenticating Requests: Using the Authorization Header" in Amazon S3's API reference: the test's server takes for right what
// Amazon does.
TEST(TestServerTest, VerifiesAsAmazonDoes) {
  const auto wrong = [](testing::Asked asked, const std::string& names, const std::string& signature) {
    asked.headers.insert({{"host", "examplebucket.s3.amazonaws.com"},
                          {"x-amz-content-sha256", Sha256(asked.body).ToHex()},
                          {"x-amz-date", "20130524T000000Z"},
                          {"authorization", "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=" +
                                                names + ",Signature=" + signature}});
    return testing::WrongWith(asked, "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1");
  };
  const testing::Asked get{"GET", "/test.txt", "", {{"range", "bytes=0-9"}}};
  const std::string names = "host;range;x-amz-content-sha256;x-amz-date";
  EXPECT_EQ(wrong(get, names, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"), "");
  EXPECT_EQ(wrong(get, names, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb42"), "SignatureDoesNotMatch");
  const testing::Asked put{"PUT",
                           "/test%24file.text",
                           "Welcome to Amazon S3.",
                           {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}};
  EXPECT_EQ(
      wrong(put, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class", "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
      "");
}

TEST_F(ObjectProofTest, SignsTheTokenOfASessionAndUsersWithColons) {
  std::atomic<bool> had_token = false;
  Serve({.id = "test:tester", .secret = "testing", .lie = [&](const auto& asked, const auto&) {
           had_token = had_token || asked.header("x-amz-security-token") == "session+token/==";
           return false;
         }});
  Connect(As({"test:tester", "testing", "session+token/=="}, "us-east-1"));
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  EXPECT_TRUE(had_token);
}

// The verification of the test's server itself: it refuses what is signed wrongly.
TEST_F(ObjectProofTest, AWrongSecretIsRefusedAndNeverTold) {
  Serve({.id = "id", .secret = "right-secret"});
  Mutex mutex;
  std::string secret = "wrong-secret";
  auto options = As({}, "us-east-1");
  options.store.credentials = [&]() -> std::expected<std::optional<Credentials>, std::string> {
    MutexLock lock(mutex);
    return Credentials{"id", secret, ""};
  };
  Open(std::move(options));
  EXPECT_TRUE(SaysEventually("403 SignatureDoesNotMatch")) << Said();
  EXPECT_TRUE(Said().contains("--object-credentials"));
  EXPECT_FALSE(Said().contains("wrong-secret"));
  EXPECT_FALSE(tier_->available());
  {
    MutexLock lock(mutex);
    secret = "right-secret";
  }
  EXPECT_TRUE(tier_->AwaitAvailable(std::chrono::seconds(10))) << "they are read again";
  EXPECT_TRUE(PutAndWait(*tier_, NumberedEntry(1)));
  tier_.reset();
}

TEST_F(ObjectProofTest, AWrongRegionOrNoSignatureIsRefused) {
  Serve({.id = "id", .secret = "secret", .region = "eu-central-1"});
  Open(As({"id", "secret", ""}, "us-east-1"));
  EXPECT_TRUE(SaysEventually("403 InvalidAccessKeyId")) << Said();
  Open(Options());
  EXPECT_TRUE(SaysEventually("403 AccessDenied")) << Said();
}

TEST_F(ObjectProofTest, CredentialsThatCannotBeReadAreTold) {
  auto options = Options();
  options.store.credentials = []() -> std::expected<std::optional<Credentials>, std::string> { return std::unexpected("no such file"); };
  Open(std::move(options));
  EXPECT_TRUE(SaysEventually("left-alone: no such file"));
  EXPECT_FALSE(tier_->available());
}

TEST_F(ObjectProofTest, PasswordsAndTokens) {
  Serve({.authorization = "Basic a2lsbjpzZXNhbWU="});  // kiln:sesame
  Connect(As({"kiln", "sesame", ""}));
  UseAll();
  Serve({.authorization = "Bearer sesame"});
  Connect(As({"", "", "sesame"}));
  UseAll();
  Open(As({"", "", "other"}));
  EXPECT_TRUE(SaysEventually("it answers 401"));
}

TEST_F(ObjectProofTest, NothingIsTakenFromTheEnvironment) {
  ::setenv("http_proxy", "http://127.0.0.1:1", 1);
  ::setenv("all_proxy", "http://127.0.0.1:1", 1);
  Connect();
  UseAll();
  ::unsetenv("http_proxy");
  ::unsetenv("all_proxy");
}

class ObjectTlsTest : public ObjectProofTest {
 protected:
  // A certificate that vouches for itself.
  std::string MakeCertificate(const std::string& name, const std::string& alternative) {
    const std::string certificate = directory_ / (name + ".crt").c_str(), key = directory_ / (name + ".key").c_str();
    const std::string command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=" + name + " -addext subjectAltName=" + alternative +
                                " -keyout " + key + " -out " + certificate + " 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return certificate;
  }
  void ServeWith(const std::string& certificate) {
    Serve({.certificate = certificate, .key = certificate.substr(0, certificate.size() - 3) + "key"});
  }
  ObjectTier::Options Trusting(const std::string& certificate) {
    ObjectTier::Options options = Options();
    options.store.address.tls = true;
    options.store.roots = *Roots::Load(certificate);
    options.store.timeout = std::chrono::seconds(2);
    return options;
  }

  const cache::testing::TemporaryDirectory directory_;
};

TEST_F(ObjectTlsTest, SpeaksTls) {
  const std::string certificate = MakeCertificate("right", "IP:127.0.0.1");
  ServeWith(certificate);
  Connect(Trusting(certificate));
  UseAll();
}

TEST_F(ObjectTlsTest, TheNameIsThatOfTheAddress) {
  const std::string certificate = MakeCertificate("right", "DNS:localhost");
  ServeWith(certificate);
  auto options = Trusting(certificate);
  options.store.address.at.host = "localhost";
  Connect(std::move(options));
  UseAll();
}

TEST_F(ObjectTlsTest, TrustsNobodyElse) {
  const std::string right = MakeCertificate("right", "IP:127.0.0.1"), other = MakeCertificate("other", "IP:127.0.0.1"),
                    elsewhere = MakeCertificate("elsewhere", "IP:127.0.0.2");
  EXPECT_FALSE(Roots::Load(directory_ / "missing"));
  for (const auto& [server_has, we_trust] : {std::pair(right, other), std::pair(elsewhere, elsewhere), std::pair(right, std::string())}) {
    tier_.reset();
    ServeWith(server_has);
    Open(Trusting(we_trust));
    EXPECT_FALSE(tier_->AwaitAvailable(std::chrono::milliseconds(700)));
    EXPECT_TRUE(SaysEventually("--object-ca")) << Said();
    EXPECT_EQ(server_->asked("GET"), 0) << "nothing was said to it";
  }
}

}  // namespace
}  // namespace kiln::cache::object
