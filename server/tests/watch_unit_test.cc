// SPDX-License-Identifier: Apache-2.0
//
// The parts that watch a kilnd, each by itself: traces, the journal, the metrics, spans, the heartbeat.
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/testing.h"
#include "server/queue/heartbeat.h"
#include "server/reply/status_map.h"
#include "server/telemetry/call_log.h"
#include "server/telemetry/journal.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/spans.h"
#include "server/telemetry/trace.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(Trace, ReadsWhatTheRecommendationAllowsAndNothingElse) {
  const auto context = ParseTraceParent(kParent);
  ASSERT_TRUE(context);
  EXPECT_EQ(context->TraceHex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")->sampled);
  EXPECT_TRUE(ParseTraceParent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later"));
  for (const std::string_view wrong :
       {"", "00", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
        "00-0af7651916cd43dd8448eb211c80319cb7ad6b7169203331-01xxx"}) {
    EXPECT_FALSE(ParseTraceParent(wrong)) << wrong;
  }
}

CallRecord RecordNumber(std::uint64_t number) {
  CallRecord record;
  record.method = "Compile";
  record.number = number;
  return record;
}

TEST(Journal, GivesEveryRecordInOrderAndFlushWaitsForIt) {
  std::vector<std::uint64_t> seen;
  Journal journal([&](std::span<const CallRecord> records) {
    for (const CallRecord& record : records) seen.push_back(record.number);
  });
  for (std::uint64_t i = 0; i < 1000; ++i) journal.Add(RecordNumber(i));
  EXPECT_TRUE(journal.Flush(std::chrono::seconds(20)));
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(journal.dropped(), 0u);
}

TEST(Journal, AFlushDoesNotWaitForAReaderThatStandsStill) {
  std::promise<void> may_go;
  const auto gate = may_go.get_future().share();
  Journal journal([&](std::span<const CallRecord>) { gate.wait(); });
  journal.Add(RecordNumber(1));
  EXPECT_FALSE(journal.Flush(std::chrono::milliseconds(20)));
  may_go.set_value();
  EXPECT_TRUE(journal.Flush(std::chrono::seconds(20)));
}

TEST(Journal, DropsAndCountsWhatAStandingReaderCannotTake) {
  std::promise<void> may_go;
  const auto gate = may_go.get_future().share();
  std::atomic<std::size_t> seen = 0;
  {
    Journal journal(
        [&](std::span<const CallRecord> records) {
          gate.wait();
          seen += records.size();
        },
        10);
    for (int i = 0; i < 100; ++i) journal.Add(RecordNumber(1));
    EXPECT_GE(journal.dropped(), 80u);
    EXPECT_LE(journal.dropped(), 90u);
    may_go.set_value();
  }
  EXPECT_GE(seen, 10u);
}

Metrics::Options Names() {
  return {
      .version = "1", .compiler = "c", .targets = {"cuda:sm_80"}, .stages = [] { return std::vector<std::string>{"llvm"}; }, .reasons = AllReasons()};
}

TEST(MetricsText, EachReasonAndCauseIsThereBeforeItHappens) {
  const Metrics metrics(Names());
  const std::string text = metrics.Text({});
  for (const std::string& reason : AllReasons()) EXPECT_THAT(text, HasSubstr("kiln_refusals_total{reason=\"" + reason + "\"} 0"));
  EXPECT_THAT(text, HasSubstr("kiln_worker_restarts_total{cause=\"abort\"} 0"));
  EXPECT_THAT(text, HasSubstr("kiln_build_info{compiler=\"c\",version=\"1\"} 1"));
}

TEST(MetricsText, LabelsStayFewWhateverComes) {
  Metrics metrics(Names());
  for (int i = 0; i < 500; ++i) {
    CallRecord record = RecordNumber(1);
    record.tenant = "tenant-" + std::to_string(i);
    metrics.NoteCall(record);
    google::protobuf::RepeatedPtrField<v1::Timing> timings;
    timings.Add()->set_stage("stage-" + std::to_string(i));
    metrics.NoteCompile({.target = "target-" + std::to_string(i), .outcome = "ok", .priority = "batch", .stages = timings});
    metrics.NoteWorkerEnd("cause " + std::to_string(i));
  }
  const std::string text = metrics.Text({});
  const auto count = [&](const std::string& what) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count("tenant=\"tenant-"), Metrics::kTenants);
  EXPECT_THAT(text, HasSubstr("tenant=\"other\"} " + std::to_string(500 - Metrics::kTenants)));
  EXPECT_EQ(count("target-"), 0u);
  EXPECT_EQ(count("stage-"), 0u);
  EXPECT_THAT(text, HasSubstr("kiln_compile_seconds_count{outcome=\"ok\",target=\"other\"} 500"));
  EXPECT_THAT(text, HasSubstr("kiln_worker_restarts_total{cause=\"other\"} 500"));
}

