// SPDX-License-Identifier: Apache-2.0
//
// Bundles that kilnd serves as they lie there (--bundle): whose results it takes, to whom it gives them, and what it says of a bad one.
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>

#include "cache/bundle/bundle.h"
#include "clients/common/seal.h"
#include "server/access/tokens.h"
#include "server/reply/tenant_key.h"
#include "server/system/system_clock.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

using ::testing::HasSubstr;

class ServedBundleTest : public DaemonTest {
 protected:
  // Tokens of a tenant beside kilnd's own user, whose tenant is "default".
  void AddTenant() {
    fs::create_directories(daemon_->State());
    ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", {{"ci", "ci", *ParseScopes("read,compile"), HashToken(secret_), {}}}));
  }
  Daemon::Result CompileAs(const std::string& tenant, uint32_t amount) {
    if (tenant == "default") return daemon_->Compile(MakeRequest(Order::kAnswer, amount));
    Daemon::Result result;
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret_);
    result.status = daemon_->stub().Compile(&context, MakeRequest(Order::kAnswer, amount), &result.reply);
    return result;
  }
  std::string Export(const std::vector<std::string>& keys = {}) {
    grpc::ClientContext context;
    v1::CacheExportRequest request;
    for (const std::string& key : keys) request.add_keys(key);
    std::string bundle;
    const auto reader = daemon_->stub().CacheExport(&context, request);
    for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle += chunk.data();
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return bundle;
  }
  cache::PublicKey KeyOfDaemon() {
    grpc::ClientContext context;
    v1::CapabilitiesReply reply;
    EXPECT_TRUE(daemon_->stub().Capabilities(&context, {}, &reply).ok());
    return *cache::PublicKey::FromBytes(reply.signing_key());
  }
  // Ends this daemon, whose key is trusted from now on.
  void Stop() {
    maker_ = KeyOfDaemon();
    WriteGuarded(folder_ / "trusted", maker_->ToText() + " the maker\n");
    ASSERT_EQ(daemon_->Stop(), 0);
  }
  // The next one has an empty store and another key.
  void Leave() {
    Stop();
    Forget();
  }
  void Forget() {
    fs::remove_all(daemon_->State());
    fs::remove(daemon_->Log());
  }
  std::string File(const std::string& bytes, const char* name = "bundle") {
    WriteGuarded(folder_ / name, bytes);
    return (folder_ / name).string();
  }
  std::vector<std::string> Options(const std::string& file) const { return {"--bundle=" + file, "--trusted-keys=" + (folder_ / "trusted").string()}; }
  v1::TierStats Tier(std::string_view name) {
    const v1::StatsReply stats = daemon_->Stats();
    for (const v1::TierStats& tier : stats.tiers()) {
      if (tier.name() == name) return tier;
    }
    ADD_FAILURE() << "there is no tier " << name;
    return {};
  }
  int Listed() {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().CacheList(&context, {});
    int entries = 0;
    for (v1::CacheEntry entry; reader->Read(&entry);) ++entries;
    EXPECT_TRUE(reader->Finish().ok());
    return entries;
  }

  const std::string secret_ = NewSecret();
  std::optional<cache::PublicKey> maker_;
};

