// SPDX-License-Identifier: Apache-2.0
//
// Seals: what kilnd signs, what it refuses from its own disk, from bundles and from Put, and what `CacheVerify` finds.
#include "clients/common/seal.h"

#include <atomic>
#include <future>

#include <gmock/gmock.h>

#include "cache/sqlite/sqlite_tier.h"
#include "server/access/tokens.h"
#include "server/reply/sealer.h"
#include "server/reply/tenant_key.h"
#include "server/system/system_clock.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

v1::SealedReply SealedBy(const cache::SigningKey& key) {
  v1::Artifact artifact;
  artifact.set_code("code");
  v1::SealedReply reply;
  reply.set_key(std::string(32, 'k'));
  reply.set_artifact(artifact.SerializeAsString());
  v1::Provenance provenance;
  provenance.set_host("here");
  *reply.mutable_seal() = MakeSeal(key, provenance, reply.key(), reply.artifact());
  return reply;
}

TEST(Seal, HoldsForTheBytesTheKeyAndTheSigner) {
  const cache::SigningKey key = cache::SigningKey::Make();
  const std::vector<cache::PublicKey> trusted = {key.public_key()};
  const v1::SealedReply good = SealedBy(key);
  ASSERT_TRUE(Verify(good, trusted)) << Verify(good, trusted).error();
  EXPECT_EQ(Verify(good, trusted)->host(), "here");

  const auto refused = [&](auto change) {
    v1::SealedReply reply = good;
    change(reply);
    const auto verified = Verify(reply, trusted);
    return verified ? "accepted" : verified.error();
  };
  EXPECT_THAT(refused([](auto& r) { r.mutable_artifact()->back() ^= 1; }), HasSubstr("is not the one that was signed"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_key()->back() ^= 1; }), HasSubstr("another program"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_seal()->mutable_signature()->back() ^= 1; }), HasSubstr("signature is wrong"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_seal()->mutable_provenance()->back() ^= 1; }), HasSubstr("signature is wrong"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_seal()->mutable_public_key()->back() ^= 1; }), HasSubstr("nobody here trusts"));
  EXPECT_THAT(refused([](auto& r) { r.clear_seal(); }), HasSubstr("not signed"));
  EXPECT_THAT(refused([](auto& r) { r = SealedBy(cache::SigningKey::Make()); }), HasSubstr("nobody here trusts"));
}

TEST(Seal, TrustedKeysAreAFile) {
  const cache::PublicKey key = cache::SigningKey::Make().public_key();
  const auto keys = ParseTrustedKeys("# ours\n\n  " + key.ToText() + " the CI host\r\n" + key.ToText());
  ASSERT_TRUE(keys) << keys.error();
  EXPECT_EQ(*keys, (std::vector{key, key}));
  EXPECT_THAT(ParseTrustedKeys("\nrsa:00").error(), HasSubstr("line 2"));
}

class SealTest : public DaemonTest {
 protected:
  cache::PublicKey KeyOfDaemon() {
    grpc::ClientContext context;
    v1::CapabilitiesReply reply;
    EXPECT_TRUE(daemon_->stub().Capabilities(&context, {}, &reply).ok());
    return *cache::PublicKey::FromBytes(reply.signing_key());
  }
  // The reply as a verifier reads it.
  v1::SealedReply Compile(const v1::CompileRequest& request) {
    v1::SealedReply sealed;
    sealed.ParseFromString(daemon_->Compile(request).reply.SerializeAsString());
    return sealed;
  }
  std::string Export() {
    grpc::ClientContext context;
    std::string bundle;
    const auto reader = daemon_->stub().CacheExport(&context, {});
    for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle += chunk.data();
    EXPECT_TRUE(reader->Finish().ok());
    return bundle;
  }
  grpc::Status Import(const std::string& bundle, v1::CacheImportReply* reply) {
    grpc::ClientContext context;
    const auto writer = daemon_->stub().CacheImport(&context, reply);
    v1::CacheChunk chunk;
    chunk.set_data(bundle);
    writer->Write(chunk);
    writer->WritesDone();
    return writer->Finish();
  }
  // Somebody who can write the store, but has not the key: every entry through `change`, with digests that agree.
  void Tamper(std::function<void(v1::SealedReply&)> change) {
    const SystemClock clock;
    auto store = cache::SqliteTier::Open({.directory = daemon_->State()}, clock);
    ASSERT_TRUE(store) << store.error().message;
    const auto entries = (*store)->List({.after = std::nullopt, .limit = SIZE_MAX, .accept = {}});
    ASSERT_TRUE(entries);
    for (const cache::EntryInfo& info : *entries) {
      const auto entry = (*store)->Peek(info.key);
      ASSERT_TRUE(entry && *entry);
      v1::SealedReply reply;
      ASSERT_TRUE(reply.ParseFromString(std::string((*entry)->blob("reply"))));
      change(reply);
      const std::string bytes = reply.SerializeAsString();
      const std::array<cache::BlobView, 1> blobs = {cache::BlobView{"reply", bytes}};
      ASSERT_TRUE(cache::PutAndWait(**store, *cache::Seal(info.key, (*entry)->metadata(), blobs)));
    }
  }
  v1::CacheVerifyReply VerifyStore() {
    grpc::ClientContext context;
    v1::CacheVerifyReply reply;
    EXPECT_TRUE(daemon_->stub().CacheVerify(&context, {}, &reply).ok());
    return reply;
  }
};