TEST(MetricsText, StatsTellOfCompilesThatTheirWorkersAnswered) {
  Metrics metrics(Names());
  for (const int milliseconds : {40, 10, 30, 20}) {
    metrics.NoteCompile({.target = "cuda:sm_80",
                         .outcome = "ok",
                         .priority = "batch",
                         .ran = std::chrono::milliseconds(milliseconds),
                         .answered = true,
                         .stages = {}});
  }
  metrics.NoteCompile({.target = "cuda:sm_80", .outcome = "defect", .priority = "batch", .ran = std::chrono::seconds(9), .stages = {}});
  metrics.counts.refused += 2;
  v1::StatsReply stats;
  metrics.Describe(stats);
  EXPECT_EQ(stats.compiles(), 4u);
  EXPECT_FLOAT_EQ(stats.compile_p50_ms(), 30);
  EXPECT_FLOAT_EQ(stats.compile_p99_ms(), 40);
  EXPECT_EQ(stats.refused(), 2u);
  ASSERT_EQ(stats.targets_size(), 1);
  EXPECT_EQ(stats.targets(0).compiles(), 5u) << "those that broke their workers too";
  EXPECT_EQ(stats.targets(0).failed(), 1u);
}

TEST(MetricsText, CountsWhatIsNoted) {
  Metrics metrics(Names());
  CallRecord record = RecordNumber(1);
  record.origin = v1::DISK;
  record.took = std::chrono::milliseconds(3);
  record.bytes_out = 70;
  metrics.NoteCall(record);
  record.origin = v1::ORIGIN_UNSPECIFIED;
  record.code = 8;
  record.reason = ReasonOf(Failure::Kind::kQueueFull);
  metrics.NoteCall(record);
  Sample sample;
  sample.queued = 7;
  v1::DeviceStats& device = sample.devices.emplace_back();
  device.set_name("cuda:0");
  device.set_busy_seconds(2.5);
  const std::string text = metrics.Text(sample);
  EXPECT_THAT(text, HasSubstr("kiln_results_total{origin=\"disk\"} 1"));
  EXPECT_THAT(text, HasSubstr("kiln_refusals_total{reason=\"queue-full\"} 1"));
  EXPECT_THAT(text, HasSubstr("kiln_request_seconds_count{code=\"RESOURCE_EXHAUSTED\",method=\"Compile\"} 1"));
  EXPECT_THAT(text, HasSubstr("kiln_request_seconds_bucket{code=\"OK\",method=\"Compile\",le=\"0.0025\"} 0"));
  EXPECT_THAT(text, HasSubstr("kiln_request_seconds_bucket{code=\"OK\",method=\"Compile\",le=\"0.005\"} 1"));
  EXPECT_THAT(text, HasSubstr("kiln_reply_bytes_total{method=\"Compile\"} 140"));
  EXPECT_THAT(text, HasSubstr("kiln_queue_length 7"));
  EXPECT_THAT(text, HasSubstr("kiln_device_busy_seconds_total{device=\"cuda:0\"} 2.5"));
}

TEST(Spans, AreOtlpWithAChildForEachStageAndTheClientsParent) {
  CallRecord record = RecordNumber(1);
  record.trace = *ParseTraceParent(kParent);
  record.arrived = std::chrono::system_clock::time_point(std::chrono::seconds(1000));
  record.took = std::chrono::microseconds(1500);
  record.target = "cuda:sm_80";
  record.caller = "a \"name\"";
  record.stages.push_back({"decode", record.began + std::chrono::microseconds(10), std::chrono::microseconds(40)});
  const std::string line = ToOtlp(record);
  EXPECT_EQ(line.find('\n'), line.npos);
  EXPECT_THAT(line, HasSubstr(R"("traceId":"0af7651916cd43dd8448eb211c80319c")"));
  EXPECT_THAT(line, HasSubstr(R"("parentSpanId":"b7ad6b7169203331","name":"kiln.v1.Kiln/Compile","kind":2)"));
  EXPECT_THAT(line, HasSubstr(R"("startTimeUnixNano":"1000000000000","endTimeUnixNano":"1000001500000")"));
  EXPECT_THAT(line, HasSubstr(R"("name":"decode","kind":1,"startTimeUnixNano":"1000000010000","endTimeUnixNano":"1000000050000")"));
}

