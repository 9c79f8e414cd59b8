// SPDX-License-Identifier: Apache-2.0
//
// What can be seen of a kilnd from the outside: metrics, probes, the order of a drain, log lines, spans, systemd's protocol, the
// checked configuration.
#include "server/testing/daemon_fixture.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <optional>
#include <regex>

#include <gmock/gmock.h>
#include <grpcpp/impl/codegen/client_unary_call.h>

#include "clients/common/unique_fd.h"

namespace kiln::server::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

// Nothing: it does not answer.
std::optional<bool> IsServing(grpc::Channel& channel) {
  grpc::ClientContext context;
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ByteBuffer reply;
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  if (!grpc::internal::BlockingUnaryCall(&channel, method, &context, request, &reply).ok()) return std::nullopt;
  grpc::Slice bytes;  // HealthCheckResponse.status is field 1; 1 says SERVING
  return reply.DumpToSingleSlice(&bytes).ok() && bytes.size() == 2 && bytes.begin()[1] == 1;
}

class WatchTest : public DaemonTest {
 protected:
  void StartWatched(std::vector<std::string> more = {}) {
    more.push_back("--metrics-listen=127.0.0.1:0");
    daemon_->Start(std::move(more));
    std::smatch found;
    const std::string log = daemon_->LogText();
    ASSERT_TRUE(std::regex_search(log, found, std::regex(R"re(event=monitoring listen="127\.0\.0\.1:(\d+)")re"))) << log;
    port_ = static_cast<std::uint16_t>(std::stoi(found[1]));
  }

  // The whole answer to `request`, which names the path.
  std::string Http(const std::string& request) const {
    const UniqueFd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port_)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "";
    const std::string text = request + " HTTP/1.1\r\nHost: kilnd\r\nConnection: close\r\n\r\n";
    ::send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
    std::string answer;
    std::array<char, 4096> chunk;
    for (ssize_t got; (got = ::recv(connection.get(), chunk.data(), chunk.size(), 0)) > 0;)
      answer.append(chunk.data(), static_cast<std::size_t>(got));
    return answer;
  }
  std::string Get(const std::string& path) const { return Http("GET " + path); }

  // The lines of the log that have `event`.
  std::vector<std::string> Lines(const std::string& event) const {
    std::istringstream log(daemon_->LogText());
    std::vector<std::string> lines;
    for (std::string line; std::getline(log, line);) {
      if (line.find("event=" + event + " ") != line.npos) lines.push_back(line);
    }
    return lines;
  }

  std::uint16_t port_ = 0;
};

TEST_F(WatchTest, MetricsTellWhatHappened) {
  StartWatched();
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).status.ok());
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).status.ok());
  EXPECT_FALSE(daemon_->Compile(MakeRequest(Order::kAbort)).status.ok());
  EXPECT_FALSE(daemon_->Compile(MakeRequest(Order::kRefuse)).status.ok());
  const auto lines = {"kiln_results_total{origin=\"compiled\"} 1\n",
                      "kiln_results_total{origin=\"memory\"} 1\n",
                      "kiln_refusals_total{reason=\"defect\"} 1\n",
                      "kiln_worker_restarts_total{cause=\"abort\"} 1\n",
                      "kiln_compile_seconds_count{outcome=\"ok\",target=\"cuda:sm_80\"} 1\n",
                      "kiln_compile_seconds_count{outcome=\"defect\",target=\"cuda:sm_80\"} 1\n",
                      "kiln_request_seconds_count{code=\"OK\",method=\"Compile\"} 2\n",
                      "kiln_queue_wait_seconds_count{priority=\"interactive\"} 3\n",
                      "kiln_queue_length 0\n",
                      "kiln_flights 0\n",
                      "kiln_workers 2\n",
                      "kiln_ready 1\n",
                      "kiln_store_up{tier=\"sqlite\"} 1\n",
                      "kiln_wal_bytes{tier=\"sqlite\"} ",
                      "kiln_store_bytes{tier=\"memory\"} ",
                      "kiln_build_info{compiler=\""};
  std::string text;
  // A call is counted when it is over, which may be after its client has the answer.
  daemon_->Eventually([&] {
    text = Get("/metrics");
    return std::ranges::all_of(lines, [&](const char* line) { return text.find(line) != text.npos; });
  });
  EXPECT_THAT(text, HasSubstr("200 OK"));
  for (const char* line : lines) EXPECT_THAT(text, HasSubstr(line));
}

