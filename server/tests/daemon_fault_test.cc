// SPDX-License-Identifier: Apache-2.0
//
// kilnd when something dies: workers, their zygote, kilnd itself. And the store from outside.
#include "server/testing/daemon_fixture.h"
#include "server/testing/hanging_lister.h"

#include <future>

#include "server/worker/sandbox.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

struct Fault {
  Order order;
  const char* cause;
  const char* setting = "";
};

class WorkerFaultTest : public DaemonTest, public ::testing::WithParamInterface<Fault> {};

TEST_P(WorkerFaultTest, CostsThatRequestAloneAndLeavesAReproducer) {
  if (kSanitized && GetParam().order == Order::kEatMemory) GTEST_SKIP() << "a sanitized worker has no memory limit";
  const bool hangs = GetParam().order == Order::kHang;  // the others end by themselves, however slow the machine
  daemon_->Start({"--workers=1", "--worker-memory=256MiB", hangs ? "--compile-limit=3" : "--compile-limit=60"});
  const auto request = MakeRequest(GetParam().order);
  const auto failed = daemon_->Compile(request);
  EXPECT_EQ(failed.status.error_code(), StatusCode::INTERNAL);
  EXPECT_NE(failed.status.error_message().find(GetParam().cause), std::string::npos) << failed.status.error_message();
  EXPECT_NE(failed.status.error_message().find(GetParam().setting), std::string::npos) << failed.status.error_message();

  v1::Reproducer reproducer;
  std::ifstream file(failed.failure().reproducer(), std::ios::binary);
  ASSERT_TRUE(reproducer.ParseFromIstream(&file)) << failed.failure().reproducer();
  EXPECT_EQ(reproducer.request().SerializeAsString(), request.SerializeAsString());
  EXPECT_EQ(reproducer.cause().rfind(GetParam().cause, 0), 0u) << reproducer.cause();

  const auto next = daemon_->Compile(MakeRequest(Order::kAnswer));
  EXPECT_TRUE(next.status.ok()) << next.status.error_message();
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Faults, WorkerFaultTest,
                         ::testing::Values(Fault{Order::kAbort, "killed by SIGABRT"}, Fault{Order::kFault, "killed by SIGSEGV"},
                                           Fault{Order::kHang, "deadline", "--compile-limit"},
                                           Fault{Order::kEatMemory, "out of memory", "--worker-memory"},
                                           Fault{Order::kGarbage, "sent what is no message"}, Fault{Order::kExit, "exited with status 5"}));

TEST_F(DaemonTest, ADefectThatTheCompilerFoundItselfLeavesAReproducerToo) {
  daemon_->Start();
  const auto failed = daemon_->Compile(MakeRequest(Order::kDefect));
  EXPECT_EQ(failed.status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(failed.failure().diagnostics_size(), 1);
  EXPECT_TRUE(fs::exists(failed.failure().reproducer()));
}

TEST_F(DaemonTest, WhatTheHostFailedToDoIsNoDefect) {
  daemon_->Start();
  for (int i = 0; i < 3; ++i) {
    const auto failed = daemon_->Compile(MakeRequest(Order::kUnavailable));
    EXPECT_EQ(failed.status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_NE(failed.status.error_message().find("ptxas: it was killed"), std::string::npos) << failed.status.error_message();
  }
  EXPECT_FALSE(fs::exists(fs::path(daemon_->State()) / "reproducers"));
}

TEST_F(DaemonTest, AProgramThatKillsWorkersIsNotTriedForever) {
  daemon_->Start();
  const std::string reproducer = daemon_->Compile(MakeRequest(Order::kAbort)).failure().reproducer();
  ASSERT_TRUE(fs::exists(reproducer));
  for (int i = 0; i < 4; ++i) {
    const auto failed = daemon_->Compile(MakeRequest(Order::kAbort));
    EXPECT_EQ(failed.status.error_code(), StatusCode::INTERNAL);
    EXPECT_EQ(failed.failure().reproducer(), reproducer);
    EXPECT_NE(failed.status.error_message().find(reproducer), std::string::npos) << failed.status.error_message();
  }
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 2u);
  auto insisting = MakeRequest(Order::kAbort);
  insisting.set_refresh(true);
  EXPECT_EQ(daemon_->Compile(insisting).status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 3u);
}

// Each explained compile is a flight of its own, and all wait before the first has killed a worker.
TEST_F(DaemonTest, WhatKillsWorkersKillsNoThirdForThoseWhoWaitAlready) {
  daemon_->Start({"--workers=1"});
  auto hold = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  std::vector<std::future<Daemon::Result>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::async(std::launch::async, [this, i] {
      auto request = MakeRequest(Order::kAbort);
      request.mutable_explain()->add_after("pass " + std::to_string(i));
      return daemon_->Compile(request);
    }));
  }
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 8; }));
  EXPECT_TRUE(daemon_->Woken(hold).status.ok());
  for (auto& one : all) EXPECT_EQ(one.get().status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 2u);
}

