// SPDX-License-Identifier: Apache-2.0
//
// Quotas of tenants and limits of requests: each refusal says which, and what to do or when it passes.
#include "server/access/quotas.h"

#include <array>
#include <future>
#include <memory>
#include <thread>

#include <gmock/gmock.h>

#include "cache/sqlite/sqlite.h"
#include "cache/sqlite/sqlite_slot.h"
#include "server/access/tokens.h"
#include "server/flow/maintenance.h"
#include "server/flow/store_keeper.h"
#include "server/reply/sealer.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

class FakeClock final : public cache::Clock {
 public:
  cache::WallTime WallNow() const override { return now; }
  cache::SteadyTime SteadyNow() const override { return steady; }
  void Pass(std::chrono::minutes time) {
    now += time;
    steady += time;
  }
  cache::WallTime now{std::chrono::sys_days(std::chrono::year(2031) / 1 / 31) + std::chrono::minutes(14 * 60 + 59)};
  cache::SteadyTime steady{};
};

TEST(Quotas, SecondsComeBackWithTheHour) {
  FakeClock clock;
  Quotas quotas([](std::string_view tenant) { return tenant == "t" ? TenantLimits{.compile_seconds = 10, .gpu_seconds = 2} : TenantLimits{}; },
                clock);
  quotas.ChargeCompile("t", std::chrono::seconds(9));
  EXPECT_TRUE(quotas.MayCompile("t"));
  quotas.ChargeCompile("t", std::chrono::seconds(1));
  const auto refused = quotas.MayCompile("t");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "the tenant t has used up its 10 compile-seconds of this hour; there are new ones at 15:00 UTC. What is in "
            "the cache is still served");
  EXPECT_EQ(refused.error().retry_after, std::chrono::minutes(1));
  EXPECT_TRUE(quotas.MayRun("t")) << "another quota";
  quotas.ChargeGpu("t", std::chrono::seconds(2));
  EXPECT_THAT(quotas.MayRun("t").error().message, HasSubstr("2 GPU-seconds"));
  quotas.ChargeCompile("u", std::chrono::hours(10));
  EXPECT_TRUE(quotas.MayCompile("u")) << "no row, no limit";
  clock.Pass(std::chrono::minutes(1));
  EXPECT_TRUE(quotas.MayCompile("t"));
  EXPECT_TRUE(quotas.MayRun("t"));
}

TEST(Quotas, SettingTheClockGivesNothing) {
  FakeClock clock;
  Quotas quotas([](std::string_view) { return TenantLimits{.compile_seconds = 10, .gpu_seconds = 2}; }, clock);
  quotas.ChargeCompile("t", std::chrono::seconds(10));
  quotas.ChargeGpu("t", std::chrono::seconds(2));
  const auto noon = std::chrono::floor<std::chrono::days>(clock.now) + std::chrono::hours(12);
  for (const int hours : {3, -3, 24 * 365, 0}) {
    clock.now = noon + std::chrono::hours(hours) + std::chrono::minutes(30);
    EXPECT_FALSE(quotas.MayRun("t")) << hours;
    const auto refused = quotas.MayCompile("t");
    ASSERT_FALSE(refused) << hours;
    EXPECT_EQ(refused.error().retry_after, std::chrono::minutes(1));
    EXPECT_THAT(refused.error().message, HasSubstr(":31 UTC")) << "by the clock as it is set now";
  }
  clock.Pass(std::chrono::minutes(1));
  EXPECT_TRUE(quotas.MayCompile("t"));
  EXPECT_TRUE(quotas.MayRun("t"));
}

TEST(Quotas, RequestsInFlightEnd) {
  FakeClock clock;
  Quotas quotas([](std::string_view) { return TenantLimits{.requests = 2}; }, clock);
  EXPECT_TRUE(quotas.Begin("t"));
  EXPECT_TRUE(quotas.Begin("t"));
  EXPECT_THAT(quotas.Begin("t").error().message, HasSubstr("2 requests under way"));
  EXPECT_TRUE(quotas.Begin("u"));
  quotas.End("t");
  EXPECT_TRUE(quotas.Begin("t"));
}