TEST_F(SealTest, EveryReplyCarriesTheDaemonsSealAndItsProvenance) {
  daemon_->Start();
  const std::vector<cache::PublicKey> trusted = {KeyOfDaemon()};
  const auto request = MakeRequest(Order::kAnswer, 3);
  for (int i = 0; i < 2; ++i) {  // compiled, and a hit
    const auto provenance = Verify(Compile(request), trusted);
    ASSERT_TRUE(provenance) << provenance.error();
    EXPECT_EQ(provenance->target(), "cuda:sm_80");
    EXPECT_EQ(provenance->options().max_registers(), request.options().max_registers());
    EXPECT_EQ(provenance->ir_sha256(), cache::Sha256(request.module()).view());
    EXPECT_EQ(provenance->compiler().size(), 64u);
    EXPECT_FALSE(provenance->host().empty());
    EXPECT_TRUE(provenance->tuning_record().empty());
  }
  auto explain = request;
  explain.mutable_explain();
  EXPECT_TRUE(Verify(Compile(explain), trusted));
}

TEST_F(SealTest, TheSameRequestGivesTheSameArtifactUnderAnotherKey) {
  daemon_->Start();
  const auto first = Compile(MakeRequest(Order::kAnswer, 3));
  const auto key = KeyOfDaemon();
  ASSERT_EQ(daemon_->Stop(), 0);
  fs::remove_all(daemon_->State());
  daemon_->Start();
  const auto second = Compile(MakeRequest(Order::kAnswer, 3));
  EXPECT_NE(KeyOfDaemon(), key);
  EXPECT_EQ(second.artifact(), first.artifact());
  EXPECT_EQ(second.key(), first.key());
  EXPECT_NE(second.seal().signature(), first.seal().signature());
}

TEST_F(SealTest, ATamperedStoreIsNotServed) {
  const auto change_code = [](v1::SealedReply& reply) {
    reply.mutable_artifact()->append(
        "\x3a\x03"
        "bad",
        5);
  };
  const auto sign_as_another = [](v1::SealedReply& reply) {
    static const cache::SigningKey mallory = cache::SigningKey::Make();
    *reply.mutable_seal() = MakeSeal(mallory, {}, reply.key(), reply.artifact());
  };
  const auto take_the_seal = [](v1::SealedReply& reply) { reply.clear_seal(); };
  for (const std::function<void(v1::SealedReply&)>& change :
       std::initializer_list<std::function<void(v1::SealedReply&)>>{change_code, sign_as_another, take_the_seal}) {
    daemon_->Start();
    const auto good = Compile(MakeRequest(Order::kAnswer, 3));
    ASSERT_EQ(daemon_->Stop(), 0);
    Tamper(change);
    daemon_->Start();
    const auto again = daemon_->Compile(MakeRequest(Order::kAnswer, 3));
    ASSERT_TRUE(again.status.ok()) << again.status.error_message();
    EXPECT_EQ(again.reply.origin(), v1::COMPILED);
    EXPECT_EQ(again.reply.artifact().SerializeAsString(), good.artifact());
    EXPECT_THAT(daemon_->LogText(), HasSubstr("event=forged"));
    ASSERT_EQ(daemon_->Stop(), 0);
    fs::remove(daemon_->Log());
  }
}

