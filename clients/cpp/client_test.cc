// SPDX-License-Identifier: Apache-2.0
//
// The client against a server in this process, and what it remembers of whom it trusts.
#include "clients/cpp/client.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "clients/cpp/run.h"
#include "clients/cpp/trust.h"
#include "kiln/v1/service.grpc.pb.h"
#include "server/seal.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using ::testing::HasSubstr;

struct Service final : v1::Kiln::Service {
  seconds run_had{0};     // until the last run's deadline
  bool run_ends = true;
  grpc::Status export_ends;

  grpc::Status Run(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::RunReply, v1::RunRequest>* stream) override {
    run_had = std::chrono::round<seconds>(context->deadline() - std::chrono::system_clock::now());
    for (v1::RunRequest request; stream->Read(&request);) continue;
    while (!run_ends && !context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    v1::RunReply reply;
    reply.mutable_result()->set_finished(true);
    stream->Write(reply);
    return grpc::Status::OK;
  }

  grpc::Status CacheExport(grpc::ServerContext*, const v1::CacheExportRequest*, grpc::ServerWriter<v1::CacheChunk>* writer) override {
    v1::CacheChunk chunk;
    chunk.set_data("new");
    writer->Write(chunk);
    return export_ends;
  }
};

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/kiln-client-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(Address(), grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  void TearDown() override {
    server_.reset();
    fs::remove_all(folder_);
  }

  std::string Address() const { return "unix:" + (folder_ / "kiln.sock").string(); }
  Client Connect(std::chrono::milliseconds timeout) { return std::move(*Client::Connect({.address = Address(), .timeout = timeout})); }
  static std::string TextOf(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }

  fs::path folder_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ClientTest, ARunsOwnTimeoutIsNotCutShortByTheConnections) {
  Client client = Connect(seconds(5));
  ASSERT_TRUE(client.Run({.device = "emu:sm_90a", .timeout_seconds = 100}));
  EXPECT_GT(service_.run_had, seconds(150)) << "with the transfers";
  ASSERT_TRUE(client.Run({.device = "emu:sm_90a"}));
  EXPECT_LE(service_.run_had, seconds(5)) << "it has none of its own";
}

TEST_F(ClientTest, ARunThatDoesNotEndInTimeIsToldAsARun) {
  service_.run_ends = false;
  const auto ran = Connect(std::chrono::milliseconds(200)).Run({.device = "emu:sm_90a"});
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(ran.error().message, HasSubstr("--run-limit"));
}

TEST_F(ClientTest, AnExportThatFailsLeavesTheBundleThatWasThere) {
  const fs::path bundle = folder_ / "bundle";
  std::ofstream(bundle) << "old";
  Client client = Connect(seconds(30));
  service_.export_ends = grpc::Status(grpc::StatusCode::NOT_FOUND, "an entry is gone");
  const auto failed = client.CacheExport(bundle);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "an entry is gone");
  EXPECT_EQ(TextOf(bundle), "old");
  service_.export_ends = {};
  const auto bytes = client.CacheExport(bundle);
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(*bytes, 3u);
  EXPECT_EQ(TextOf(bundle), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2) << "the bundle and the socket";
}

TEST_F(ClientTest, AnExportMayGoIntoWhatIsNoFile) {
  EXPECT_TRUE(Connect(seconds(30)).CacheExport("/dev/null"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

class TrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/kiln-trust-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    for (const char* name : {"HOME", "XDG_CONFIG_HOME", "KILN_TRUSTED_KEYS", "KILN_VERIFY"}) ::unsetenv(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // What a client that starts now says of what that key sealed; empty: it loads it.
  static std::string Verdict(const cache::SigningKey& key) {
    v1::SealedReply reply;
    reply.set_key(std::string(32, 'k'));
    reply.set_artifact("artifact");
    *reply.mutable_seal() = server::MakeSeal(key, {}, reply.key(), reply.artifact());
    const auto checked = Trust("host:1").Check(reply, {}, [&] { return std::string(key.public_key().view()); });
    return checked ? "" : checked.error().message;
  }

  fs::path folder_;
  const cache::SigningKey key_ = cache::SigningKey::Make();
};

TEST_F(TrustTest, TheKeyOfTheFirstContactIsKeptAndAnotherRefused) {
  ::setenv("HOME", folder_.c_str(), 1);
  EXPECT_EQ(Verdict(key_), "");
  EXPECT_TRUE(fs::exists(folder_ / ".config/kiln/known_keys"));
  EXPECT_EQ(Verdict(key_), "");
  EXPECT_THAT(Verdict(cache::SigningKey::Make()), HasSubstr("signs with another key than it did"));
}

TEST_F(TrustTest, WithoutAPlaceForTheKeyNobodyIsTrusted) {
  EXPECT_THAT(Verdict(key_), HasSubstr("set HOME or XDG_CONFIG_HOME"));
  ::setenv("HOME", "here", 1);
  EXPECT_THAT(Verdict(key_), HasSubstr("set HOME or XDG_CONFIG_HOME"));
  EXPECT_FALSE(fs::exists("here")) << "nothing is made in the working folder";
}

TEST_F(TrustTest, KeysThatCannotBeReadAreNoFirstContact) {
  ::setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);
  fs::create_directories(folder_ / "kiln/known_keys");
  const std::string verdict = Verdict(key_);
  EXPECT_THAT(verdict, HasSubstr("cannot read " + (folder_ / "kiln/known_keys").string() + ": Is a directory"));
  EXPECT_THAT(verdict, HasSubstr("KILN_TRUSTED_KEYS"));
}

TEST_F(TrustTest, AKeyThatCannotBeKeptIsNotTrusted) {
  ::setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);
  fs::create_symlink(folder_ / "nowhere", folder_ / "kiln");
  EXPECT_THAT(Verdict(key_), HasSubstr("cannot write " + (folder_ / "kiln/known_keys").string() + ": "));
}

}  // namespace
}  // namespace kiln
