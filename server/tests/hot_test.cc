// SPDX-License-Identifier: Apache-2.0
//
// Which programs are compiled anew after an upgrade: those of another build's results that were used most.
#include <array>
#include <filesystem>

#include <gmock/gmock.h>

#include "cache/memory_tier.h"
#include "cache/sqlite/sqlite_slot.h"
#include "cache/tiered.h"
#include "server/flow/maintenance.h"
#include "server/reply/reply.h"
#include "server/reply/tenant_key.h"
#include "server/system/system_clock.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class HotTest : public DaemonTest {
 protected:
  struct Made {
    std::string program;
    std::string tenant = std::string(kDefaultTenant);
    std::string compiler = "the one before";
    bool two_layers = false;
    bool keeps_program = true;
  };

  // Puts the result and uses it so often.
  void Put(const Made& made, int uses) {
    v1::CompileRequest request;
    request.set_module(made.program);
    request.mutable_options()->set_fast_math(true);
    const cache::Digest portable = cache::Sha256(made.program + made.compiler), device = cache::Sha256(made.program + made.compiler + "ptxas");
    const auto put = [&](const cache::Digest& key, bool cubin, bool program) {
      const Sealer sealer(key_, {.host = "here", .compiler = made.compiler});
      v1::CompileReply reply;
      reply.set_key(std::string(key.view()));
      reply.mutable_artifact()->set_target("cuda:sm_80");
      const std::string sealed =
          sealer.Seal(std::move(reply), request, {.tenant = made.tenant, .name = "f", .portable = cubin ? std::optional(portable) : std::nullopt});
      const Label label{.target = "cuda:sm_80", .name = "f", .compiler = made.compiler, .portable_key = cubin ? portable.view() : ""};
      const cache::Digest kept_under = KeptUnder(made.tenant, key);
      ASSERT_TRUE(cache::PutAndWait(*disk_, *SealReply(kept_under, made.tenant, sealed, label, program ? made.program : "")));
    };
    put(portable, false, made.keeps_program);
    if (made.two_layers) put(device, true, made.keeps_program);
    const cache::Digest used = KeptUnder(made.tenant, made.two_layers ? device : portable);
    for (int i = 0; i < uses; ++i) ASSERT_TRUE(disk_->Get(used)->has_value());
  }
  std::vector<std::string> Hot(std::size_t limit, std::string_view tenant = kDefaultTenant) {
    std::vector<std::string> programs;
    const auto entries = maintenance_->Hot(limit, tenant);
    EXPECT_TRUE(entries);
    for (const v1::ManifestEntry& entry : *entries) {
      EXPECT_EQ(entry.request().target(), "cuda:sm_80");
      EXPECT_TRUE(entry.request().options().fast_math());
      programs.push_back(entry.request().module());
    }
    return programs;
  }

  void SetUp() override {
    DaemonTest::SetUp();
    disk_ = std::make_shared<cache::SqliteSlot>(cache::SqliteSlot::Options{.store = {.directory = folder_ / "store"}}, clock_);
    ASSERT_TRUE(disk_->Open());
    cache_ = std::make_unique<cache::TieredCache>(std::vector<std::shared_ptr<cache::Tier>>{disk_}, clock_, cache::TieredCache::Options{});
    maintenance_ = std::make_unique<Maintenance>(Maintenance::Options{.scratch = folder_ / "transfer", .build_id = "this one"}, *cache_, *disk_,
                                                 sealer_, clock_);
  }

  const SystemClock clock_;
  const cache::SigningKey key_ = cache::SigningKey::Make();
  const Sealer sealer_{key_, {.host = "here", .compiler = "this one"}};
  std::shared_ptr<cache::SqliteSlot> disk_;
  std::unique_ptr<cache::TieredCache> cache_;
  std::unique_ptr<Maintenance> maintenance_;  // last: its tasks use the others
};

TEST_F(HotTest, TheMostUsedOfOthersBuildsComeFirst) {
  Put({.program = "seldom"}, 1);
  Put({.program = "often", .two_layers = true}, 5);
  Put({.program = "now and then"}, 3);
  Put({.program = "of this build", .compiler = "this one"}, 9);
  Put({.program = "too large to keep", .keeps_program = false}, 9);
  Put({.program = "another's", .tenant = "other"}, 9);
  Put({.program = "often", .compiler = "one long ago"}, 2);
  EXPECT_THAT(Hot(10), ElementsAre("often", "now and then", "seldom"));
  EXPECT_THAT(Hot(2), ElementsAre("often", "now and then"));
  EXPECT_THAT(Hot(10, "other"), ElementsAre("another's"));
  EXPECT_THAT(Hot(10, "nobody"), ElementsAre());
}

// A store that only lost the PTX, or never had it, as one that took the result from another host.
TEST_F(HotTest, AResultWithoutItsPtxIsCompiledAnewAsWell) {
  Put({.program = "often", .two_layers = true}, 5);
  ASSERT_TRUE(*disk_->Erase(cache::Sha256("oftenthe one before")));
  EXPECT_THAT(Hot(10), ElementsAre("often"));
}

TEST_F(HotTest, WhatThisKilndHasNotSealedIsLeftOut) {
  v1::CacheEntry label;
  label.set_tenant("default");
  label.set_compiler("the one before");
  const cache::BlobView blobs[] = {{"reply", "no reply"}, {"module", "planted"}};
  ASSERT_TRUE(cache::PutAndWait(*disk_, *cache::Seal(cache::Sha256("planted"), label.SerializeAsString(), blobs)));
  EXPECT_THAT(Hot(10), ElementsAre());
}

TEST_F(HotTest, AHitInMemoryIsAUseOfWhatIsOnDisk) {
  const auto memory = std::make_shared<cache::MemoryTier>(cache::MemoryTier::Options{});
  cache::TieredCache both({memory, disk_}, clock_, {});
  Put({.program = "often"}, 0);
  Put({.program = "seldom"}, 2);
  const cache::Digest often = cache::Sha256("oftenthe one before");
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(both.Get(often));
  EXPECT_GT(memory->Stats().hits, 0u);
  EXPECT_THAT(Hot(10), ElementsAre("often", "seldom"));
}

// What the command does: it asks for them, and has them compiled.
TEST_F(HotTest, ADaemonTellsThemAndCompilesThemAnew) {
  const auto request = MakeRequest(Order::kAnswer, 7);
  Put({.program = request.module()}, 1);
  disk_->Close();
  fs::create_directories(daemon_->State());
  ASSERT_TRUE(key_.Keep(fs::path(daemon_->State()) / "signing-key.pem"));
  for (const auto& file : fs::directory_iterator(folder_ / "store")) fs::copy(file, fs::path(daemon_->State()) / file.path().filename());
  daemon_->Start();
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CacheHot(&context, {});
  std::vector<v1::ManifestEntry> told;
  for (v1::ManifestEntry entry; reader->Read(&entry);) told.push_back(entry);
  const grpc::Status status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told.front().request().module(), request.module());
  const auto compiled = daemon_->Compile(told.front().request());
  EXPECT_EQ(compiled.reply.origin(), v1::COMPILED) << compiled.status.error_message();
}

}  // namespace
}  // namespace kiln::server::testing