TEST_F(SealTest, AnEntryUnderAnotherKeyThanItsOwnIsNotServed) {
  daemon_->Start();
  const auto victim = Compile(MakeRequest(Order::kAnswer, 3));
  const auto other = Compile(MakeRequest(Order::kAnswer, 4));
  ASSERT_EQ(daemon_->Stop(), 0);
  Tamper([&](v1::SealedReply& reply) {
    if (reply.key() == victim.key()) reply = other;  // whole, and signed by the daemon: for something else
  });
  daemon_->Start();
  EXPECT_EQ(Compile(MakeRequest(Order::kAnswer, 3)).artifact(), victim.artifact());
}

TEST_F(SealTest, AForgedRowIsNotServedToThoseWhoAskByItsKey) {
  constexpr uint32_t kRows = 40;
  daemon_->Start();
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < kRows; ++i) keys.push_back(Compile(MakeRequest(Order::kAnswer, i)).key());
  ASSERT_EQ(daemon_->Stop(), 0);
  Tamper([](v1::SealedReply& reply) {
    reply.mutable_artifact()->append(
        "\x3a\x03"
        "bad",
        5);
  });
  daemon_->Start();
  std::atomic<int> served = 0;
  std::vector<std::future<void>> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.push_back(std::async(std::launch::async, [&] {
      for (const std::string& key : keys) {
        v1::LookupRequest lookup;
        lookup.set_key(key);
        for (int i = 0; i < 5; ++i) {
          grpc::ClientContext context;
          v1::CompileReply reply;
          if (daemon_->stub().Lookup(&context, lookup, &reply).ok()) ++served;
        }
      }
    }));
  }
  for (auto& caller : callers) caller.get();
  EXPECT_EQ(served, 0);
  EXPECT_EQ(daemon_->Stats().tiers(0).entries(), 0u) << "nor copied into memory";
}

TEST_F(SealTest, ARefusalThatIsNoneIsForged) {
  daemon_->Start();
  ASSERT_FALSE(daemon_->Compile(MakeRequest(Order::kRefuse)).status.ok());
  ASSERT_EQ(daemon_->Stop(), 0);
  {
    const SystemClock clock;
    auto store = cache::SqliteTier::Open({.directory = daemon_->State()}, clock);
    ASSERT_TRUE(store) << store.error().message;
    const auto entries = (*store)->List({.after = std::nullopt, .limit = SIZE_MAX, .accept = {}});
    ASSERT_EQ(entries->size(), 1u);
    const std::array<cache::BlobView, 1> blobs = {cache::BlobView{"failure of somebody else", "nothing"}};
    ASSERT_TRUE(cache::PutAndWait(**store, *cache::Seal(entries->front().key, entries->front().metadata, blobs)));
  }
  daemon_->Start();
  EXPECT_EQ(VerifyStore().forged(), 1u);
  EXPECT_EQ(VerifyStore().forged(), 0u);
}

TEST_F(SealTest, VerifyFindsAndEvictsWhatIsForged) {
  daemon_->Start();
  for (uint32_t i = 0; i < 3; ++i) Compile(MakeRequest(Order::kAnswer, i));
  EXPECT_EQ(VerifyStore().forged(), 0u);
  ASSERT_EQ(daemon_->Stop(), 0);
  int changed = 0;
  Tamper([&](v1::SealedReply& reply) {
    if (changed++ == 0) reply.mutable_artifact()->append("x");
  });
  daemon_->Start();
  const auto report = VerifyStore();
  EXPECT_EQ(report.checked(), 3u);
  EXPECT_EQ(report.corrupt(), 0u) << "its digests agree";
  EXPECT_EQ(report.forged(), 1u);
  EXPECT_EQ(VerifyStore().forged(), 0u);
}

TEST_F(SealTest, BundlesOfOthersAreTakenFromTrustedKeysAlone) {
  daemon_->Start();
  const auto made = Compile(MakeRequest(Order::kAnswer, 3));
  const cache::PublicKey maker = KeyOfDaemon();
  const std::string bundle = Export();
  ASSERT_EQ(daemon_->Stop(), 0);
  fs::remove_all(daemon_->State());

  daemon_->Start();
  v1::CacheImportReply reply;
  const grpc::Status refused = Import(bundle, &reply);
  EXPECT_EQ(refused.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr(maker.ToText()));
  ASSERT_EQ(daemon_->Stop(), 0);

  const std::string trusted = (folder_ / "trusted").string();
  std::ofstream(trusted) << maker.ToText() << " the other host\n";
  daemon_->Start({"--trusted-keys=" + trusted});
  const grpc::Status taken = Import(bundle, &reply);
  ASSERT_TRUE(taken.ok()) << taken.error_message();
  EXPECT_EQ(reply.imported(), 1u);
  const auto hit = Compile(MakeRequest(Order::kAnswer, 3));
  EXPECT_EQ(hit.artifact(), made.artifact());
  const std::vector<cache::PublicKey> own = {KeyOfDaemon()};
  const auto provenance = Verify(hit, own);
  ASSERT_TRUE(provenance) << "its clients need no other key than its own: " << provenance.error();
  EXPECT_EQ(provenance->taken_from(), maker.view());
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
}