// A store of its own with one tenant t, who may keep 20,000 bytes.
class StoreKeeperTest : public ::testing::Test {
 protected:
  StoreKeeperTest() {
    fs::create_directories(folder_);
    EXPECT_TRUE(disk_->Open());
  }
  ~StoreKeeperTest() override {
    maintenance_.reset();  // its tasks use the keeper
    fs::remove_all(folder_);
  }
  void Put(int number) {
    v1::CacheEntry label;
    label.set_tenant("t");
    const std::string bytes(1000, static_cast<char>(number));
    const std::array<cache::BlobView, 1> blobs = {cache::BlobView{"reply of t", bytes}};
    const auto entry = cache::Seal(cache::Sha256(std::to_string(number)), label.SerializeAsString(), blobs);
    cache_.Put(*entry);
    keeper_.Note("t", entry->sealed().size());
  }
  std::uint64_t OnDisk() {
    std::uint64_t bytes = 0;
    EXPECT_TRUE(disk_->store()->Flush());
    const auto listed = disk_->store()->List({});
    for (const cache::EntryInfo& info : *listed) bytes += info.sealed_size;
    return bytes;
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("kiln-keeper-" + std::to_string(::getpid()));
  FakeClock clock_;
  std::shared_ptr<cache::SqliteSlot> disk_ =
      std::make_shared<cache::SqliteSlot>(cache::SqliteSlot::Options{.store = {.directory = folder_ / "store"}}, clock_);
  cache::TieredCache cache_{{disk_}, clock_, {}};
  const Sealer sealer_{cache::SigningKey::Make(), {}};
  std::unique_ptr<Maintenance> maintenance_ =
      std::make_unique<Maintenance>(Maintenance::Options{.scratch = folder_ / "transfer"}, cache_, *disk_, sealer_, clock_);
  Quotas quotas_{[](std::string_view) { return TenantLimits{.store_bytes = 20'000}; }, clock_};
  StoreKeeper keeper_{quotas_, *maintenance_};
};

TEST_F(StoreKeeperTest, ALongVerificationHoldsUpNoTrimming) {
  std::promise<void> ends;
  ASSERT_TRUE(maintenance_->Post([&ends] { ends.get_future().wait(); }));  // as a verification of a large store
  for (int i = 0; i < 60; ++i) Put(i);
  std::uint64_t bytes = 0;
  for (int i = 0; i < 1000 && (bytes = OnDisk()) > 20'000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // between looks
  EXPECT_LE(bytes, 20'000u);
  EXPECT_GT(bytes, 10'000u) << "no more than is needed";
  ends.set_value();
}

TEST_F(StoreKeeperTest, WhatIsNamedIsExportedWholeOrNotAtAll) {
  Put(1);
  Put(2);
  ASSERT_TRUE(disk_->store()->Flush());
  v1::CacheExportRequest named;
  for (const char* key : {"1", "2"}) named.add_keys(std::string(cache::Sha256(key).view()));
  EXPECT_TRUE(maintenance_->Export(named, "t"));
  {
    auto database = cache::sqlite::Connection::Open(folder_ / "store" / "kiln.db", cache::sqlite::OpenMode::kWrite);
    ASSERT_TRUE(database);
    ASSERT_TRUE(database->Execute("UPDATE entry SET head = zeroblob(100) WHERE rowid = (SELECT min(rowid) FROM entry)"));
  }
  const auto cut = maintenance_->Export(named, "t");
  ASSERT_FALSE(cut);
  EXPECT_THAT(cut.error().message, HasSubstr("1 of the results that were named turned out damaged"));
  EXPECT_TRUE(maintenance_->Export({}, "t")) << "of all there is, what is whole";
}

// Also what was put while the store was looked through for the tenant.
TEST_F(StoreKeeperTest, WhatWasNotedIsTrimmedAtTheEnd) {
  for (int i = 0; i < 200; ++i) {
    Put(i);
    if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // paces the puts, so that trimming comes between them
  }
  maintenance_.reset();  // ends what is under way
  EXPECT_LE(OnDisk(), 20'000u);
}

// It writes the audit log, and others' requests must not wait for the disk.
TEST(Quotas, NobodyWaitsForWhoIsToldOfARefusal) {
  FakeClock clock;
  std::unique_ptr<Quotas> quotas;
  bool went_on = false;
  const auto told = [&](std::string_view, std::string_view) {
    auto other = std::async(std::launch::async, [&] { quotas->End("t"); });
    went_on = other.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
    if (!went_on) std::abort();  // it waits for this thread
  };
  quotas = std::make_unique<Quotas>([](std::string_view) { return TenantLimits{.compile_seconds = 1, .requests = 1}; }, clock, told);
  EXPECT_TRUE(quotas->Begin("t"));
  EXPECT_FALSE(quotas->Begin("t"));
  EXPECT_TRUE(went_on);
  EXPECT_TRUE(quotas->Begin("t"));
  quotas->ChargeCompile("t", std::chrono::seconds(2));
  went_on = false;
  EXPECT_FALSE(quotas->MayCompile("t"));
  EXPECT_TRUE(went_on);
}

class QuotaTest : public DaemonTest {
 protected:
  static constexpr uint32_t kWide = 200;  // of Order::kAnswer: 20 kB and more

  void StartWith(const std::string& limits, std::vector<std::string> options = {}) {
    const std::string access = (folder_ / "access.toml").string();
    WriteGuarded(access, "[[tenant]]\nname = \"default\"\n" + limits + "\n");
    options.push_back("--access=" + access);
    daemon_->Start(options);
  }
  std::size_t OnDisk() {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().CacheList(&context, {});
    std::size_t bytes = 0;
    for (v1::CacheEntry entry; reader->Read(&entry);) bytes += entry.bytes();
    EXPECT_TRUE(reader->Finish().ok());
    return bytes;
  }
};

TEST_F(QuotaTest, CompileSecondsAreUsedUpAndHitsAreStillServed) {
  Daemon::Result refused, hit;
  WithinOneHour([&] {
    StartWith("compile-seconds = 0.2");
    ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kSleep, 25)).status.ok());
    refused = daemon_->Compile(MakeRequest(Order::kAnswer, 1));
    hit = daemon_->Compile(MakeRequest(Order::kSleep, 25));
  });
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("0.2 compile-seconds of this hour; there are new ones at"));
  EXPECT_TRUE(refused.has_retry_info());
  EXPECT_TRUE(hit.status.ok()) << hit.status.error_message();
}

// They were let in while there was something left.
TEST_F(QuotaTest, WhatWaitsIsNotCompiledOnceTheSecondsAreUsedUp) {
  std::vector<Daemon::Result> results;
  WithinOneHour([&] {
    StartWith("compile-seconds = 0.001", {"--workers=1"});
    std::vector<std::future<Daemon::Result>> calls;
    const auto start = [&](Order order, uint32_t amount) {
      calls.push_back(std::async(std::launch::async, [this, order, amount] { return daemon_->Compile(MakeRequest(order, amount)); }));
    };
    start(Order::kSleep, kLong);
    ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
    for (uint32_t i = 0; i < 5; ++i) start(Order::kAnswer, i);
    ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 5; }));
    results = {daemon_->Woken(calls[0])};
    for (std::size_t i = 1; i < calls.size(); ++i) results.push_back(calls[i].get());
  });
  ASSERT_EQ(results.size(), 6u);
  EXPECT_TRUE(results[0].status.ok());
  for (std::size_t i = 1; i < results.size(); ++i) {
    const Daemon::Result& refused = results[i];
    EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << i;
    EXPECT_THAT(refused.status.error_message(), HasSubstr("0.001 compile-seconds of this hour"));
    EXPECT_TRUE(refused.has_retry_info());
  }
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(QuotaTest, RequestsInFlight) {
  StartWith("requests = 2", {"--workers=1"});
  std::vector<std::future<Daemon::Result>> running;
  for (uint32_t i = 0; i < 2; ++i) {
    running.push_back(std::async(std::launch::async, [&, i] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong + i)); }));
  }
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() + daemon_->Stats().queued() == 2; }));
  const auto refused = daemon_->Compile(MakeRequest(Order::kAnswer, 1));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("2 requests under way, which is its quota"));
  EXPECT_TRUE(refused.has_retry_info());
  for (auto& one : running) EXPECT_TRUE(daemon_->Woken(one).status.ok());
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.ok());
}

