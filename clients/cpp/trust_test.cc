// SPDX-License-Identifier: Apache-2.0
//
// A daemon that signs well and answers with something else than what was asked, and what a client remembers of whom it trusts.
#include "clients/cpp/trust.h"

#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/common/seal.h"
#include "clients/cpp/client.h"
#include "clients/cpp/testing.h"
#include "compiler/key.h"
#include "ir/codec/decode.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;

std::string Program(const std::string& name, const std::string& value = "1.0") {
  return "kiln 1\nfunc @" + name +
         "(%A: global f32[8]) {\n  kernel @main grid(1) threads 32 blocks(%b) { for parallel %i in 8 { store %A[%i] = " + value + " } }\n}";
}

std::string KeyOf(const std::string& program, std::string_view ptxas = {}) {
  ir::Diagnostics diagnostics;
  const compiler::Key key = compiler::ComputeKey(*ir::DecodeModule(program, diagnostics), "cuda:sm_90a", {});
  return std::string(cache::Digest{ptxas.empty() ? key : compiler::WithPtxas(key, ptxas)}.view());
}

class SwappingService final : public v1::Kiln::Service {
 public:
  std::string key = std::string(32, 'k');
  std::string target = "cuda:sm_90a";
  v1::CompileOptions options;
  std::string module = "m";
  std::string build{compiler::BuildId()};
  std::string ptxas;  // of today
  bool ends = false;  // with the first artifact it gives
  std::atomic<bool> gone = false;

  grpc::Status Compile(grpc::ServerContext*, const v1::CompileRequest*, v1::CompileReply* reply) override { return Answer(*reply); }
  grpc::Status Lookup(grpc::ServerContext*, const v1::LookupRequest*, v1::CompileReply* reply) override { return Answer(*reply); }
  grpc::Status CompileStream(grpc::ServerContext*, const v1::CompileRequest*, grpc::ServerWriter<v1::CompileProgress>* out) override {
    v1::CompileProgress progress;
    Answer(*progress.mutable_reply());
    out->Write(progress);
    return grpc::Status::OK;
  }
  grpc::Status Capabilities(grpc::ServerContext*, const v1::CapabilitiesRequest* request, v1::CapabilitiesReply* reply) override {
    if (gone) return {grpc::StatusCode::UNAVAILABLE, "gone"};
    reply->set_signing_key(std::string(signer_.public_key().view()));
    if (!request->at_once()) reply->set_ptxas(ptxas);
    return grpc::Status::OK;
  }

 private:
  grpc::Status Answer(v1::CompileReply& reply) {
    gone = ends;
    v1::Artifact artifact;
    artifact.set_target(target);
    v1::SealedReply sealed;
    sealed.set_key(key);
    sealed.set_artifact(artifact.SerializeAsString());
    v1::Provenance provenance;
    provenance.set_target(target);
    *provenance.mutable_options() = options;
    provenance.set_ir_sha256(std::string(cache::Sha256(module).view()));
    provenance.set_compiler(build);
    *sealed.mutable_seal() = MakeSeal(signer_, provenance, sealed.key(), sealed.artifact());
    reply.ParseFromString(sealed.SerializeAsString());
    return grpc::Status::OK;
  }

  const cache::SigningKey signer_ = cache::SigningKey::Make();
};

class SwappedTest : public testing::ServedTest<SwappingService> {
 protected:
  void SetUp() override {
    ::unsetenv("KILN_VERIFY");
    ::unsetenv("KILN_TRUSTED_KEYS");
    ServedTest::SetUp();
  }

  // Of each way to ask for a program; empty: taken.
  std::vector<std::string> Refusals(const CompileRequest& request) {
    std::vector<std::string> why;
    for (const auto& got : {client_.Compile(request), client_.Compile(request, [](std::string_view) {}), client_.Lookup(request)}) {
      why.push_back(got ? "" : got.error().message);
    }
    return why;
  }

  Client client_ = Connect();
};

TEST_F(SwappedTest, AnArtifactOfAnotherKeyThanTheOneAskedForIsNotLoaded) {
  EXPECT_TRUE(client_.LookupKey(service_.key));
  const auto swapped = client_.LookupKey(std::string(32, 'j'));
  ASSERT_FALSE(swapped);
  EXPECT_EQ(swapped.error().code, ErrorCode::kRefused);
  EXPECT_THAT(swapped.error().message, HasSubstr("another key than the one asked for"));
}

TEST_F(SwappedTest, TheLastAnswerOfAKilndThatEndsIsTaken) {
  service_.ends = true;
  const CompileRequest asked{.module = "m", .target = "cuda:sm_90a"};
  for (int way = 0; way < 3; ++way) {
    service_.gone = false;
    Client client = Connect();
    const auto got = way == 0 ? client.Compile(asked) : way == 1 ? client.Compile(asked, [](std::string_view) {}) : client.LookupKey(service_.key);
    EXPECT_TRUE(got) << way << ": " << got.error().message;
  }
}

TEST_F(SwappedTest, AnArtifactOfAnotherTargetIsNotLoaded) {
  for (const char* spelling : {"cuda:sm_90a", "cuda -arch=sm_90a"}) {
    EXPECT_THAT(Refusals({.module = "m", .target = spelling}), Each("")) << spelling;
  }
  EXPECT_THAT(Refusals({.module = "m", .target = "cuda:sm_80"}), Each(HasSubstr("made for cuda:sm_90a, but the request was for cuda:sm_80")));
}

TEST_F(SwappedTest, AnArtifactOfOtherOptionsIsNotLoaded) {
  service_.options.set_fast_math(true);
  EXPECT_THAT(Refusals({.module = "m", .target = "cuda:sm_90a", .options = {.fast_math = true}}), Each(""));
  EXPECT_THAT(Refusals({.module = "m", .target = "cuda:sm_90a"}), Each(HasSubstr("other options")));
}