TEST_F(SealTest, PutFollowsTheTrustList) {
  const cache::SigningKey maker = cache::SigningKey::Make();
  const std::string trusted = (folder_ / "trusted").string();
  std::ofstream(trusted) << maker.public_key().ToText() << "\n";
  daemon_->Start({"--trusted-keys=" + trusted, "--accept-put=signed"});
  const auto good = daemon_->Compile(MakeRequest(Order::kAnswer, 3));
  v1::PutRequest put;
  *put.mutable_request() = MakeRequest(Order::kAbort, 1);  // compiling it would fail
  *put.mutable_artifact() = good.reply.artifact();
  const auto send = [&] {
    grpc::ClientContext context;
    v1::PutReply reply;
    return daemon_->stub().Put(&context, put, &reply);
  };
  EXPECT_THAT(send().error_message(), HasSubstr("only with the seal"));
  *put.mutable_seal() = MakeSeal(maker, {}, good.reply.key(), put.artifact().SerializeAsString());
  EXPECT_THAT(send().error_message(), HasSubstr("another program"));

  // The key of the request: what it is kept under once it was put without a check.
  v1::PutReply reply;
  ASSERT_EQ(daemon_->Stop(), 0);
  daemon_->Start({"--trusted-keys=" + trusted});
  put.clear_seal();
  grpc::ClientContext context;
  ASSERT_TRUE(daemon_->stub().Put(&context, put, &reply).ok());
  ASSERT_EQ(daemon_->Stop(), 0);
  fs::remove_all(daemon_->State());

  daemon_->Start({"--trusted-keys=" + trusted, "--accept-put=signed"});
  *put.mutable_seal() = MakeSeal(cache::SigningKey::Make(), {}, reply.key(), put.artifact().SerializeAsString());
  EXPECT_THAT(send().error_message(), HasSubstr("nobody here trusts"));
  *put.mutable_seal() = MakeSeal(maker, {}, reply.key(), put.artifact().SerializeAsString());
  EXPECT_TRUE(send().ok()) << send().error_message();
  EXPECT_EQ(daemon_->Compile(put.request()).reply.origin(), v1::MEMORY);
}

TEST_F(SealTest, TrustedKeysAreReadAgainWhenTheyChange) {
  daemon_->Start();
  Compile(MakeRequest(Order::kAnswer, 3));
  const cache::PublicKey maker = KeyOfDaemon();
  const std::string bundle = Export();
  ASSERT_EQ(daemon_->Stop(), 0);
  fs::remove_all(daemon_->State());

  const std::string trusted = (folder_ / "trusted").string();
  const auto trust = [&](const std::string& text) {  // at once: an empty file is one that trusts nobody
    std::ofstream(trusted + ".new") << text << "\n";
    fs::rename(trusted + ".new", trusted);
  };
  trust("# nobody");
  const fs::path audit = folder_ / "audit.log";
  daemon_->Start({"--trusted-keys=" + trusted, "--audit-log=" + audit.string()});
  const auto told = [&](const std::string& error) {
    std::ostringstream text;
    text << std::ifstream(audit).rdbuf();
    const std::string line = "event=trusted-keys-reloaded error=\"" + error;
    return text.str().find(line) != std::string::npos && daemon_->LogText().find(line) != std::string::npos;
  };
  v1::CacheImportReply reply;
  EXPECT_EQ(Import(bundle, &reply).error_code(), StatusCode::PERMISSION_DENIED);
  trust(maker.ToText());
  EXPECT_TRUE(daemon_->Eventually([&] { return Import(bundle, &reply).ok(); }));
  EXPECT_TRUE(daemon_->Eventually([&] { return told("\""); }));
  trust("rsa:00");
  EXPECT_TRUE(daemon_->Eventually([&] { return told(trusted + ", line 1"); }));
  EXPECT_TRUE(Import(bundle, &reply).ok()) << "what is wrong changes nothing";
  fs::remove(trusted);
  ::kill(daemon_->pid(), SIGHUP);
  EXPECT_TRUE(daemon_->Eventually([&] { return told("cannot read " + trusted); }));
  EXPECT_TRUE(Import(bundle, &reply).ok());
  trust("# nobody any more");
  EXPECT_TRUE(daemon_->Eventually([&] { return Import(bundle, &reply).error_code() == StatusCode::PERMISSION_DENIED; }));
}