TEST_F(DaemonTest, WhatKilledWorkersTwiceIsRefusedByTheNextDaemonToo) {
  daemon_->Start();
  const std::string reproducer = daemon_->Compile(MakeRequest(Order::kAbort)).failure().reproducer();
  daemon_->Compile(MakeRequest(Order::kAbort));
  daemon_->Kill();
  daemon_->Start();
  const auto refused = daemon_->Compile(MakeRequest(Order::kAbort));
  EXPECT_EQ(refused.status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(refused.failure().reproducer(), reproducer);
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 0u);
}

TEST_F(DaemonTest, WhatKilledWorkersIsTriedAnewUnderOtherLimits) {
  daemon_->Start();
  for (int i = 0; i < 3; ++i) daemon_->Compile(MakeRequest(Order::kAbort));
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 2u);
  ASSERT_EQ(daemon_->Stop(), 0);
  daemon_->Start({"--worker-memory=8GiB"});
  daemon_->Compile(MakeRequest(Order::kAbort));
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 1u);
}

TEST_F(DaemonTest, ACrashReachesEveryWaiterOfTheFlight) {
  daemon_->Start({"--workers=1"});
  std::vector<std::future<Daemon::Result>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kHang)); }));
  }
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1 && daemon_->Stats().joined() == 7; }));
  EXPECT_TRUE(daemon_->Eventually([&] {  // busy is also a worker that has not been started yet
    for (const pid_t worker : Daemon::Children(Daemon::Children(daemon_->pid()).at(0))) ::kill(worker, SIGABRT);
    return all[0].wait_for(milliseconds(0)) == std::future_status::ready;
  }));
  for (auto& one : all) EXPECT_EQ(one.get().status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 1u);
}

TEST_F(DaemonTest, WorkersAreReplacedAfterTheirShareOfJobs) {
  daemon_->Start({"--workers=1", "--jobs-per-worker=2"});
  const pid_t zygote = Daemon::Children(daemon_->pid()).at(0);
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 0)).status.ok());
  ASSERT_TRUE(daemon_->Eventually([&] { return Daemon::Children(zygote).size() == 1; }));
  const auto first = Daemon::Children(zygote);
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.ok());
  EXPECT_TRUE(daemon_->Eventually([&] {
    const auto now = Daemon::Children(zygote);
    return now.size() == 1 && now != first;
  }));
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 2)).status.ok());
}

TEST_F(DaemonTest, AnIdleWorkerThatWasKilledIsNoRequestsFault) {
  daemon_->Start({"--workers=1"});
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 0)).status.ok());
  const pid_t zygote = Daemon::Children(daemon_->pid()).at(0);
  for (const pid_t worker : Daemon::Children(zygote)) ::kill(worker, SIGKILL);
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 1)).status.ok());
}

TEST_F(DaemonTest, AnIdleWorkerThatWasStoppedIsNoRequestsFault) {
  daemon_->Start({"--workers=1"});
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 0)).status.ok());
  const pid_t zygote = Daemon::Children(daemon_->pid()).at(0);
  const auto stopped = Daemon::Children(zygote);
  for (const pid_t worker : stopped) ::kill(worker, SIGSTOP);
  const auto next = daemon_->Compile(MakeRequest(Order::kAnswer, 1));
  EXPECT_TRUE(next.status.ok()) << next.status.error_message();
  EXPECT_NE(Daemon::Children(zygote), stopped) << "and it is gone";
}