TEST_F(ServedBundleTest, ABundleOfAnotherPtxasBringsThePtx) {
  const auto ptxas = [&](const std::string& version) {
    std::ofstream(folder_ / version) << "#!/bin/sh\necho " << version << "\n";
    fs::permissions(folder_ / version, fs::perms::owner_all);
    return "--ptxas=" + (folder_ / version).string();
  };
  daemon_->Start({ptxas("12.0")});
  const auto made = CompileAs("default", 3).reply;
  (void)CompileAs("default", 4);
  EXPECT_TRUE(daemon_->Eventually([&] { return Listed() == 4; })) << "each with its PTX beside it";
  const std::string file = File(Export({made.key()}));
  Leave();
  auto options = Options(file);
  options.push_back(ptxas("12.8"));
  daemon_->Start(options);
  EXPECT_EQ(Tier("bundle").entries(), 2u) << "the PTX goes along with what was named";
  const auto again = CompileAs("default", 3).reply;
  EXPECT_EQ(again.origin(), v1::COMPILED);
  EXPECT_EQ(again.timings(0).stage(), "ptxas") << "the compiler has nothing to do";
  EXPECT_EQ(again.artifact().SerializeAsString(), made.artifact().SerializeAsString());
  ASSERT_EQ(daemon_->Stop(), 0);
  Forget();
  options.back() = "--ptxas=none";
  daemon_->Start(options);
  const auto plain = CompileAs("default", 3).reply;
  EXPECT_EQ(plain.origin(), v1::BUNDLE);
  EXPECT_EQ(plain.artifact().cubin(), "");
}

TEST_F(ServedBundleTest, WhatABundleHasIsServedWithoutAnImport) {
  daemon_->Start();
  const auto made = CompileAs("default", 3).reply;
  const auto refused = daemon_->Compile(MakeRequest(Order::kRefuse)).status;
  const std::string file = File(Export());
  Leave();
  daemon_->Start(Options(file));
  EXPECT_EQ(daemon_->LinesWith({"event=bundle", "level=info", "file=\"" + file, "entries=2"}), 1u) << daemon_->LogText();
  const auto hit = CompileAs("default", 3).reply;
  EXPECT_EQ(hit.origin(), v1::BUNDLE);
  EXPECT_TRUE(hit.durable()) << "it survives kilnd";
  EXPECT_EQ(hit.artifact().SerializeAsString(), made.artifact().SerializeAsString());
  EXPECT_EQ(CompileAs("default", 3).reply.origin(), v1::MEMORY);
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kRefuse)).status.error_message(), refused.error_message());
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
  EXPECT_EQ(Tier("bundle").entries(), 2u);
  EXPECT_EQ(Tier("bundle").state(), "ok");
  EXPECT_EQ(Tier("sqlite").entries(), 0u);
  EXPECT_EQ(Listed(), 0) << "the store's own entries";
}

TEST_F(ServedBundleTest, ItsSealIsThatOfWhoServesIt) {
  daemon_->Start();
  CompileAs("default", 3);
  const std::string file = File(Export());
  Leave();
  daemon_->Start(Options(file));
  v1::SealedReply hit;
  hit.ParseFromString(CompileAs("default", 3).reply.SerializeAsString());
  const std::vector own = {KeyOfDaemon()};
  const auto provenance = Verify(hit, own);
  ASSERT_TRUE(provenance) << provenance.error();
  EXPECT_EQ(provenance->taken_from(), maker_->view());
}

TEST_F(ServedBundleTest, ItIsServedToTheTenantsWhoseItIs) {
  AddTenant();
  daemon_->Start();
  ASSERT_TRUE(CompileAs("ci", 3).status.ok());
  ASSERT_TRUE(CompileAs("default", 4).status.ok());
  const std::string file = File(Export());
  Leave();
  AddTenant();
  daemon_->Start(Options(file));
  EXPECT_EQ(CompileAs("default", 3).reply.origin(), v1::COMPILED);
  EXPECT_EQ(CompileAs("ci", 3).reply.origin(), v1::BUNDLE);
  EXPECT_EQ(CompileAs("ci", 4).reply.origin(), v1::COMPILED);
  EXPECT_EQ(CompileAs("default", 4).reply.origin(), v1::BUNDLE);
}