TEST_F(WatchTest, AStoreThatCouldNotBeOpenedIsToldAndComesBack) {
  const fs::path lock = fs::path(daemon_->State()) / "lock";
  fs::create_directories(lock);  // a folder cannot be locked
  StartWatched();
  EXPECT_THAT(Get("/metrics"), HasSubstr("kiln_store_up{tier=\"sqlite\"} 0\n"));
  EXPECT_THAT(Get("/readyz"), AllOf(HasSubstr("200 OK"), HasSubstr("tier sqlite: disabled\n")));
  const auto tier = [&] { return daemon_->Stats().tiers(1); };
  EXPECT_EQ(tier().name(), "sqlite");
  EXPECT_EQ(tier().state(), "disabled");
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).status.ok());
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).reply.origin(), v1::MEMORY);

  fs::remove(lock);
  ASSERT_TRUE(daemon_->Eventually([&] { return tier().state() == "ok"; }, seconds(30)));
  EXPECT_THAT(Get("/metrics"), HasSubstr("kiln_store_up{tier=\"sqlite\"} 1\n"));
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 4)).status.ok());
  ASSERT_TRUE(daemon_->Eventually([&] { return tier().entries() == 1; }));
  ASSERT_EQ(daemon_->Stop(), 0);
  daemon_->Start();
  EXPECT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 4)).reply.origin(), v1::DISK) << "signed with the key that is kept";
}

TEST_F(WatchTest, MetricsMoveWithTheQueue) {
  StartWatched({"--workers=1"});
  auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  auto waiting = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kAnswer)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 1; }));
  const std::string text = Get("/metrics");
  EXPECT_THAT(text, HasSubstr("kiln_queue_length 1\n"));
  EXPECT_THAT(text, HasSubstr("kiln_flights 2\n"));
  EXPECT_THAT(text, HasSubstr("kiln_workers_busy 1\n"));
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
  EXPECT_TRUE(waiting.get().status.ok());
}

TEST_F(WatchTest, AWorkerThatNobodyWaitsForCountsAsCancelled) {
  StartWatched({"--workers=1"});
  grpc::ClientContext context;
  v1::CompileReply reply;
  auto call = std::async(std::launch::async, [&] { return daemon_->stub().Compile(&context, MakeRequest(Order::kHang), &reply); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  context.TryCancel();
  EXPECT_FALSE(call.get().ok());
  EXPECT_TRUE(daemon_->Eventually([&] { return Get("/metrics").find("kiln_worker_restarts_total{cause=\"cancelled\"} 1") != std::string::npos; }));
}

TEST_F(WatchTest, ThereIsNoPortUnlessAsked) {
  daemon_->Start();
  EXPECT_TRUE(Lines("monitoring").empty());
}

TEST_F(WatchTest, ProbesAnswerAndNothingElseDoes) {
  StartWatched();
  EXPECT_THAT(Get("/healthz"), HasSubstr("200 OK"));
  ASSERT_TRUE(daemon_->Eventually([&] { return Get("/readyz").find("200 OK") != std::string::npos; }));
  EXPECT_THAT(Get("/readyz"), HasSubstr("tier sqlite: ok"));
  EXPECT_THAT(Http("POST /metrics"), HasSubstr("405"));
  EXPECT_THAT(Get("/etc/passwd"), HasSubstr("404"));
  EXPECT_THAT(Get("/../../../etc/passwd"), Not(HasSubstr("root:")));
}

// A balancer that asks for the health before it sends a request must never be told "serving" by one that refuses.
TEST_F(WatchTest, HealthTurnsBeforeAnythingIsRefused) {
  StartWatched({"--workers=1", "--grace=60"});
  auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  std::atomic<int> refused = 0;
  std::vector<std::future<std::optional<bool>>> clients;  // whether the health was "serving" after the first refusal
  for (std::uint32_t client = 0; client < 4; ++client) {
    clients.push_back(std::async(std::launch::async, [&, client]() -> std::optional<bool> {
      for (std::uint32_t i = 0; i < 5000; ++i) {
        // What is known is served to the end; a lookup of what is not compiles nothing. So only a new program is refused.
        auto request = MakeRequest(Order::kRefuse, client);
        request.set_module(MinimalModule("m" + std::to_string(i)));
        if (daemon_->Compile(request, seconds(5)).status.error_code() != grpc::StatusCode::UNAVAILABLE) continue;
        ++refused;
        return IsServing(daemon_->channel());
      }
      return std::nullopt;
    }));
  }
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().queued() == 4; }));
  ::kill(daemon_->pid(), SIGTERM);
  for (auto& client : clients) EXPECT_EQ(client.get(), std::optional(false)) << "a request was refused, and the health did not say NOT_SERVING";
  EXPECT_EQ(refused, 4);
  EXPECT_TRUE(daemon_->Woken(running).status.ok()) << "what was accepted is finished";
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(WatchTest, ReadinessEndsWithTheDrainAndHealthDoesNot) {
  StartWatched({"--workers=1"});
  auto running = std::async(std::launch::async, [&] { return daemon_->Compile(MakeRequest(Order::kSleep, kLong)); });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  ::kill(daemon_->pid(), SIGTERM);
  ASSERT_TRUE(daemon_->Eventually([&] { return Get("/readyz").find("503") != std::string::npos; }));
  EXPECT_THAT(Get("/readyz"), HasSubstr("draining"));
  EXPECT_THAT(Get("/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get("/metrics"), HasSubstr("kiln_draining 1\n"));
  EXPECT_TRUE(daemon_->Woken(running).status.ok());
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(WatchTest, OneLineARequestHotHitsIncluded) {
  StartWatched();
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).status.ok());
  for (int i = 0; i < 50; ++i) ASSERT_EQ(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).reply.origin(), v1::MEMORY);
  EXPECT_FALSE(daemon_->Compile(MakeRequest(Order::kRefuse)).status.ok());
  ASSERT_TRUE(daemon_->Eventually([&] { return Lines("request").size() >= 52; }));
  const auto lines = Lines("request");
  EXPECT_EQ(lines.size(), 52u);
  const auto with = [&](const std::string& text) {
    return std::ranges::count_if(lines, [&](const std::string& line) { return line.find(text) != line.npos; });
  };
  EXPECT_EQ(with("origin=\"compiled\""), 1);
  EXPECT_EQ(with("origin=\"memory\""), 50);
  EXPECT_EQ(with("outcome=\"INVALID_ARGUMENT\" reason=\"invalid\""), 1);
  EXPECT_EQ(with("method=\"Compile\""), 52);
  EXPECT_EQ(with("target=\"cuda:sm_80\""), 52);
  EXPECT_EQ(with("bytes_out="), 52);
  EXPECT_EQ(with("tenant=\"default\""), 52);
  const auto compiled = std::ranges::find_if(lines, [](const std::string& line) { return line.find("compiled") != line.npos; });
  ASSERT_NE(compiled, lines.end());
  for (const char* stage : {"dispatch_ms=", "decode_ms=", "key_ms=", "cache_ms=", "queue_ms=", "seal_ms=", "put_ms="}) {
    EXPECT_THAT(*compiled, HasSubstr(stage));
  }
  std::map<std::string, int> ids;
  for (const std::string& line : lines) ++ids[line.substr(line.find("request=\""), 26)];
  EXPECT_EQ(ids.size(), 52u) << "each request has an id of its own";
}