TEST_F(DaemonTest, AWorkerThatIsStoppedInTheMiddleCostsThatRequestAlone) {
  daemon_->Start({"--workers=1", "--compile-limit=8"});
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CompileStream(&context, MakeRequest(Order::kSleep, 600));
  v1::CompileProgress progress;
  while (progress.stage().empty() || progress.stage() == "queued") ASSERT_TRUE(reader->Read(&progress));
  for (const pid_t worker : Daemon::Children(Daemon::Children(daemon_->pid()).at(0))) ::kill(worker, SIGSTOP);
  while (reader->Read(&progress)) continue;
  const grpc::Status failed = reader->Finish();
  EXPECT_EQ(failed.error_code(), StatusCode::INTERNAL);
  EXPECT_NE(failed.error_message().find("deadline"), std::string::npos) << failed.error_message();
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer)).status.ok());
}

TEST_F(DaemonTest, AKilledZygoteIsReplacedAndTheJobTriedAgain) {
  daemon_->Start({"--workers=1"});
  for (unsigned i = 0; i < 3; ++i) {  // which of the two is seen to end first changes from time to time
    auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong + i)); });
    ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
    const pid_t zygote = Daemon::Children(daemon_->pid()).at(0);
    ::kill(zygote, SIGKILL);
    ASSERT_TRUE(daemon_->Eventually([&] {
      const auto now = Daemon::Children(daemon_->pid());
      return !now.empty() && now.at(0) != zygote;
    }));
    const auto result = daemon_->Woken(running);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  }
}

// Its worker killed in the middle, as the host does when memory is short.
void LoseWorkerOf(Daemon& daemon, const v1::CompileRequest& request) {
  grpc::ClientContext context;
  const auto reader = daemon.stub().CompileStream(&context, request);
  v1::CompileProgress progress;
  while (progress.stage().empty() || progress.stage() == "queued") ASSERT_TRUE(reader->Read(&progress));
  for (const pid_t worker : Daemon::Children(Daemon::Children(daemon.pid()).at(0))) ::kill(worker, SIGKILL);
  while (reader->Read(&progress)) continue;
  const grpc::Status lost = reader->Finish();
  EXPECT_EQ(lost.error_code(), StatusCode::UNAVAILABLE) << lost.error_message();
  EXPECT_NE(lost.error_message().find("killed by SIGKILL"), std::string::npos) << lost.error_message();
}