// Whole, and signed by a trusted key: for another tenant than the one whose it would be by its name.
TEST_F(ServedBundleTest, AnEntryUnderTheNameOfAnotherTenantIsRefused) {
  AddTenant();
  daemon_->Start();
  const auto key = *cache::Digest::FromBytes(CompileAs("ci", 3).reply.key());
  Stop();
  {
    const SystemClock clock;
    auto store = cache::SqliteTier::Open({.directory = daemon_->State()}, clock);
    ASSERT_TRUE(store) << store.error().message;
    const auto entry = (*store)->Peek(KeptUnder("ci", key));
    ASSERT_TRUE(entry && *entry);
    ASSERT_TRUE(cache::PutAndWait(**store, *cache::Seal(key, (*entry)->metadata(), (*entry)->blobs())));
    ASSERT_TRUE(cache::ExportBundle(**store, folder_ / "bundle"));
  }
  Forget();
  daemon_->Start(Options((folder_ / "bundle").string()));
  EXPECT_EQ(CompileAs("default", 3).reply.origin(), v1::COMPILED);
  EXPECT_GE(Tier("bundle").refused(), 1u);
  EXPECT_EQ(daemon_->LinesWith({"event=refused-entry", "tier=\"bundle\"", "another key than that of its reply"}), 1u) << daemon_->LogText();
}

TEST_F(ServedBundleTest, WhomNobodyTrustsIsNotServed) {
  daemon_->Start();
  for (uint32_t i = 0; i < 5; ++i) CompileAs("default", i);
  const std::string file = File(Export());
  Leave();
  daemon_->Start({"--bundle=" + file});
  EXPECT_EQ(daemon_->LinesWith({"event=refused-entry", "level=warning", file, maker_->ToText()}), 1u) << "at the start: " << daemon_->LogText();
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(CompileAs("default", i).reply.origin(), v1::COMPILED);
  EXPECT_GE(Tier("bundle").refused(), 5u);
  EXPECT_EQ(daemon_->LinesWith({"event=refused-entry"}), 1u) << "one line for the file";
  EXPECT_EQ(CompileAs("default", 0).reply.origin(), v1::MEMORY);
}

TEST_F(ServedBundleTest, WhatIsTrustedLaterIsServedThen) {
  daemon_->Start();
  CompileAs("default", 3);
  const std::string file = File(Export());
  Leave();
  fs::rename(folder_ / "trusted", folder_ / "trusted.later");
  WriteGuarded(folder_ / "trusted", "# nobody\n");
  daemon_->Start(Options(file));
  grpc::ClientContext context;
  v1::LookupRequest lookup;
  *lookup.mutable_request() = MakeRequest(Order::kAnswer, 3);
  v1::CompileReply reply;
  EXPECT_FALSE(daemon_->stub().Lookup(&context, lookup, &reply).ok());
  fs::rename(folder_ / "trusted.later", folder_ / "trusted");
  EXPECT_TRUE(daemon_->Eventually([&] {
    grpc::ClientContext again;
    return daemon_->stub().Lookup(&again, lookup, &reply).ok();
  }));
  EXPECT_EQ(reply.origin(), v1::BUNDLE);
}

TEST_F(ServedBundleTest, WhatWasPutHereGoesBeforeIt) {
  daemon_->Start();
  const auto made = CompileAs("default", 3).reply;
  const auto other = CompileAs("default", 4).reply;
  const std::string file = File(Export());
  Leave();
  daemon_->Start(Options(file));
  v1::PutRequest put;
  *put.mutable_request() = MakeRequest(Order::kAnswer, 3);
  *put.mutable_artifact() = other.artifact();
  grpc::ClientContext context;
  v1::PutReply reply;
  ASSERT_TRUE(daemon_->stub().Put(&context, put, &reply).ok());
  ASSERT_EQ(reply.key(), made.key());
  daemon_->Kill();
  daemon_->Start(Options(file));
  const auto hit = CompileAs("default", 3).reply;
  EXPECT_EQ(hit.origin(), v1::DISK) << "a put that was answered survives a kill";
  EXPECT_EQ(hit.artifact().SerializeAsString(), other.artifact().SerializeAsString());
}

