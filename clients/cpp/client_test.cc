// SPDX-License-Identifier: Apache-2.0
//
// The client against a server in this process.
#include "clients/cpp/client.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <span>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <gtest/gtest.h>

#include "clients/cpp/rank.h"
#include "clients/cpp/run.h"
#include "clients/cpp/testing.h"
#include "kiln/rpc/status.pb.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// As kilnd refuses what it has no room for.
grpc::Status Full(milliseconds retry_after) {
  rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(retry_after.count() / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int>(retry_after.count() % 1000) * 1'000'000);
  rpc::Status status;
  google::protobuf::Any& detail = *status.add_details();
  detail.set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  detail.set_value(retry.SerializeAsString());
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "full", status.SerializeAsString()};
}

struct Service final : v1::Kiln::Service {
  int refusals = 0;  // of the calls to come
  int refused = 0;
  std::optional<grpc::Status> refusal;  // another than Full's
  bool RefusesThis() { return refusals > 0 && (--refusals, ++refused); }
  grpc::Status Refusal() const { return refusal.value_or(Full(milliseconds(1))); }

  grpc::Status Stats(grpc::ServerContext*, const v1::StatsRequest*, v1::StatsReply*) override { return RefusesThis() ? Refusal() : grpc::Status::OK; }

  grpc::Status Capabilities(grpc::ServerContext*, const v1::CapabilitiesRequest*, v1::CapabilitiesReply* reply) override {
    reply->set_signing_key(std::string(32, 'k'));
    return grpc::Status::OK;
  }

  grpc::Status CompileStream(grpc::ServerContext*, const v1::CompileRequest*, grpc::ServerWriter<v1::CompileProgress>* writer) override {
    v1::CompileProgress progress;
    progress.set_stage("queued");
    writer->Write(progress);
    if (RefusesThis()) return Refusal();
    progress.set_stage("decode");
    writer->Write(progress);
    return Refusal();
  }

  bool tells = false;  // of a manifest's progress, before it refuses
  grpc::Status EnsureKernels(grpc::ServerContext*, const v1::EnsureRequest*, grpc::ServerWriter<v1::EnsureProgress>* writer) override {
    if (tells) writer->Write(v1::EnsureProgress());
    return RefusesThis() ? Refusal() : grpc::Status::OK;
  }

  v1::RankRequest rank_request;  // the last one
  std::vector<v1::RankProgress> ranked;
  grpc::Status Rank(grpc::ServerContext*, const v1::RankRequest* request, grpc::ServerWriter<v1::RankProgress>* writer) override {
    if (RefusesThis()) return Refusal();
    rank_request = *request;
    for (const v1::RankProgress& progress : ranked) writer->Write(progress);
    return grpc::Status::OK;
  }

  seconds run_had{0};  // until the last run's deadline
  bool run_ends = true;
  std::size_t run_bytes = 0;  // of all runs
  v1::RunStart run_start;     // of the last one
  std::string run_data;
  v1::RunResult run_result;  // of each
  std::string run_outputs;
  grpc::Status export_ends;
  std::atomic<int> exports_together{1};  // an export ends once so many have begun
  std::atomic<int> exports{0};
  int entries = 0;      // listed, at most kMostListed at once
  bool is_old = false;  // it knows of no pages