TEST_F(DaemonTest, AWorkerThatIsKilledFromOutsideDoesNotCountAgainstItsProgram) {
  daemon_->Start({"--workers=1"});
  const auto request = MakeRequest(Order::kSleep, kLong);
  for (int i = 0; i < 2; ++i) LoseWorkerOf(*daemon_, request);
  EXPECT_FALSE(fs::exists(fs::path(daemon_->State()) / "reproducers"));
  auto tried = std::async(std::launch::async, [&] { return daemon_->Compile(request); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  EXPECT_TRUE(daemon_->Woken(tried).status.ok());
}

TEST_F(DaemonTest, AProgramWhoseWorkersAreKilledAgainAndAgainIsLeftAloneForAWhile) {
  daemon_->Start({"--workers=1"});
  auto request = MakeRequest(Order::kSleep, kLong);
  for (int i = 0; i < 3; ++i) LoseWorkerOf(*daemon_, request);
  const auto refused = daemon_->Compile(request);
  EXPECT_EQ(refused.status.error_code(), StatusCode::INTERNAL);
  const std::string why = refused.status.error_message();
  EXPECT_NE(why.find("3 workers that compiled this program were killed"), std::string::npos) << why;
  EXPECT_TRUE(refused.failure().reproducer().empty());
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 3u);
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer)).status.ok()) << "another program";

  request.set_refresh(true);
  auto tried = std::async(std::launch::async, [&] { return daemon_->Compile(request); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  EXPECT_TRUE(daemon_->Woken(tried).status.ok()) << "an admin insists";
}

TEST_F(DaemonTest, WorkersEndWithKilnd) {
  daemon_->Start();
  auto hung = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kHang)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  const pid_t zygote = Daemon::Children(daemon_->pid()).at(0);
  const auto workers = Daemon::Children(zygote);
  ASSERT_FALSE(workers.empty());
  daemon_->Kill();
  EXPECT_EQ(hung.get().status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(daemon_->Eventually([&] {
    return std::ranges::none_of(workers, [](pid_t worker) {
      std::string line;
      std::getline(std::ifstream("/proc/" + std::to_string(worker) + "/stat"), line);
      return !line.empty() && line.find(") Z") == std::string::npos;
    });
  }));
}

TEST_F(DaemonTest, AMissingWorkerExecutableIsToldAtTheStart) {
  const std::string told = (folder_ / "told").string();
  const std::string command = KILN_BIN "/kilnd --listen=unix:" + daemon_->Socket() + " --state-dir=" + daemon_->State() +
                              " --worker-executable=/nowhere/kiln-worker 2> " + told;
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  std::ostringstream text;
  text << std::ifstream(told).rdbuf();
  EXPECT_NE(text.str().find("--worker-executable"), std::string::npos) << text.str();
}

TEST_F(DaemonTest, AWorkerThatCannotStartIsUnavailableAndNotForever) {
  daemon_->Start({"--worker-executable=/bin/false"});
  const auto result = daemon_->Compile(MakeRequest(Order::kAnswer), std::chrono::seconds(10));
  EXPECT_EQ(result.status.error_code(), StatusCode::UNAVAILABLE) << result.status.error_message();
  EXPECT_NE(result.status.error_message().find("/bin/false"), std::string::npos);
}

class StoreTest : public DaemonTest {
 protected:
  std::uint64_t OnDisk() { return daemon_->Stats().tiers(1).entries(); }
  void CompileMany(unsigned count) {
    for (unsigned i = 0; i < count; ++i) ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, i)).status.ok());
    ASSERT_TRUE(daemon_->Eventually([&] { return OnDisk() == count; }));
  }
  // More than goes into one message of an export, or into what gRPC holds of it.
  void CompileHuge() {
    for (unsigned i = 0; i < 8; ++i) {
      auto request = MakeRequest(Order::kHuge, 3);
      request.mutable_options()->set_pointer_alignment(1u << i);
      ASSERT_TRUE(daemon_->Compile(request).status.ok());
    }
  }
  void ExpectKept(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const auto kept = daemon_->Compile(MakeRequest(Order::kAnswer, i));
      EXPECT_EQ(kept.reply.origin(), v1::DISK) << i;
      EXPECT_EQ(kept.reply.artifact().code().size(), 1 + i * 100);
    }
  }
};

TEST_F(StoreTest, IsThereAfterARestart) {
  daemon_->Start();
  CompileMany(5);
  ASSERT_EQ(daemon_->Stop(), 0);
  daemon_->Start();
  ExpectKept(5);
}

TEST_F(StoreTest, IsThereAfterKill) {
  daemon_->Start();
  CompileMany(5);
  daemon_->Kill();
  daemon_->Start();
  ExpectKept(5);
}