TEST_F(WatchTest, CallsOfWhatIsNotServedAreToldAndCounted) {
  StartWatched();
  for (const char* path : {"/kiln.v1.Kiln/Future", "/another.Service/Method"}) {
    grpc::ClientContext context;
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC);
    const grpc::Slice slice("whatever");
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    const grpc::Status status = grpc::internal::BlockingUnaryCall(&daemon_->channel(), method, &context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("serves no such method"));
  }
  EXPECT_EQ(IsServing(daemon_->channel()), std::optional(true)) << "the health service is another";
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->LinesWith({"event=request ", "method=\"other\"", "outcome=\"UNIMPLEMENTED\""}) == 2; }));
  EXPECT_TRUE(daemon_->Eventually([&] { return Get("/metrics").find("kiln_refusals_total{reason=\"unsupported\"} 2\n") != std::string::npos; }));
}

TEST_F(WatchTest, ATraceGoesFromTheClientThroughTheStagesIntoTheSpanFile) {
  const std::string spans = (folder_ / "spans.json").string();
  StartWatched({"--trace-file=" + spans});
  grpc::ClientContext context;
  context.AddMetadata("traceparent", kParent);
  v1::CompileReply reply;
  ASSERT_TRUE(daemon_->stub().Compile(&context, MakeRequest(Order::kAnswer, 1), &reply).ok());
  const auto text = [&] {
    std::ostringstream all;
    all << std::ifstream(spans).rdbuf();
    return all.str();
  };
  ASSERT_TRUE(daemon_->Eventually([&] { return text().find('\n') != std::string::npos; }));
  EXPECT_THAT(text(), HasSubstr(R"("traceId":"0af7651916cd43dd8448eb211c80319c")"));
  EXPECT_THAT(text(), HasSubstr(R"("parentSpanId":"b7ad6b7169203331","name":"kiln.v1.Kiln/Compile")"));
  for (const char* stage : {"decode", "key", "cache", "queue", "seal", "put"}) {
    EXPECT_THAT(text(), HasSubstr(std::string("\"name\":\"") + stage + "\""));
  }
  ASSERT_TRUE(daemon_->Eventually([&] { return !Lines("request").empty(); }));
  EXPECT_THAT(Lines("request")[0], HasSubstr("trace=\"0af7651916cd43dd8448eb211c80319c\""));
}

TEST_F(WatchTest, ATakenPortIsToldOf) {
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  ::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const std::string command = KILN_BIN "/kilnd --listen=unix:" + daemon_->Socket() + " --state-dir=" + daemon_->State() +
                              " --ptxas=none --worker-executable=" KILN_BIN "/kiln-fake-worker --metrics-listen=" + where + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> text{};
  [[maybe_unused]] const std::size_t got = std::fread(text.data(), 1, text.size() - 1, pipe);
  EXPECT_EQ(WEXITSTATUS(::pclose(pipe)), 1);
  EXPECT_THAT(std::string(text.data()), HasSubstr("cannot listen on " + where + " for metrics"));
}

}  // namespace
}  // namespace kiln::server::testing