TEST(Spans, TheFileIsBoundedAndLeavesOutWhatIsNotSampled) {
  const auto folder = std::filesystem::temp_directory_path() / ("kiln-spans-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "spans.json").string();
  {
    auto file = SpanFile::Open(path, 20'000);
    ASSERT_TRUE(file) << file.error();
    std::vector<CallRecord> records(500, RecordNumber(1));
    for (int i = 0; i < 10; ++i) (*file)->Write(records);
    CallRecord unsampled = RecordNumber(2);
    unsampled.method = "Unsampled";
    unsampled.trace = *ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    (*file)->Write({&unsampled, 1});
  }
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  EXPECT_LE(bytes, 40'000u);
  EXPECT_GE(bytes, 10'000u);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), Not(HasSubstr("Unsampled")));
  EXPECT_FALSE(SpanFile::Open("/proc/nowhere/spans.json", 1000));
  std::filesystem::remove_all(folder);
}

TEST(Notes, AStageIsAWordHoweverItIsCalled) {
  const cache::testing::ManualClock clock;
  CallNotes notes(clock);
  notes.Mark("decode");
  notes.Mark("x\" evil=\"1");
  for (int i = 0; i < 100; ++i) notes.Mark("more");
  CallRecord record;
  notes.MoveInto(record);
  EXPECT_EQ(record.stages[0].name, "decode");
  EXPECT_EQ(record.stages[1].name, "other");
  EXPECT_EQ(record.stages.size(), 64u);
}

template <class Condition>
bool Eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // between looks
  }
  return condition();
}

TEST(HeartbeatTest, StopsWithTheExecutor) {
  cache::testing::ManualClock clock;
  Executor executor(1, 10, clock);
  Heartbeat heartbeat(executor, clock, std::chrono::seconds(30));
  EXPECT_TRUE(heartbeat.Alive());
  std::promise<void> may_go;
  std::promise<void> is_stuck;
  Executor::Task stuck = [&is_stuck, gate = may_go.get_future().share()] {
    is_stuck.set_value();
    gate.wait();
  };
  ASSERT_TRUE(executor.Post("t", stuck));
  is_stuck.get_future().wait();
  EXPECT_TRUE(heartbeat.Alive());
  clock.Advance(std::chrono::seconds(29));
  EXPECT_TRUE(heartbeat.Alive());
  clock.Advance(std::chrono::seconds(1));
  EXPECT_FALSE(heartbeat.Alive());
  may_go.set_value();
  EXPECT_TRUE(Eventually([&] { return heartbeat.Alive(); }));
}

TEST(HeartbeatTest, AFullQueueDoesNotHideThreadsThatAreStuck) {
  cache::testing::ManualClock clock;
  Executor executor(4, 2, clock);
  std::promise<void> may_go;
  const auto gate = may_go.get_future().share();
  std::atomic<int> stuck = 0;
  for (int i = 0; i < 4; ++i) {
    executor.PostFirst([gate, &stuck] {
      ++stuck;
      gate.wait();
    });
  }
  ASSERT_TRUE(Eventually([&] { return stuck == 4; }));
  const auto post = [&] {
    Executor::Task task = [] {};
    return executor.Post("t", task);
  };
  while (post()) {
  }
  Heartbeat heartbeat(executor, clock, std::chrono::seconds(30));
  EXPECT_TRUE(heartbeat.Alive());
  clock.Advance(std::chrono::seconds(30));
  EXPECT_FALSE(heartbeat.Alive());
  may_go.set_value();
  EXPECT_TRUE(Eventually([&] { return heartbeat.Alive(); }));
}

TEST(RestartCauses, AreClasses) {
  EXPECT_EQ(RestartCause("killed by SIGABRT"), "abort");
  EXPECT_EQ(RestartCause("killed by SIGKILL: the host was out of memory, or somebody killed it (it had 3 MiB)"), "killed");
  EXPECT_EQ(RestartCause("killed by SIGBUS"), "signal");
  EXPECT_EQ(RestartCause("exited with status 5"), "exit");
  EXPECT_EQ(RestartCause("anything"), "other");
}

}  // namespace
}  // namespace kiln::server
