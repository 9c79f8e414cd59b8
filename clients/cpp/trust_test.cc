// SPDX-License-Identifier: Apache-2.0
//
// A daemon that signs well and answers with something else than what was asked.
#include "clients/cpp/trust.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "clients/cpp/client.h"
#include "kiln/v1/service.grpc.pb.h"
#include "server/seal.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

class SwappingService final : public v1::Kiln::Service {
 public:
  std::string key = std::string(32, 'k');
  std::string target = "cuda:sm_90a";
  v1::CompileOptions options;

  grpc::Status Compile(grpc::ServerContext*, const v1::CompileRequest*, v1::CompileReply* reply) override { return Answer(*reply); }
  grpc::Status Lookup(grpc::ServerContext*, const v1::LookupRequest*, v1::CompileReply* reply) override { return Answer(*reply); }
  grpc::Status CompileStream(grpc::ServerContext*, const v1::CompileRequest*, grpc::ServerWriter<v1::CompileProgress>* out) override {
    v1::CompileProgress progress;
    Answer(*progress.mutable_reply());
    out->Write(progress);
    return grpc::Status::OK;
  }
  grpc::Status Capabilities(grpc::ServerContext*, const v1::CapabilitiesRequest*, v1::CapabilitiesReply* reply) override {
    reply->set_signing_key(std::string(signer_.public_key().view()));
    return grpc::Status::OK;
  }

 private:
  grpc::Status Answer(v1::CompileReply& reply) const {
    v1::Artifact artifact;
    artifact.set_target(target);
    v1::SealedReply sealed;
    sealed.set_key(key);
    sealed.set_artifact(artifact.SerializeAsString());
    v1::Provenance provenance;
    provenance.set_target(target);
    *provenance.mutable_options() = options;
    *sealed.mutable_seal() = server::MakeSeal(signer_, provenance, sealed.key(), sealed.artifact());
    reply.ParseFromString(sealed.SerializeAsString());
    return grpc::Status::OK;
  }

  const cache::SigningKey signer_ = cache::SigningKey::Make();
};

class TrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("KILN_VERIFY");
    ::unsetenv("KILN_TRUSTED_KEYS");
    std::string pattern = "/tmp/kiln-trust-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    const std::string address = "unix:" + (folder_ / "s").string();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    auto client = Client::Connect({.address = address});
    ASSERT_TRUE(client);
    client_.emplace(std::move(*client));
  }
  void TearDown() override {
    client_.reset();
    if (server_) server_->Shutdown();
    std::filesystem::remove_all(folder_);
  }

  // Of each way to ask for a program; empty: taken.
  std::vector<std::string> Refusals(const CompileRequest& request) {
    std::vector<std::string> why;
    for (const auto& got : {client_->Compile(request), client_->Compile(request, [](std::string_view) {}), client_->Lookup(request)}) {
      why.push_back(got ? "" : got.error().message);
    }
    return why;
  }

  std::filesystem::path folder_;
  SwappingService service_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<Client> client_;
};

TEST_F(TrustTest, AnArtifactOfAnotherKeyThanTheOneAskedForIsNotLoaded) {
  EXPECT_TRUE(client_->LookupKey(service_.key));
  const auto swapped = client_->LookupKey(std::string(32, 'j'));
  ASSERT_FALSE(swapped);
  EXPECT_EQ(swapped.error().code, ErrorCode::kRefused);
  EXPECT_THAT(swapped.error().message, HasSubstr("another key than the one asked for"));
}

TEST_F(TrustTest, AnArtifactOfAnotherTargetIsNotLoaded) {
  for (const char* spelling : {"cuda:sm_90a", "cuda -arch=sm_90a"}) {
    EXPECT_THAT(Refusals({.module = "m", .target = spelling}), ::testing::Each("")) << spelling;
  }
  EXPECT_THAT(Refusals({.module = "m", .target = "cuda:sm_80"}),
              ::testing::Each(HasSubstr("made for cuda:sm_90a, and asked for was cuda:sm_80")));
}

TEST_F(TrustTest, AnArtifactOfOtherOptionsIsNotLoaded) {
  service_.options.set_fast_math(true);
  EXPECT_THAT(Refusals({.module = "m", .target = "cuda:sm_90a", .options = {.fast_math = true}}), ::testing::Each(""));
  EXPECT_THAT(Refusals({.module = "m", .target = "cuda:sm_90a"}), ::testing::Each(HasSubstr("other options")));
}

}  // namespace
}  // namespace kiln