TEST_F(ServedBundleTest, AnExportOfNamedResultsHasThose) {
  daemon_->Start();
  const auto made = CompileAs("default", 3).reply;
  const std::string bundle = Export(), file = File(bundle);
  Leave();
  daemon_->Start(Options(file));
  EXPECT_EQ(CompileAs("default", 3).reply.origin(), v1::BUNDLE);
  const std::string again = File(Export({made.key()}), "again");
  EXPECT_EQ(Tier("sqlite").entries(), 1u);
  Leave();
  daemon_->Start(Options(again));
  EXPECT_EQ(CompileAs("default", 3).reply.artifact().SerializeAsString(), made.artifact().SerializeAsString());
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
}

TEST_F(ServedBundleTest, ADamagedOneIsServedInPart) {
  daemon_->Start();
  for (uint32_t i = 0; i < 10; ++i) CompileAs("default", i);
  const std::string bundle = Export();
  Leave();
  daemon_->Start(Options(File(bundle.substr(0, bundle.size() * 2 / 3))));
  EXPECT_EQ(daemon_->LinesWith({"event=cache", "tier=\"bundle\"", "level=warning", (folder_ / "bundle").string()}), 1u) << daemon_->LogText();
  const auto there = Tier("bundle").entries();
  EXPECT_GT(there, 3u);
  EXPECT_LT(there, 10u);
  for (uint32_t i = 0; i < 10; ++i) EXPECT_TRUE(CompileAs("default", i).status.ok());
  EXPECT_EQ(daemon_->Stats().compiles(), 10 - there);
}

TEST_F(ServedBundleTest, OneThatIsCutWhileItIsServedCostsItsResultsAndNotTheService) {
  daemon_->Start();
  for (uint32_t i = 0; i < 10; ++i) CompileAs("default", i);
  const std::string file = File(Export());
  Leave();
  daemon_->Start(Options(file));
  EXPECT_EQ(CompileAs("default", 0).reply.origin(), v1::BUNDLE);
  fs::resize_file(file, 20);
  EXPECT_EQ(CompileAs("default", 0).reply.origin(), v1::MEMORY);
  for (uint32_t i = 1; i < 10; ++i) EXPECT_EQ(CompileAs("default", i).reply.origin(), v1::COMPILED);
  EXPECT_EQ(daemon_->LinesWith({"event=cache", "tier=\"bundle\"", "was changed"}), 1u) << daemon_->LogText();
  EXPECT_EQ(Tier("bundle").state(), "disabled");
  EXPECT_EQ(Tier("bundle").corrupt(), 1u);
  EXPECT_EQ(daemon_->Stop(), 0);
}

TEST_F(ServedBundleTest, OneOfAnotherBuildIsToldOf) {
  const cache::SigningKey maker = cache::SigningKey::Make();
  WriteGuarded(folder_ / "trusted", maker.public_key().ToText() + "\n");
  v1::CacheEntry label;
  label.set_tenant("default");
  const cache::Digest key = cache::Sha256("a program");
  v1::SealedReply reply;
  reply.set_key(std::string(key.view()));
  reply.set_artifact("code");
  v1::Provenance provenance;
  provenance.set_compiler("another build");
  *reply.mutable_seal() = MakeSeal(maker, provenance, reply.key(), reply.artifact());
  const std::string bytes = reply.SerializeAsString();
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{"reply", bytes}};
  {
    const SystemClock clock;
    auto store = cache::SqliteTier::Open({.directory = folder_ / "of"}, clock);
    ASSERT_TRUE(store) << store.error().message;
    ASSERT_TRUE(cache::PutAndWait(**store, *cache::Seal(key, label.SerializeAsString(), blobs)));
    ASSERT_TRUE(cache::ExportBundle(**store, folder_ / "bundle"));
  }
  daemon_->Start(Options((folder_ / "bundle").string()));
  EXPECT_EQ(daemon_->LinesWith({"event=bundle", "level=warning", "made-by=\"another build\""}), 1u) << daemon_->LogText();
}

}  // namespace
}  // namespace kiln::server::testing
