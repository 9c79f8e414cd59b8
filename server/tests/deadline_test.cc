// SPDX-License-Identifier: Apache-2.0
//
// A client's deadline ends while its call is at each of the places that calls come through. The client is told, the daemon does nothing more
// for it and gives back what it held, others who wait for the same go on waiting, and the next call for the same is answered.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <map>
#include <utility>

#include "server/testing/expiring_call.h"
#include "server/testing/held_fixture.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

class DeadlineTest : public HeldTest {
 protected:
  // Where the tenant may have so many requests under way, one that is forgotten there is refused to the next.
  std::string Requests(int most) {
    const std::string access = (folder_ / "access.toml").string();
    WriteGuarded(access, "[[tenant]]\nname = \"*\"\nrequests = " + std::to_string(most) + "\n");
    return "--access=" + access;
  }

  void ExpectCompileExpires(const v1::CompileRequest& request, const std::function<bool(const v1::StatsReply&)>& there) {
    ExpectExpires(
        *daemon_, "Compile",
        [&](grpc::ClientContext& context) {
          v1::CompileReply reply;
          return daemon_->stub().Compile(&context, request, &reply);
        },
        there);
  }
  std::future<Daemon::Result> Started(const v1::CompileRequest& request) {
    return std::async(std::launch::async, [this, request] { return daemon_->Compile(request); });
  }
  static void ExpectMade(const Daemon::Result& result, v1::Origin origin) {
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.reply.origin(), origin);
  }

  bool Busy(unsigned workers) { return daemon_->Stats().workers_busy() == workers; }
  bool BecomesBusy(unsigned workers) {
    return daemon_->Eventually([&] { return Busy(workers); });
  }
  void ExpectIdle() {
    v1::StatsReply stats;
    EXPECT_TRUE(daemon_->Eventually([&] {
      stats = daemon_->Stats();
      return stats.workers_busy() == 0 && stats.queued() == 0 && stats.flights() == 0;
    })) << stats.ShortDebugString();
  }

  static bool HasCome(const v1::StatsReply& before, const v1::StatsReply& now) { return now.requests() > before.requests(); }
};

TEST_F(DeadlineTest, WhileItIsDecodedOrWaitsForThat) {
  StartHeld({Requests(1)});
  const auto request = [](uint32_t which) { return Padded(MakeRequest(Order::kAnswer, which), 7'500'000); };
  for (uint32_t i = 0; i < kExecutorThreads + 3; ++i) {
    ExpectCompileExpires(request(i), [&](const auto& before) { return HasCome(before, daemon_->Stats()); });
    if (HasFatalFailure()) return;
  }
  GoOn();
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Compile(request(0)).status.ok(); })) << "the memory of the others is not free";
  ExpectIdle();
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
  EXPECT_EQ(daemon_->Stats().worker_restarts_size(), 0) << "a compile was begun for nobody";
}

TEST_F(DeadlineTest, WhileItWaitsForAWorker) {
  daemon_->Start({"--workers=1", Requests(2)});
  auto running = Started(MakeRequest(Order::kSleep, kLong));
  ASSERT_TRUE(BecomesBusy(1));
  const auto request = MakeRequest(Order::kAnswer, 1);
  for (int i = 0; i < 2; ++i) {
    ExpectCompileExpires(request, [&](const auto&) { return daemon_->Stats().queued() == 1; });
    EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 0; }));
  }
  EXPECT_TRUE(Busy(1));
  ExpectMade(daemon_->Woken(running), v1::COMPILED);
  ExpectMade(daemon_->Compile(request), v1::COMPILED);
  ExpectIdle();
}

TEST_F(DeadlineTest, WhileItWaitsForAnothersCompile) {
  daemon_->Start({Requests(2)});
  const auto request = MakeRequest(Order::kSleep, kLong);
  auto leader = Started(request);
  ASSERT_TRUE(BecomesBusy(1));
  for (int i = 0; i < 2; ++i) {
    ExpectCompileExpires(request, [&](const auto& before) { return daemon_->Stats().joined() > before.joined(); });
  }
  ExpectMade(daemon_->Woken(leader), v1::COMPILED);
  ExpectMade(daemon_->Compile(request), v1::MEMORY);
  ExpectIdle();
  EXPECT_EQ(daemon_->Stats().worker_restarts_size(), 0) << "the leader's compile went on";
}