// Its last request is over when it has the answer.
TEST_F(QuotaTest, WhoCallsOneAfterTheOtherHasOneRequestUnderWay) {
  StartWith("requests = 1");
  for (uint32_t i = 0; i < 1000; ++i) {
    v1::LookupRequest by_request;
    *by_request.mutable_request() = MakeRequest(Order::kAnswer, i);
    v1::LookupRequest by_key;
    by_key.set_key(std::string(28, 'k') + std::to_string(1000 + i));
    for (const v1::LookupRequest& lookup : {by_request, by_key}) {
      grpc::ClientContext context;
      v1::CompileReply reply;
      const grpc::Status status = daemon_->stub().Lookup(&context, lookup, &reply);
      ASSERT_EQ(status.error_code(), StatusCode::NOT_FOUND) << i << ": " << status.error_message();
    }
  }
  for (int i = 0; i < 50; ++i) {
    OnDisk();
    EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.ok());
  }
}

TEST_F(QuotaTest, LookupsPutsAndBundlesAreRequestsToo) {
  StartWith("requests = 1", {"--workers=1"});
  auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  const auto refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("1 requests under way, which is its quota"));
  };
  v1::LookupRequest lookup;
  lookup.set_key(std::string(32, 'k'));
  v1::CompileReply found;
  refused(daemon_->stub().Lookup(std::make_unique<grpc::ClientContext>().get(), lookup, &found));
  v1::PutReply put;
  refused(daemon_->stub().Put(std::make_unique<grpc::ClientContext>().get(), {}, &put));
  grpc::ClientContext list, to, from;
  for (grpc::ClientContext* context : {&list, &to, &from}) context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  refused(daemon_->stub().CacheList(&list, {})->Finish());
  refused(daemon_->stub().CacheExport(&to, {})->Finish());
  v1::CacheImportReply imported;
  refused(daemon_->stub().CacheImport(&from, &imported)->Finish());
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
}