TEST_F(StoreTest, ListsVerifiesAndShrinks) {
  daemon_->Start();
  CompileMany(4);
  grpc::ClientContext list;
  const auto reader = daemon_->stub().CacheList(&list, {});
  int listed = 0;
  for (v1::CacheEntry entry; reader->Read(&entry); ++listed) {
    EXPECT_EQ(entry.key().size(), 32u);
    EXPECT_EQ(entry.target(), "cuda:sm_80");
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(listed, 4);

  grpc::ClientContext verify;
  v1::CacheVerifyReply verified;
  ASSERT_TRUE(daemon_->stub().CacheVerify(&verify, {}, &verified).ok());
  EXPECT_EQ(verified.checked(), 4u);
  EXPECT_EQ(verified.corrupt(), 0u);

  grpc::ClientContext gc;
  v1::CacheGcReply freed;
  ASSERT_TRUE(daemon_->stub().CacheGc(&gc, {}, &freed).ok());
  EXPECT_EQ(freed.evicted(), 4u);
  EXPECT_EQ(OnDisk(), 0u);
}

TEST_F(StoreTest, ListsInPages) {
  daemon_->Start();
  CompileMany(5);
  const auto list = [&](const std::string& after, std::uint32_t limit, grpc::StatusCode ends = grpc::StatusCode::OK) {
    v1::CacheListRequest request;
    request.set_after(after);
    request.set_limit(limit);
    grpc::ClientContext context;
    const auto reader = daemon_->stub().CacheList(&context, request);
    std::vector<std::string> keys;
    for (v1::CacheEntry entry; reader->Read(&entry);) keys.push_back(entry.key());
    EXPECT_EQ(reader->Finish().error_code(), ends);
    return keys;
  };
  const std::vector<std::string> all = list("", 0);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(list("", 2), std::vector(all.begin(), all.begin() + 2));
  EXPECT_EQ(list(all[1], 2), std::vector(all.begin() + 2, all.begin() + 4));
  EXPECT_EQ(list(all[3], 2), std::vector(all.begin() + 4, all.end()));
  EXPECT_TRUE(list(all[4], 2).empty());
  list("no key", 2, grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(StoreTest, TravelsAsABundle) {
  daemon_->Start();
  CompileMany(6);
  std::string bundle;
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CacheExport(&context, {});
  for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle += chunk.data();
  ASSERT_TRUE(reader->Finish().ok());
  ASSERT_EQ(daemon_->Stop(), 0);
  fs::rename(fs::path(daemon_->State()) / "signing-key.pem", folder_ / "key.pem");  // the same host, with an empty store
  fs::remove_all(daemon_->State());
  daemon_->Start({"--signing-key=" + (folder_ / "key.pem").string()});

  const auto import = [&](const std::string& bytes, v1::CacheImportReply& reply) {
    grpc::ClientContext into;
    const auto writer = daemon_->stub().CacheImport(&into, &reply);
    v1::CacheChunk chunk;
    for (std::size_t at = 0; at < bytes.size(); at += 1000) {
      chunk.set_data(bytes.substr(at, 1000));
      if (!writer->Write(chunk)) break;
    }
    writer->WritesDone();
    return writer->Finish().error_code();
  };
  v1::CacheImportReply reply;
  EXPECT_EQ(import("no bundle at all", reply), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(import(bundle, reply), StatusCode::OK);
  EXPECT_EQ(reply.imported(), 6u);
  ExpectKept(6);
}

TEST_F(StoreTest, ABundleThatCannotBeReadBackDoesNotEndWell) {
  daemon_->Start();
  CompileHuge();
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CacheExport(&context, {});
  v1::CacheChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  for (const auto& file : fs::directory_iterator(fs::path(daemon_->State()) / "transfer")) fs::resize_file(file, chunk.data().size());
  while (reader->Read(&chunk)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_NE(status.error_message().find("only a part of the bundle"), std::string::npos) << status.error_message();
}

TEST_F(StoreTest, AnUploadThatWasAcceptedBeforeADrainIsTakenWhole) {
  daemon_->Start({"--grace=20"});
  CompileMany(3);
  std::string bundle;
  grpc::ClientContext from;
  const auto reader = daemon_->stub().CacheExport(&from, {});
  for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle += chunk.data();
  ASSERT_TRUE(reader->Finish().ok());
  const fs::path transfer = fs::path(daemon_->State()) / "transfer";
  ASSERT_TRUE(daemon_->Eventually([&] { return fs::is_empty(transfer); })) << "the export's file stays";

  grpc::ClientContext into;
  v1::CacheImportReply reply;
  const auto writer = daemon_->stub().CacheImport(&into, &reply);
  v1::CacheChunk chunk;
  chunk.set_data(bundle.substr(0, 100));
  ASSERT_TRUE(writer->Write(chunk));
  ASSERT_TRUE(daemon_->Eventually([&] { return !fs::is_empty(transfer); })) << "it has not begun";
  ::kill(daemon_->pid(), SIGTERM);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("event=draining") != std::string::npos; }));
  chunk.set_data(bundle.substr(100));
  EXPECT_TRUE(writer->Write(chunk));
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.imported(), 3u);
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(StoreTest, IsLookedAfterWhileADriverHangs) {
  const fs::path worker = folder_ / kHangingLister;
  fs::create_symlink(KILN_BIN "/kiln-fake-worker", worker);
  daemon_->Start({"--worker-executable=" + worker.string(), "--grace=0"});
  grpc::ClientContext asks;
  v1::CapabilitiesReply capabilities;
  auto asked = std::async(std::launch::async, [&] { return daemon_->stub().Capabilities(&asks, {}, &capabilities).ok(); });
  EXPECT_EQ(asked.wait_for(milliseconds(500)), std::future_status::timeout) << "it waits for the driver";
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(15));
  v1::CacheGcReply reply;
  const grpc::Status status = daemon_->stub().CacheGc(&context, {}, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(daemon_->Stop(), 0) << "and it ends nevertheless";
  asked.wait();
}

TEST_F(StoreTest, NothingIsTakenOfABundleWhoseClientVanishes) {
  daemon_->Start();
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 900 + i)).status.ok());  // 90 kB
  std::string bundle;
  grpc::ClientContext from;
  const auto reader = daemon_->stub().CacheExport(&from, {});
  for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle += chunk.data();
  ASSERT_TRUE(reader->Finish().ok());
  grpc::ClientContext gc;
  v1::CacheGcReply freed;
  ASSERT_TRUE(daemon_->stub().CacheGc(&gc, {}, &freed).ok());
  ASSERT_EQ(OnDisk(), 0u);

  const fs::path transfer = fs::path(daemon_->State()) / "transfer";
  const std::size_t cut = bundle.size() - 1000;
  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext into;
    v1::CacheImportReply reply;
    const auto writer = daemon_->stub().CacheImport(&into, &reply);
    v1::CacheChunk chunk;
    chunk.set_data(bundle.substr(0, cut));
    ASSERT_TRUE(writer->Write(chunk));
    ASSERT_TRUE(daemon_->Eventually([&] {
      const auto files = fs::directory_iterator(transfer);
      return files != fs::directory_iterator() && fs::file_size(files->path()) >= cut - 10'000;  // what is buffered
    })) << "it has not come";
    into.TryCancel();
    EXPECT_FALSE(writer->Finish().ok());
    ASSERT_TRUE(daemon_->Eventually([&] { return fs::is_empty(transfer); })) << "its file stays";
    ASSERT_EQ(OnDisk(), 0u);
  }
}