  grpc::Status Run(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::RunReply, v1::RunRequest>* stream) override {
    run_had = std::chrono::round<seconds>(context->deadline() - std::chrono::system_clock::now());
    run_data.clear();
    for (v1::RunRequest request; stream->Read(&request);) {
      if (request.has_start()) run_start = request.start();
      run_bytes += request.data().size();
      run_data += request.data();
    }
    if (RefusesThis()) return Refusal();
    while (!run_ends && !context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // between looks
    v1::RunReply reply;
    *reply.mutable_result() = run_result;
    reply.mutable_result()->set_finished(true);
    stream->Write(reply);
    reply.set_data(run_outputs);
    if (!run_outputs.empty()) stream->Write(reply);
    return grpc::Status::OK;
  }

  grpc::Status CacheExport(grpc::ServerContext*, const v1::CacheExportRequest*, grpc::ServerWriter<v1::CacheChunk>* writer) override {
    if (RefusesThis()) return Refusal();
    const int number = ++exports;
    v1::CacheChunk chunk;
    chunk.set_data("new");
    for (int i = 0; i < number; ++i) writer->Write(chunk);
    while (exports < exports_together) std::this_thread::sleep_for(milliseconds(5));  // between looks
    return export_ends;
  }

  std::atomic<int> imports{0};  // that came to their end
  grpc::Status CacheImport(grpc::ServerContext* context, grpc::ServerReader<v1::CacheChunk>* reader, v1::CacheImportReply* reply) override {
    for (v1::CacheChunk chunk; reader->Read(&chunk);) reply->set_imported(reply->imported() + chunk.data().size());
    if (RefusesThis()) return Refusal();
    if (!context->IsCancelled()) ++imports;
    return grpc::Status::OK;
  }

  static constexpr int kMostListed = 12'000;
  static std::string KeyOf(int number) {
    std::string key = std::to_string(number);
    return std::string(32 - key.size(), '0') + key;
  }

  grpc::Status CacheList(grpc::ServerContext*, const v1::CacheListRequest* request, grpc::ServerWriter<v1::CacheEntry>* writer) override {
    if (RefusesThis()) return Refusal();
    const int first = request->after().empty() || is_old ? 0 : std::stoi(request->after()) + 1;
    const int limit = request->limit() == 0 ? kMostListed : std::min<int>(kMostListed, static_cast<int>(request->limit()));
    v1::CacheEntry entry;
    for (int i = first; i < std::min(entries, first + limit); ++i) {
      entry.set_key(KeyOf(i));
      writer->Write(entry);
    }
    return grpc::Status::OK;
  }
};

class ClientTest : public testing::ServedTest<Service> {
 protected:
  static std::string TextOf(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  std::ptrdiff_t FilesInFolder() const { return std::distance(fs::directory_iterator(folder_.path()), {}); }
};

TEST_F(ClientTest, ARunsOwnTimeoutIsNotCutShortByTheConnections) {
  Client client = Connect(seconds(5));
  ASSERT_TRUE(client.Run({.device = "emu:sm_90a", .timeout_seconds = 100}));
  EXPECT_GT(service_.run_had, seconds(150)) << "with the transfers";
  ASSERT_TRUE(client.Run({.device = "emu:sm_90a"}));
  EXPECT_LE(service_.run_had, seconds(5)) << "it has none of its own";
}

TEST_F(ClientTest, ARankingHasTheFastestFirstAndWhatWasRefusedLast) {
  const auto add = [&](std::uint32_t candidate, double microseconds) {
    v1::RankedCandidate& one = *service_.ranked.emplace_back().add_candidates();
    one.set_candidate(candidate);
    if (microseconds == 0) return one.set_message("no such tile");
    one.mutable_estimate()->set_microseconds(microseconds);
    one.mutable_estimate()->set_board("a board");
    v1::KernelEstimate& kernel = *one.mutable_estimate()->add_kernels();
    kernel.set_blocks(3);
    kernel.add_units()->set_name("matrix");
  };
  add(1, 0), add(2, 7), add(0, 9);
  const RankRequest request{
      .candidates = {{.module = "a"}, {.module = "b"}, {.module = "c"}}, .board = "a board", .symbols = {{"M", 5}}, .space = "tiles"};
  service_.refusals = 1;  // once the queue is full
  const auto ranked = Connect().Rank(request);
  ASSERT_TRUE(ranked) << ranked.error().message;
  ASSERT_EQ(ranked->size(), 3u);
  EXPECT_EQ((*ranked)[0].candidate, 2u);
  EXPECT_EQ((*ranked)[0].kernels.front().blocks, 3u);
  EXPECT_EQ((*ranked)[0].kernels.front().units.front().name, "matrix");
  EXPECT_EQ((*ranked)[1].candidate, 0u);
  EXPECT_EQ((*ranked)[2].problem, "no such tile");
  EXPECT_EQ(service_.rank_request.candidates(1).module(), "b");
  EXPECT_EQ(service_.rank_request.options().board(), "a board");
  EXPECT_EQ(service_.rank_request.options().symbols().at("M"), 5);
  EXPECT_EQ(service_.rank_request.space(), "tiles");

  service_.ranked.pop_back();
  EXPECT_FALSE(Connect().Rank(request)) << "one is missing";
}

TEST_F(ClientTest, TensorsThatOverlapTravelOnceAndComeBackToTheirPlaces) {
  std::vector<std::uint8_t> memory(100), own(4, 7);
  std::iota(memory.begin(), memory.end(), 0);
  const auto part = [&](std::size_t first, std::size_t count, std::uint64_t offset = 0) {
    return HostTensor{.bytes = std::as_writable_bytes(std::span(memory).subspan(first, count)),
                      .dtype = DType::kU8,
                      .shape = {static_cast<std::int64_t>(count - offset)},
                      .strides = {},
                      .offset = offset};
  };
  const auto add = [&](std::uint32_t argument, std::uint64_t bytes, std::uint32_t storage = 0) {
    v1::RunOutput& output = *service_.run_result.add_outputs();
    output.set_argument(argument);
    output.mutable_tensor()->set_bytes(bytes);
    output.mutable_tensor()->set_storage(storage);
  };
  add(3, 60);    // with all of the first storage
  add(5, 0, 1);  // a part of it
  add(1, 4);
  add(0, 2);  // allocated
  service_.run_outputs = std::string(60, 'a') + "wxyz" + "no";
  service_.run_outputs[20] = 'b';
  const auto ran = Connect().Run(
      {.device = "emu:sm_90a", .arguments = {HostTensor::Of(own, DType::kU8, {4}), std::int64_t{5}, part(20, 30), part(80, 20), part(40, 40, 3)}});
  ASSERT_TRUE(ran) << ran.error().message;
  const auto tensor = [&](int index) { return service_.run_start.arguments(index).tensor(); };
  EXPECT_EQ(tensor(0).storage(), 0u);
  EXPECT_EQ(tensor(2).storage(), 0u);
  EXPECT_EQ(tensor(2).bytes(), 60u);  // those of the last argument with it
  EXPECT_EQ(tensor(2).offset(), 0u);
  EXPECT_EQ(tensor(3).storage(), 0u);  // which ends where the others begin
  EXPECT_EQ(tensor(4).storage(), 3u);
  EXPECT_EQ(tensor(4).bytes(), 0u);
  EXPECT_EQ(tensor(4).offset(), 23u);
  ASSERT_EQ(service_.run_data.size(), 4u + 60 + 20);
  EXPECT_EQ(service_.run_data.substr(0, 6), std::string("\7\7\7\7\x14\x15"));
  EXPECT_EQ(service_.run_data[64], 80);
  EXPECT_EQ(memory[19], 19);
  EXPECT_EQ(memory[20], 'a');
  EXPECT_EQ(memory[40], 'b');
  EXPECT_EQ(memory[79], 'a');
  EXPECT_EQ(memory[80], 80);  // not written
  EXPECT_EQ(own, (std::vector<std::uint8_t>{'w', 'x', 'y', 'z'}));
  ASSERT_EQ(ran->outputs.size(), 4u);
  EXPECT_EQ(ran->outputs[0].bytes, std::string(20, 'a') + "b" + std::string(9, 'a'));
  EXPECT_EQ(ran->outputs[1].bytes, "b" + std::string(39, 'a'));
  EXPECT_EQ(ran->outputs[2].bytes, "wxyz");
  EXPECT_EQ(ran->outputs[3].bytes, "no");
}

TEST_F(ClientTest, ARunThatDoesNotEndInTimeIsToldAsARun) {
  service_.run_ends = false;
  const auto ran = Connect(milliseconds(200)).Run({.device = "emu:sm_90a"});
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(ran.error().message, AllOf(HasSubstr("the run"), HasSubstr("--timeout"), HasSubstr("--run-limit")));
}

TEST_F(ClientTest, ATimeoutMayBeLongerThanClocksGo) {
  for (const milliseconds timeout : {milliseconds(std::chrono::years(1000)), milliseconds::max()}) {
    EXPECT_TRUE(Connect(timeout).Stats());
    EXPECT_TRUE(Connect(timeout).Run({.device = "emu:sm_90a"}));
  }
  EXPECT_TRUE(Connect().Run({.device = "emu:sm_90a", .timeout_seconds = 1e30})) << "which kilnd may refuse";
  for (const milliseconds timeout : {milliseconds(-1000), milliseconds::min()}) {
    const auto stats = Connect(timeout).Stats();
    ASSERT_FALSE(stats);
    EXPECT_EQ(stats.error().code, ErrorCode::kDeadline);
    const auto run = Connect(timeout).Run({.device = "emu:sm_90a"});
    ASSERT_FALSE(run);
    EXPECT_EQ(run.error().code, ErrorCode::kDeadline);
    EXPECT_THAT(run.error().message, HasSubstr("the connection a longer timeout")) << "it had no limit of its own";
  }
}

TEST_F(ClientTest, AnAnswerThatDoesNotComeInTimeNamesTheTimeout) {
  service_.exports_together = 1000;
  const auto exported = Connect(milliseconds(200)).CacheExport(folder_ / "bundle");
  service_.exports_together = 0;
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(exported.error().message, AllOf(HasSubstr("--timeout"), Not(HasSubstr("--run-limit"))));
}

TEST_F(ClientTest, AnExportThatFailsLeavesTheBundleThatWasThere) {
  const fs::path bundle = folder_ / "bundle";
  std::ofstream(bundle) << "old";
  Client client = Connect();
  service_.export_ends = grpc::Status(grpc::StatusCode::NOT_FOUND, "an entry is gone");
  const auto failed = client.CacheExport(bundle);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "an entry is gone");
  EXPECT_EQ(TextOf(bundle), "old");
  EXPECT_EQ(FilesInFolder(), 1);
  service_.export_ends = {};
  service_.exports = 0;
  const auto bytes = client.CacheExport(bundle);
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(*bytes, 3u);
  EXPECT_EQ(TextOf(bundle), "new");
  EXPECT_EQ(FilesInFolder(), 1);
}

// gRPC's server ends what comes while it shuts down, without asking kilnd.
TEST_F(ClientTest, WhatNobodyHereCancelledIsToBeTriedAgain) {
  service_.export_ends = grpc::Status::CANCELLED;
  const auto exported = Connect().CacheExport(folder_ / "bundle");
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(exported.error().message, HasSubstr("shutting down"));
}

TEST_F(ClientTest, AnExportMayGoIntoWhatIsNoFile) {
  EXPECT_TRUE(Connect().CacheExport("/dev/null"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(ClientTest, AnExportThroughALinkReplacesWhatItLeadsTo) {
  const fs::path bundle = folder_ / "bundle", link = folder_ / "link";
  fs::create_symlink("middle", link);
  fs::create_symlink("bundle", folder_ / "middle");
  for (const char* text : {"new", "newnew"}) {  // the first time it leads nowhere
    ASSERT_TRUE(Connect().CacheExport(link));
    EXPECT_EQ(TextOf(bundle), text);
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(FilesInFolder(), 3);
  }
}

TEST_F(ClientTest, AnExportIntoAPipeThroughALinkLeavesTheLink) {
  const fs::path pipe = folder_ / "pipe", link = folder_ / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const auto exported = Connect().CacheExport(link);
  EXPECT_TRUE(exported) << exported.error().message;
  char text[4] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 3);
  ::close(reader);
  EXPECT_STREQ(text, "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(FilesInFolder(), 2);
}

// What /dev/stdout leads to where its file was removed: the name of that with a remark.
TEST_F(ClientTest, AnExportIntoAFileWithoutANameIsWrittenIntoIt) {
  const fs::path bundle = folder_ / "bundle";
  const int file = ::open(bundle.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(file, 0);
  fs::remove(bundle);
  const auto exported = Connect().CacheExport("/proc/self/fd/" + std::to_string(file));
  EXPECT_TRUE(exported) << exported.error().message;
  char text[4] = {};
  EXPECT_EQ(::pread(file, text, sizeof text, 0), 3);
  ::close(file);
  EXPECT_EQ(FilesInFolder(), 0);
}

TEST_F(ClientTest, OfTwoExportsIntoOneFileOneIsThere) {
  service_.exports_together = 2;
  const fs::path bundle = folder_ / "bundle";
  bool first = false;
  std::thread other([&] { first = Connect().CacheExport(bundle).has_value(); });
  const bool second = Connect().CacheExport(bundle).has_value();
  other.join();
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  EXPECT_THAT(TextOf(bundle), ::testing::AnyOf("new", "newnew"));
  EXPECT_EQ(FilesInFolder(), 1);
}

TEST_F(ClientTest, AnExportKeepsTheModeThatTheFileHad) {
  const fs::path bundle = folder_ / "bundle";
  ASSERT_TRUE(Connect().CacheExport(bundle));
  const mode_t umask = ::umask(0);
  ::umask(umask);
  EXPECT_EQ(fs::status(bundle).permissions(), fs::perms(0666 & ~umask)) << "as of any file that is made";
  fs::permissions(bundle, fs::perms::owner_read);
  ASSERT_TRUE(Connect().CacheExport(bundle));
  EXPECT_EQ(fs::status(bundle).permissions(), fs::perms::owner_read);
}

TEST_F(ClientTest, AnExportThatCannotBeWrittenIsToldWithItsName) {
  for (const fs::path& file : {folder_ / "no/bundle", folder_.path(), fs::path(folder_.path() / std::string(300, 'b'))}) {
    const auto exported = Connect().CacheExport(file);
    ASSERT_FALSE(exported) << file;
    EXPECT_EQ(exported.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(exported.error().message, HasSubstr("cannot write " + file.string() + ": "));
  }
  EXPECT_EQ(service_.exports, 0) << "the daemon need not be asked";
  const auto full = Connect().CacheExport("/dev/full");
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message, HasSubstr("cannot write /dev/full: "));
}

TEST_F(ClientTest, ABundleIsImportedToItsEnd) {
  const fs::path bundle = folder_ / "bundle";
  std::ofstream(bundle) << std::string(1'000'000, 'b');
  const auto report = Connect().CacheImport(bundle);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->imported, 1'000'000u) << "the service counts bytes";
  EXPECT_EQ(service_.imports, 1);
}

TEST_F(ClientTest, WhatCannotBeReadIsNotTakenForAnEmptyFile) {
  const std::string folder = folder_.path().string(), absent = (folder_ / "absent").string();
  const auto report = Connect().CacheImport(folder);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInvalid);
  EXPECT_EQ(report.error().message, "cannot read " + folder + ": Is a directory");
  EXPECT_EQ(Connect().CacheImport(absent).error().message, "cannot read " + absent + ": No such file or directory");
  EXPECT_EQ(service_.imports, 0);
  const auto rooted = Client::Connect({.address = "localhost:1", .tls_roots = folder});
  ASSERT_FALSE(rooted);
  EXPECT_EQ(rooted.error().message, "cannot read " + folder + ": Is a directory");
}

TEST_F(ClientTest, WhatIsRefusedForWantOfRoomIsAskedForAgain) {
  Client client = Connect();
  const fs::path bundle = folder_ / "bundle";
  std::vector<float> elements(1000);
  const RunRequest run{.device = "emu:sm_90a", .arguments = {HostTensor::Of(elements, DType::kF32, {1000})}};
  service_.entries = 3;
  const std::vector<std::pair<const char*, std::function<bool()>>> calls = {
      {"stats", [&] { return client.Stats().has_value(); }},
      {"ensure", [&] { return client.Ensure({.requests = {{.module = "m", .target = "cuda:sm_80"}}, .targets = {}}).has_value(); }},
      {"run", [&] { return client.Run(run).has_value(); }},
      {"list", [&] { return client.CacheList()->size() == 3; }},
      {"export", [&] { return client.CacheExport(bundle).has_value() && TextOf(bundle) == "new"; }},
      {"import", [&] { return client.CacheImport(bundle).value_or(Client::ImportReport()).imported == 3; }},
  };
  for (const auto& [name, call] : calls) {
    service_.refusals = 2, service_.refused = 0;
    EXPECT_TRUE(call()) << name;
    EXPECT_EQ(service_.refused, 2) << name;
  }
  EXPECT_EQ(service_.run_bytes, 3 * std::as_bytes(std::span(elements)).size()) << "each time it had the tensors";
}

TEST_F(ClientTest, WhatThereIsNoTimeForOrHasBegunIsNotAskedForAgain) {
  const auto is_asked_once = [&](const auto& call) {
    service_.refusals = 10, service_.refused = 0;
    const auto answer = call();
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::kBusy);
    EXPECT_EQ(service_.refused, 1);
  };
  service_.tells = true;
  is_asked_once([&] { return Connect().Ensure({.requests = {{.module = "m", .target = "cuda:sm_80"}}, .targets = {}}); });
  for (const grpc::Status& refusal : {Full(std::chrono::minutes(1)), Full(std::chrono::hours(24 * 365 * 1000)),
                                      grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the message has 9 bytes")}) {
    service_.refusal = refusal;
    is_asked_once([&] { return Connect().Stats(); });
  }
  service_.refusal = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11");
  service_.refusals = 2, service_.refused = 0;
  EXPECT_TRUE(Connect().Stats()) << "nobody has read it";
  EXPECT_EQ(service_.refused, 2);
}

TEST_F(ClientTest, ACompileThatNoQueueTookIsAskedForAgain) {
  service_.refusals = 1;
  std::vector<std::string> stages;
  const auto compiled = Connect().Compile({.module = "m", .target = "cuda:sm_80"}, [&](std::string_view stage) { stages.emplace_back(stage); });
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::kBusy) << "the service's second answer, after it had begun";
  EXPECT_THAT(stages, ::testing::ElementsAre("queued", "queued", "decode"));
}

TEST_F(ClientTest, ListsMoreThanAKilndDoesAtOnce) {
  service_.entries = 2 * Service::kMostListed + 500;
  const auto all = Connect().CacheList();
  ASSERT_TRUE(all) << all.error().message;
  ASSERT_EQ(all->size(), static_cast<std::size_t>(service_.entries));
  EXPECT_EQ(all->front().key, Service::KeyOf(0));
  EXPECT_EQ(all->back().key, Service::KeyOf(service_.entries - 1));
  EXPECT_EQ(std::ranges::adjacent_find(*all, std::greater_equal<>(), &CacheEntry::key), all->end()) << "each once";
  const auto some = Connect().CacheList({}, {}, 10'001);
  ASSERT_TRUE(some);
  EXPECT_EQ(some->size(), 10'001u);
  service_.entries = 10'000;
  EXPECT_EQ(Connect().CacheList()->size(), 10'000u) << "the last page is full";
}

TEST_F(ClientTest, AKilndThatCannotListMoreIsTold) {
  service_.is_old = true;
  service_.entries = 10'001;
  const auto all = Connect().CacheList();
  ASSERT_FALSE(all);
  EXPECT_THAT(all.error().message, HasSubstr("older than its client"));
}

}  // namespace
}  // namespace kiln