TEST_F(DeadlineTest, WhileOthersWaitForItsCompile) {
  daemon_->Start({Requests(2)});
  const auto request = MakeRequest(Order::kSleep, kLong);
  std::unique_ptr<grpc::ClientContext> following;
  std::future<grpc::Status> follower;
  const auto compile = [&](grpc::ClientContext& context) {
    v1::CompileReply reply;
    return daemon_->stub().Compile(&context, request, &reply);
  };
  const auto has_follower = [&](const v1::StatsReply& before) {
    if (!follower.valid() && Busy(1)) {
      following = std::make_unique<grpc::ClientContext>();
      follower = std::async(std::launch::async, [&] { return compile(*following); });
    }
    return daemon_->Stats().joined() > before.joined();
  };
  const auto is_free = [&] {
    if (follower.valid()) {  // it came too late
      following->TryCancel();
      follower.get();
    }
    const v1::StatsReply stats = daemon_->Stats();
    return stats.workers_busy() == 0 && stats.flights() == 0;
  };
  ExpectExpires(*daemon_, "Compile", compile, has_follower, false, is_free);
  ASSERT_TRUE(follower.valid());
  EXPECT_TRUE(Busy(1));
  const grpc::Status made = daemon_->Woken(follower);
  EXPECT_TRUE(made.ok()) << made.error_message();
  ExpectMade(daemon_->Compile(request), v1::MEMORY);
  ExpectIdle();
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DeadlineTest, InTheWorker) {
  daemon_->Start({Requests(1)});
  const auto request = MakeRequest(Order::kSleep, kLong);
  ExpectCompileExpires(request, [&](const auto&) { return Busy(1); });
  ExpectIdle();
  ExpectExpires(
      *daemon_, "CompileStream",
      [&](grpc::ClientContext& context) {
        const auto reader = daemon_->stub().CompileStream(&context, request);
        for (v1::CompileProgress progress; reader->Read(&progress);) {
        }
        return reader->Finish();
      },
      [&](const auto&) { return Busy(1); });
  ExpectIdle();
  auto again = Started(request);
  ASSERT_TRUE(BecomesBusy(1));
  ExpectMade(daemon_->Woken(again), v1::COMPILED);
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(DeadlineTest, WhileTheReplyIsSent) {
  daemon_->Start({Requests(1)});
  const auto request = MakeRequest(Order::kHuge, 60);
  ExpectExpires(
      *daemon_, "CompileStream",
      [&](grpc::ClientContext& context) {
        const auto reader = daemon_->stub().CompileStream(&context, request);
        return reader->Finish();
      },
      [&](const auto&) { return daemon_->Stats().compiles() > 0; });
  EXPECT_TRUE(daemon_->Compile(request).status.ok());
  ExpectIdle();
}

class ManifestDeadlineTest : public DeadlineTest {
 protected:
  // So large that of the memory for manifests there is not enough for two of a tenant.
  static constexpr const char* kMemoryForOne = "--manifest-memory=1MiB";
  static v1::EnsureRequest Manifest(Order order, uint32_t requests = 4) {
    v1::EnsureRequest manifest;
    for (uint32_t i = 0; i < requests; ++i) *manifest.add_requests() = Padded(MakeRequest(order, i), 150'000);
    return manifest;
  }

  void ExpectManifestExpires(const v1::EnsureRequest& manifest, const std::function<bool(const v1::StatsReply&)>& there, bool reads = true) {
    ExpectExpires(
        *daemon_, "EnsureKernels",
        [&](grpc::ClientContext& context) {
          const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
          for (v1::EnsureProgress progress; reads && reader->Read(&progress);) {
          }
          return reader->Finish();
        },
        there);
  }
  void ExpectEnsured(const v1::EnsureRequest& manifest) {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
    for (v1::EnsureProgress progress; reader->Read(&progress);) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    ExpectIdle();
  }
};

TEST_F(ManifestDeadlineTest, WhileItLooksWhatIsKnown) {
  StartHeld({kMemoryForOne, Requests(4)});
  ExpectManifestExpires(Manifest(Order::kAnswer), [&](const auto& before) { return HasCome(before, daemon_->Stats()); });
  GoOn();
  ExpectEnsured(Manifest(Order::kAnswer));
  EXPECT_EQ(daemon_->Stats().compiles(), 4u);
}

TEST_F(ManifestDeadlineTest, WhileItCompiles) {
  daemon_->Start({kMemoryForOne, Requests(4)});
  ExpectManifestExpires(Manifest(Order::kHang), [&](const auto&) { return Busy(2); });
  ExpectIdle();
  ExpectEnsured(Manifest(Order::kAnswer));
}

TEST_F(ManifestDeadlineTest, WhileItWaitsForRoomInTheQueue) {
  daemon_->Start({kMemoryForOne, Requests(4), "--workers=1", "--queue=1"});
  ExpectManifestExpires(Manifest(Order::kHang), [&](const auto& before) { return daemon_->Stats().refused() > before.refused(); });
  ExpectIdle();
  ExpectEnsured(Manifest(Order::kAnswer));
}

TEST_F(ManifestDeadlineTest, WhileItsAnswersAreNotRead) {
  daemon_->Start({"--manifest-memory=16MiB"});
  v1::EnsureRequest manifest;
  for (int i = 0; i < 20'000; ++i) manifest.add_requests()->set_module("no module " + std::to_string(i));
  manifest.add_targets("cuda:sm_80");
  std::uint64_t last = 0;
  const auto stands_still = [&](const v1::StatsReply& before) {
    std::this_thread::sleep_for(milliseconds(100));  // real time of gRPC's windows: that they stay full has no event
    const std::uint64_t now = daemon_->Stats().requests();
    return now > before.requests() + 1000 && std::exchange(last, now) == now;
  };
  ExpectManifestExpires(manifest, stands_still, false);
  EXPECT_LT(last, 18'000u);
  ExpectEnsured(manifest);
}

class StoreDeadlineTest : public DeadlineTest {
 protected:
  void SetUp() override {
    DeadlineTest::SetUp();
    transfer_ = fs::path(daemon_->State()) / "transfer";
  }

  grpc::Status Export(grpc::ClientContext& context, std::string* bundle = nullptr) {
    const auto reader = daemon_->stub().CacheExport(&context, {});
    for (v1::CacheChunk chunk; reader->Read(&chunk);) {
      if (bundle != nullptr) *bundle += chunk.data();
    }
    return reader->Finish();
  }
  grpc::Status Import(grpc::ClientContext& context, const std::string& bytes, bool all) {
    v1::CacheImportReply reply;
    const auto writer = daemon_->stub().CacheImport(&context, &reply);
    v1::CacheChunk chunk;
    chunk.set_data(bytes);
    writer->Write(chunk);
    if (all) writer->WritesDone();
    return writer->Finish();
  }
  std::size_t OnDisk() {
    grpc::ClientContext context;
    const auto reader = daemon_->stub().CacheList(&context, {});
    std::size_t entries = 0;
    for (v1::CacheEntry entry; reader->Read(&entry);) ++entries;
    EXPECT_TRUE(reader->Finish().ok());
    return entries;
  }
  // Files that came as a whole, or began to come.
  std::ptrdiff_t Uploads(std::size_t bytes) const {
    return std::ranges::count_if(fs::directory_iterator(transfer_), [&](const fs::directory_entry& file) {
      std::error_code gone;
      return file.is_regular_file(gone) && file.file_size(gone) >= bytes && !gone;
    });
  }
  std::size_t Entered(const std::string& method) const { return daemon_->LinesWith({"audit=\"admin\"", "method=\"" + method + "\""}); }

  // A bundle of three entries, which are not in the store any more.
  std::string MakeBundle() {
    for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, i)).status.ok());
    std::string bundle;
    grpc::ClientContext context;
    EXPECT_TRUE(Export(context, &bundle).ok());
    grpc::ClientContext gc;
    v1::CacheGcReply freed;
    EXPECT_TRUE(daemon_->stub().CacheGc(&gc, {}, &freed).ok());
    EXPECT_EQ(freed.evicted(), 3u);
    return bundle;
  }

  fs::path transfer_;
};

// Behind an export that a disk holds up.
TEST_F(StoreDeadlineTest, WhileItWaitsForTheStoresUpkeep) {
  daemon_->Start({Requests(2)});
  const std::string bundle = MakeBundle();
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 9)).status.ok());
  ASSERT_TRUE(daemon_->Eventually([&] { return OnDisk() == 1; })) << "a moment after it was answered";
  const fs::path fifo = transfer_ / "transfer-2.partial";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0) << "who writes it waits for a reader";
  auto holder = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    return Export(context);
  });
  ASSERT_TRUE(daemon_->Eventually([&] { return Entered("CacheExport") == 2; }));
  const std::map<std::string, ExpiringCall> calls = {{"CacheList",
                                                      [&](grpc::ClientContext& context) {
                                                        const auto reader = daemon_->stub().CacheList(&context, {});
                                                        for (v1::CacheEntry entry; reader->Read(&entry);) {
                                                        }
                                                        return reader->Finish();
                                                      }},
                                                     {"CacheExport", [&](grpc::ClientContext& context) { return Export(context); }},
                                                     {"CacheImport", [&](grpc::ClientContext& context) { return Import(context, bundle, true); }},
                                                     {"CacheVerify",
                                                      [&](grpc::ClientContext& context) {
                                                        v1::CacheVerifyReply reply;
                                                        return daemon_->stub().CacheVerify(&context, {}, &reply);
                                                      }},
                                                     {"CacheGc", [&](grpc::ClientContext& context) {
                                                        v1::CacheGcReply reply;
                                                        return daemon_->stub().CacheGc(&context, {}, &reply);
                                                      }}};
  const auto release = [&] {
    fs::create_hard_link(fifo, folder_ / "reader");
    fs::remove(fifo);  // so that the export fails, and does not go on with a file that nobody writes
    std::ifstream(folder_ / "reader").ignore(std::numeric_limits<std::streamsize>::max());
    EXPECT_FALSE(holder.get().ok());
  };
  const auto has_a_place = [&] { return daemon_->Compile(MakeRequest(Order::kUnavailable)).status.error_code() == StatusCode::UNAVAILABLE; };
  std::size_t expired = 0;
  for (const auto& [method, call] : calls) {
    for (int i = 0; i < 2; ++i, ++expired) {  // of which the second finds the place of the first
      std::size_t entered = 0;
      std::ptrdiff_t uploads = 0;
      const auto is_free = [&] {
        if (!has_a_place()) return false;
        entered = Entered(method);
        uploads = Uploads(bundle.size());
        return true;
      };
      const bool uploaded = method == "CacheImport";
      const auto there = [&](const auto&) { return uploaded ? Uploads(bundle.size()) > uploads : Entered(method) > entered; };
      ExpectExpires(*daemon_, method, call, there, true, is_free);
      if (HasFatalFailure()) return release();
    }
  }
  EXPECT_TRUE(daemon_->Eventually(has_a_place)) << "the daemon learns that the last one has gone";
  release();
  EXPECT_TRUE(daemon_->Eventually([&] {  // a call that expired before it had come there was made again, and ends too
    return daemon_->LinesWith({"event=request ", "method=\"Cache"}) >= daemon_->LinesWith({"audit=\"admin\"", "method=\"Cache"});
  }));
  EXPECT_GE(daemon_->LinesWith({"event=request ", "method=\"Cache", "CANCELLED"}), expired);
  EXPECT_EQ(OnDisk(), 1u) << "something was evicted or taken in for nobody";
  EXPECT_TRUE(daemon_->Eventually([&] { return fs::is_empty(transfer_); }));
  grpc::ClientContext context;
  const grpc::Status status = Import(context, bundle, true);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(OnDisk(), 4u);
}