TEST_F(StoreTest, AnExportWhoseClientVanishesLeavesNoFile) {
  daemon_->Start();
  CompileHuge();
  grpc::ClientContext context;
  const auto reader = daemon_->stub().CacheExport(&context, {});
  v1::CacheChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  const fs::path transfer = fs::path(daemon_->State()) / "transfer";
  EXPECT_FALSE(fs::is_empty(transfer));
  context.TryCancel();
  EXPECT_TRUE(daemon_->Eventually([&] { return fs::is_empty(transfer); }));
}

TEST_F(StoreTest, TakesWhatTheSameCompilerMadeElsewhere) {
  daemon_->Start();
  grpc::ClientContext ask;
  v1::CapabilitiesReply capabilities;
  ASSERT_TRUE(daemon_->stub().Capabilities(&ask, {}, &capabilities).ok());
  EXPECT_GT(capabilities.targets_size(), 5);

  v1::PutRequest put;
  *put.mutable_request() = MakeRequest(Order::kAbort, 1);  // compiling it would fail
  put.mutable_artifact()->set_target("cuda:sm_80");
  put.mutable_artifact()->set_code("code from elsewhere");
  const auto send = [&] {
    grpc::ClientContext context;
    v1::PutReply reply;
    return daemon_->stub().Put(&context, put, &reply).error_code();
  };
  put.mutable_artifact()->set_compiler("another build");
  EXPECT_EQ(send(), StatusCode::INVALID_ARGUMENT);
  put.mutable_artifact()->set_compiler(capabilities.compiler());
  EXPECT_EQ(send(), StatusCode::OK);
  const auto hit = daemon_->Compile(put.request());
  ASSERT_TRUE(hit.status.ok()) << hit.status.error_message();
  EXPECT_EQ(hit.reply.artifact().code(), "code from elsewhere");
}

TEST_F(StoreTest, TakesNothingWhenToldSo) {
  daemon_->Start({"--accept-put=no"});
  grpc::ClientContext context;
  v1::PutReply reply;
  EXPECT_EQ(daemon_->stub().Put(&context, {}, &reply).error_code(), StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace kiln::server::testing