TEST_F(QuotaTest, AManifestIsOneRequest) {
  StartWith("requests = 1", {"--workers=1"});
  v1::EnsureRequest manifest;
  for (uint32_t i = 0; i < 50; ++i) *manifest.add_requests() = MakeRequest(Order::kAnswer, i);
  for (int again = 0; again < 2; ++again) {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
    v1::EnsureProgress progress;
    while (reader->Read(&progress)) continue;
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(progress.known() + progress.compiled(), 50u);
  }
  EXPECT_EQ(daemon_->LogText().find("audit=\"quota\""), std::string::npos) << "nothing was refused";

  manifest.clear_requests();
  *manifest.add_requests() = MakeRequest(Order::kSleep, kLong);
  auto running = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
    for (v1::EnsureProgress progress; reader->Read(&progress);) continue;
    return reader->Finish();
  });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(daemon_->LogText().find("audit=\"quota\""), std::string::npos);
  EXPECT_TRUE(daemon_->Woken(running).ok());
}

// They are bytes in the store too.
TEST_F(QuotaTest, WhatWasRefusedIsRememberedWithinTheStoreOfTheTenant) {
  StartWith("store-bytes = 20000");
  for (uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kRefuse, i)).status.error_code(), StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kRefuse, 900)).status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(daemon_->Stats().compiles(), 41u);
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kRefuse, 900)).status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(daemon_->Stats().compiles(), 42u) << "more than the tenant may keep";
  EXPECT_EQ(daemon_->Stop(), 0);  // all is written
  daemon_->Start();
  EXPECT_LE(OnDisk(), 20'000u);
  EXPECT_GT(OnDisk(), 10'000u) << "no more than is needed";
}

TEST_F(QuotaTest, WhatIsImportedIsOfTheStoreOfItsTenant) {
  daemon_->Start();
  for (uint32_t i = 0; i < 30; ++i) ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, kWide + i)).status.ok());
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kHuge, 1)).status.ok());
  std::vector<v1::CacheChunk> bundle;
  grpc::ClientContext to;
  const auto reader = daemon_->stub().CacheExport(&to, {});
  for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle.push_back(chunk);
  ASSERT_TRUE(reader->Finish().ok());
  ASSERT_EQ(daemon_->Stop(), 0);
  const std::string key = (folder_ / "key.pem").string();  // the same host, with an empty store
  fs::rename(fs::path(daemon_->State()) / "signing-key.pem", key);
  fs::remove_all(daemon_->State());

  StartWith("store-bytes = 200000", {"--signing-key=" + key});
  grpc::ClientContext from;
  v1::CacheImportReply reply;
  const auto writer = daemon_->stub().CacheImport(&from, &reply);
  for (const v1::CacheChunk& chunk : bundle) EXPECT_TRUE(writer->Write(chunk));
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.imported(), 30u);
  EXPECT_EQ(reply.rejected(), 1u) << "larger than all that the tenant may keep";
  EXPECT_TRUE(daemon_->Eventually([&] { return OnDisk() <= 200'000; })) << OnDisk();
  EXPECT_GT(OnDisk(), 100'000u) << "no more than is needed";
}

TEST_F(QuotaTest, TheStoreOfATenantMakesRoomForItsNewest) {
  StartWith("store-bytes = 200000");
  for (uint32_t i = 0; i < 30; ++i) {
    ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, kWide + i)).status.ok());
    EXPECT_TRUE(daemon_->Eventually([&] { return OnDisk() <= 200'000; })) << OnDisk();
  }
  EXPECT_GT(OnDisk(), 100'000u) << "no more than is needed";
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 229)).reply.origin(), v1::MEMORY) << "the newest is there";
  const auto refused = daemon_->Compile(MakeRequest(Order::kHuge, 1));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("may keep 200000 in the store"));
}