TEST_F(StoreDeadlineTest, WhileABundleComes) {
  daemon_->Start({Requests(1)});
  const std::string bundle = MakeBundle();
  for (int i = 0; i < 2; ++i) {
    ExpectExpires(
        *daemon_, "CacheImport", [&](grpc::ClientContext& context) { return Import(context, bundle.substr(0, 100), false); },
        [&](const auto&) { return Uploads(0) == 1; });
    EXPECT_TRUE(daemon_->Eventually([&] { return fs::is_empty(transfer_); }));
  }
  grpc::ClientContext context;
  EXPECT_TRUE(Import(context, bundle, true).ok());
  EXPECT_EQ(OnDisk(), 3u);
}

TEST_F(StoreDeadlineTest, WhileABundleIsSent) {
  daemon_->Start({Requests(1)});
  for (unsigned i = 0; i < 8; ++i) {
    auto request = MakeRequest(Order::kHuge, 3);
    request.mutable_options()->set_pointer_alignment(1u << i);
    ASSERT_TRUE(daemon_->Compile(request).status.ok());
  }
  std::atomic<bool> sending = false;
  for (int i = 0; i < 2; ++i) {
    ExpectExpires(
        *daemon_, "CacheExport",
        [&](grpc::ClientContext& context) {
          const auto reader = daemon_->stub().CacheExport(&context, {});
          v1::CacheChunk chunk;
          sending = reader->Read(&chunk);
          return reader->Finish();
        },
        [&](const auto&) { return sending.exchange(false); });
    EXPECT_TRUE(daemon_->Eventually([&] { return fs::is_empty(transfer_); }));
  }
  grpc::ClientContext context;
  EXPECT_TRUE(Export(context).ok());
}

TEST_F(StoreDeadlineTest, WhileALookupWaitsForTheExecutor) {
  StartHeld({});
  std::vector<std::future<Daemon::Result>> holders;
  for (uint32_t i = 0; i < kExecutorThreads; ++i) holders.push_back(Started(MakeRequest(Order::kAnswer, i)));
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().requests() == kExecutorThreads; }));
  v1::LookupRequest lookup;
  lookup.set_key(std::string(32, 'k'));
  ExpectExpires(
      *daemon_, "Lookup",
      [&](grpc::ClientContext& context) {
        v1::CompileReply reply;
        return daemon_->stub().Lookup(&context, lookup, &reply);
      },
      [&](const auto& before) { return HasCome(before, daemon_->Stats()); }, true);
  GoOn();
  for (auto& holder : holders) ExpectMade(holder.get(), v1::COMPILED);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->LinesWith({"event=request ", "method=\"Lookup\""}) >= 1; }));
  grpc::ClientContext context;
  v1::CompileReply reply;
  EXPECT_EQ(daemon_->stub().Lookup(&context, lookup, &reply).error_code(), StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace kiln::server::testing