// Programs that differ in names only have one key.
TEST_F(SwappedTest, AnArtifactOfAnotherProgramIsNotLoaded) {
  service_.module = Program("first");
  const CompileRequest asked{.module = Program("first"), .target = "cuda:sm_90a"}, renamed{.module = Program("second"), .target = "cuda:sm_90a"},
      other{.module = Program("first", "1.5"), .target = "cuda:sm_90a"};
  for (const char* ptxas : {"", "Build 1"}) {
    service_.key = KeyOf(service_.module, ptxas);
    service_.ptxas = ptxas;
    EXPECT_THAT(Refusals(asked), Each("")) << ptxas;
    EXPECT_THAT(Refusals(renamed), Each("")) << ptxas;
    EXPECT_THAT(Refusals(other), Each(HasSubstr("another program"))) << ptxas;
    EXPECT_THAT(Refusals({.module = "no program", .target = "cuda:sm_90a"}), Each(HasSubstr("another program")));
  }
  service_.build = "another build";
  EXPECT_THAT(Refusals(renamed), Each("")) << "its keys cannot be told";
}

class KnownKeysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HOME", "XDG_CONFIG_HOME", "KILN_TRUSTED_KEYS", "KILN_VERIFY"}) ::unsetenv(name);
  }

  // What a client that starts now says of what that key sealed; empty: it loads it.
  static std::string Verdict(const cache::SigningKey& key) {
    v1::SealedReply reply;
    reply.set_key(std::string(32, 'k'));
    reply.set_artifact("artifact");
    *reply.mutable_seal() = MakeSeal(key, {}, reply.key(), reply.artifact());
    const auto checked = Trust("host:1").Check(reply, {}, [&](Trust::Ask) {
      v1::CapabilitiesReply named;
      named.set_signing_key(std::string(key.public_key().view()));
      return named;
    });
    return checked ? "" : checked.error().message;
  }

  // The file, with that text in it.
  fs::path Known(const std::string& text) {
    ::setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1);
    fs::create_directory(folder_ / "kiln");
    std::ofstream(folder_ / "kiln/known_keys") << text;
    return folder_ / "kiln/known_keys";
  }

  const testing::TemporaryDirectory folder_;
  const cache::SigningKey key_ = cache::SigningKey::Make();
};

TEST_F(KnownKeysTest, TheKeyOfTheFirstContactIsKeptAndAnotherRefused) {
  ::setenv("HOME", folder_.path().c_str(), 1);
  EXPECT_EQ(Verdict(key_), "");
  EXPECT_TRUE(fs::exists(folder_ / ".config/kiln/known_keys"));
  EXPECT_EQ(Verdict(key_), "");
  EXPECT_THAT(Verdict(cache::SigningKey::Make()), HasSubstr("signs with another key than before"));
}

TEST_F(KnownKeysTest, WithoutAPlaceForTheKeyNobodyIsTrusted) {
  EXPECT_THAT(Verdict(key_), HasSubstr("set HOME or XDG_CONFIG_HOME"));
  ::setenv("HOME", "here", 1);
  EXPECT_THAT(Verdict(key_), HasSubstr("set HOME or XDG_CONFIG_HOME"));
  EXPECT_FALSE(fs::exists("here")) << "nothing is made in the working folder";
}

TEST_F(KnownKeysTest, KeysThatCannotBeReadAreNoFirstContact) {
  ::setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1);
  fs::create_directories(folder_ / "kiln/known_keys");
  const std::string verdict = Verdict(key_);
  EXPECT_THAT(verdict, HasSubstr("cannot read " + (folder_ / "kiln/known_keys").string() + ": Is a directory"));
  EXPECT_THAT(verdict, HasSubstr("KILN_TRUSTED_KEYS"));
}

TEST_F(KnownKeysTest, AKeyThatCannotBeKeptIsNotTrusted) {
  ::setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1);
  fs::create_symlink(folder_ / "nowhere", folder_ / "kiln");
  EXPECT_THAT(Verdict(key_), HasSubstr("cannot write " + (folder_ / "kiln/known_keys").string() + ": "));
}

TEST_F(KnownKeysTest, ALineThatIsNoneNamesNobodyForTheFirstTime) {
  const std::string other = "host:2 " + cache::SigningKey::Make().public_key().ToText() + '\n';
  const std::string own = "host:1 " + cache::SigningKey::Make().public_key().ToText() + '\n';
  for (const char* wrong : {"stray\n", "host:1\n", "host:1 ed25519:0 more\n"}) {
    const fs::path file = Known(other + wrong + own);
    EXPECT_THAT(Verdict(key_), HasSubstr(file.string() + ", line 2: ")) << wrong;
    EXPECT_THAT(Verdict(cache::SigningKey::Make()), HasSubstr(file.string() + ", line 2: ")) << "the key was not kept";
  }
  const fs::path behind = Known(own + "stray");
  EXPECT_THAT(Verdict(key_), HasSubstr(behind.string() + ", line 2: "));
  Known("# of the cluster\n\n  # one more\n" + other + own);
  EXPECT_THAT(Verdict(key_), HasSubstr("signs with another key than before"));
}

TEST_F(KnownKeysTest, AKeyIsKeptOnALineOfItsOwn) {
  const std::string other = "host:2 " + cache::SigningKey::Make().public_key().ToText(), own = "host:1 " + key_.public_key().ToText();
  for (const char* end : {"", "\n"}) {
    const fs::path file = Known(other + end);
    EXPECT_EQ(Verdict(key_), "");
    std::ifstream kept(file);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), other + '\n' + own + '\n');
  }
}

}  // namespace
}  // namespace kiln