TEST_F(QuotaTest, GpuSecondsAndCompileSecondsOfOthersAreTheirOwn) {
  StartWith("compile-seconds = 0");
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const std::string secret = NewSecret();
  ASSERT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", {{"other", "other", 3, HashToken(secret), {}}}));
  EXPECT_TRUE(daemon_->Eventually([&] {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    v1::CompileReply reply;
    return daemon_->stub().Compile(&context, MakeRequest(Order::kAnswer, 1), &reply).ok();
  }));
}

TEST_F(DaemonTest, EachLimitOfARequestHasASettingAndAnErrorThatNamesIt) {
  auto request = MakeRequest(Order::kAnswer, 3);
  struct Row {
    const char* option;
    const char* says;
  };
  daemon_->Start({"--max-message=" + std::to_string(request.ByteSizeLong() - 1)});
  const auto too_large = daemon_->Compile(request);
  EXPECT_EQ(too_large.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(too_large.status.error_message(), HasSubstr("--max-message"));
  daemon_->Stop();
  for (const Row& row :
       {Row{"--max-request=20", "--max-request"}, Row{"--max-module=20", "--max-module"}, Row{"--max-artifact=100", "--max-artifact"}}) {
    daemon_->Start({row.option});
    const auto refused = daemon_->Compile(request);
    EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT) << row.option;
    EXPECT_THAT(refused.status.error_message(), HasSubstr(row.says));
    daemon_->Stop();
  }
  // The rest count what is in the module.
  v1::Module module;
  ASSERT_TRUE(module.ParseFromString(request.module()));
  *module.add_kernels() = module.kernels(0);
  for (auto& kernel : *module.mutable_kernels()) {
    kernel.clear_block_vars();
    v1::Var& block = *module.add_vars();
    block.set_kind(v1::BLOCK);
    block.set_dtype(v1::I32);
    kernel.add_block_vars(static_cast<uint32_t>(module.vars_size() - 1));
    v1::Block* body = kernel.mutable_body();
    for (int i = 0; i < 2; ++i) {
      v1::If& statement = *body->add_stmts()->mutable_if_then();
      statement.set_cond(0);
      statement.mutable_then_body()->add_stmts()->mutable_if_then()->mutable_then_body();
    }
  }
  request.set_module(module.SerializeAsString());
  ASSERT_GE(module.exprs_size(), 1);
  module.add_exprs()->CopyFrom(module.exprs(0));
  for (int i = 0; i < 2; ++i) {
    v1::Buffer& buffer = *module.add_buffers();
    buffer.set_space(v1::SHARED);
    buffer.set_dtype(v1::F16);
  }
  request.set_module(module.SerializeAsString());
  for (const char* option : {"--max-kernels=1", "--max-statements=3", "--max-nesting=1", "--max-expressions=1", "--max-buffers=1"}) {
    daemon_->Start({option});
    const auto refused = daemon_->Compile(request);
    EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT) << option;
    EXPECT_THAT(refused.status.error_message(), HasSubstr(std::string(option).substr(0, std::string(option).find('=')))) << option;
    daemon_->Stop();
  }
}

}  // namespace
}  // namespace kiln::server::testing