TEST_F(SealTest, WhoMayCompileCannotPutWhatNobodySealed) {
  const std::string secret = NewSecret();
  fs::create_directories(daemon_->State());
  const Token user{"user", "default", *ParseScopes("read,compile,tune,run"), HashToken(secret), {}};
  ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", {user}));
  daemon_->Start();
  const auto good = daemon_->Compile(MakeRequest(Order::kAnswer, 3));
  v1::PutRequest put;
  *put.mutable_request() = MakeRequest(Order::kAbort, 1);  // compiling it would fail
  *put.mutable_artifact() = good.reply.artifact();
  const auto send = [&](const char* bearer) {
    grpc::ClientContext context;
    if (bearer != nullptr) context.AddMetadata("authorization", std::string("Bearer ") + bearer);
    v1::PutReply reply;
    return daemon_->stub().Put(&context, put, &reply);
  };
  EXPECT_THAT(send(secret.c_str()).error_message(), HasSubstr("only with the seal"));
  ASSERT_TRUE(send(nullptr).ok()) << "kilnd's own user is its admin";
  const std::vector<cache::PublicKey> own = {KeyOfDaemon()};
  const auto provenance = Verify(Compile(put.request()), own);
  ASSERT_TRUE(provenance) << provenance.error();
  EXPECT_EQ(provenance->put_by(), "uid " + std::to_string(::getuid())) << "its seal says that it was not made here";

  ASSERT_EQ(daemon_->Stop(), 0);
  daemon_->Start({"--accept-put=yes"});
  EXPECT_TRUE(send(secret.c_str()).ok()) << "the setting that takes anybody's";
}

// Through a link to itself the key cannot be read, as with no descriptors left or a disk that fails.
TEST_F(SealTest, AKeyThatCannotBeReadMakesNoResultAForgedOne) {
  daemon_->Start();
  const auto made = Compile(MakeRequest(Order::kAnswer, 3));
  ASSERT_EQ(daemon_->Stop(), 0);
  const fs::path key = fs::path(daemon_->State()) / "signing-key.pem";
  fs::rename(key, folder_ / "key.pem");
  fs::create_symlink(key, key);
  daemon_->Start();
  EXPECT_THAT(daemon_->LogText(), HasSubstr("event=signing-key error=\"the signing key " + key.string() + " cannot be read"));
  EXPECT_THAT(daemon_->LogText(), HasSubstr("disk=\"none\""));
  grpc::ClientContext lookup, verify;
  v1::LookupRequest wanted;
  *wanted.mutable_request() = MakeRequest(Order::kAnswer, 3);
  v1::CompileReply none;
  EXPECT_EQ(daemon_->stub().Lookup(&lookup, wanted, &none).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::CacheVerifyReply verified;
  EXPECT_EQ(daemon_->stub().CacheVerify(&verify, {}, &verified).error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_EQ(daemon_->Stop(), 0);

  fs::rename(folder_ / "key.pem", key);
  daemon_->Start();
  grpc::ClientContext again;
  v1::CompileReply kept;
  ASSERT_TRUE(daemon_->stub().Lookup(&again, wanted, &kept).ok());
  EXPECT_EQ(kept.artifact().SerializeAsString(), made.artifact());
}

TEST_F(SealTest, ASigningKeyThatOthersCanReadIsRefused) {
  daemon_->Start();
  ASSERT_EQ(daemon_->Stop(), 0);
  const fs::path key = fs::path(daemon_->State()) / "signing-key.pem";
  EXPECT_EQ(fs::status(key).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::permissions(key, fs::perms::group_read, fs::perm_options::add);
  const std::string command = KILN_BIN "/kilnd --listen=unix:" + daemon_->Socket() + " --state-dir=" + daemon_->State() +
                              " --worker-executable=" KILN_BIN "/kiln-fake-worker 2>" + daemon_->Log();
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_THAT(daemon_->LogText(), HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace kiln::server::testing
