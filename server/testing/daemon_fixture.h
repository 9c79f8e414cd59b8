// SPDX-License-Identifier: Apache-2.0
//
// A kilnd of its own for each test: a folder, a socket, the fake worker.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <google/protobuf/any.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "kiln/rpc/status.pb.h"
#include "kiln/v1/service.grpc.pb.h"
#include "server/testing/fake_orders.h"
#include "server/testing/minimal_module.h"

namespace kiln::server::testing {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

inline v1::CompileRequest MakeRequest(Order order, uint32_t amount = 0) {
  v1::CompileRequest request;
  request.set_module(MinimalModule());
  request.set_target("cuda:sm_80");
  request.mutable_options()->set_max_registers(Encode(order, amount));
  return request;
}

// As large as that, and otherwise the same: of a field that is sent several times the last counts.
inline v1::CompileRequest Padded(v1::CompileRequest request, std::size_t bytes) {
  google::protobuf::UnknownFieldSet& more = *request.GetReflection()->MutableUnknownFields(&request);
  more.AddLengthDelimited(v1::CompileRequest::kTargetFieldNumber, std::string(bytes, 'p'));
  more.AddLengthDelimited(v1::CompileRequest::kTargetFieldNumber, request.target());
  return request;
}

// A file that decides about rights: nobody else may write it, whatever the umask.
inline void WriteGuarded(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
}

class Daemon {
 public:
  explicit Daemon(fs::path folder) : folder_(std::move(folder)) {}
  ~Daemon() {
    if (pid_ > 0) Kill();
  }

  void Start(std::vector<std::string> options = {}) {
    options.insert(options.begin(), {KILN_BIN "/kilnd", "--listen=unix:" + Socket(), "--state-dir=" + State(), "--ptxas=none",
                                     "--worker-executable=" KILN_BIN "/kiln-fake-worker", "--log-file=" + Log(), "--log-level=debug", "--workers=2"});
    std::vector<char*> argv;
    for (std::string& option : options) argv.push_back(option.data());
    argv.push_back(nullptr);
    ASSERT_EQ(::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // its windows would grow: what a client does not read would go into them
    channel_ = grpc::CreateCustomChannel("unix:" + Socket(), grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Kiln::NewStub(channel_);
    ASSERT_TRUE(Eventually([&] { return Ended() || Connects(milliseconds(100)); }, std::chrono::seconds(20))) << LogText();
    ASSERT_NE(pid_, 0) << "kilnd ended at its start: " << LogText();
  }

  // The exit status, or minus the signal.
  int Wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int Stop() {
    ::kill(pid_, SIGTERM);
    return Wait();
  }
  void Kill() {
    ::kill(pid_, SIGKILL);
    Wait();
  }

  struct Result {
    grpc::Status status;
    v1::CompileReply reply;
    milliseconds took{0};

    rpc::Status details() const {
      rpc::Status details;
      details.ParseFromString(status.error_details());
      return details;
    }
    v1::CompileFailure failure() const {
      v1::CompileFailure failure;
      const rpc::Status all = details();
      for (const google::protobuf::Any& detail : all.details()) detail.UnpackTo(&failure);
      return failure;
    }
    bool has_retry_info() const {
      return std::ranges::any_of(details().details(),
                                 [](const google::protobuf::Any& detail) { return detail.type_url() == "type.googleapis.com/google.rpc.RetryInfo"; });
    }
  };

  Result Compile(const v1::CompileRequest& request, milliseconds deadline = std::chrono::minutes(2)) {
    Result result;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    const auto began = std::chrono::steady_clock::now();
    result.status = stub_->Compile(&context, request, &result.reply);
    result.took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began);
    return result;
  }

  v1::StatsReply Stats() {
    grpc::ClientContext context;
    v1::StatsReply reply;
    const grpc::Status status = stub_->Stats(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  template <class Condition>
  bool Eventually(Condition condition, milliseconds patience = std::chrono::seconds(10)) {
    for (const auto until = std::chrono::steady_clock::now() + patience; std::chrono::steady_clock::now() < until;) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(10));  // between looks
    }
    return condition();
  }

  // What comes of a call whose worker sleeps (Order::kSleep): the sleep ends now. So a test may have it sleep until it has come to this
  // place (kLong), however long that takes.
  template <class T>
  T Woken(std::future<T>& call) {
    while (call.wait_for(milliseconds(20)) != std::future_status::ready) {
      for (const pid_t zygote : Children(pid_)) {
        for (const pid_t worker : Children(zygote)) ::kill(worker, SIGUSR1);
      }
    }
    return call.get();
  }

  v1::Kiln::Stub& stub() { return *stub_; }
  grpc::Channel& channel() { return *channel_; }
  pid_t pid() const { return pid_; }
  std::string Socket() const { return (folder_ / "kiln.sock").string(); }
  std::string State() const { return (folder_ / "state").string(); }
  std::string Log() const { return (folder_ / "kilnd.log").string(); }
  std::string LogText() const {
    std::ostringstream text;
    text << std::ifstream(Log()).rdbuf();
    return text.str();
  }
  // Of the log, with all of these words.
  std::size_t LinesWith(const std::vector<std::string>& words) const {
    std::size_t found = 0;
    std::ifstream log(Log());
    for (std::string line; std::getline(log, line);) {
      found += std::ranges::all_of(words, [&](const std::string& word) { return line.find(word) != std::string::npos; });
    }
    return found;
  }

  // Processes whose parent is `parent`.
  static std::vector<pid_t> Children(pid_t parent) {
    std::vector<pid_t> children;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::string line;
      std::getline(std::ifstream(entry.path() / "stat"), line);
      const std::size_t end = line.rfind(')');
      if (end == std::string::npos) continue;
      std::istringstream rest(line.substr(end + 1));
      char state = 0;
      pid_t its_parent = 0;
      rest >> state >> its_parent;
      if (its_parent == parent && state != 'Z') children.push_back(std::stoi(name));
    }
    return children;
  }

 private:
  bool Connects(milliseconds patience) { return channel_->WaitForConnected(std::chrono::system_clock::now() + patience); }
  bool Ended() {
    if (::waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
    pid_ = 0;
    return true;
  }

  const fs::path folder_;
  pid_t pid_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Kiln::Stub> stub_;
};

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A socket's path has 107 bytes at most.
    const fs::path named = fs::temp_directory_path();
    std::string pattern = ((named.native().size() <= 75 ? named : "/tmp") / "kilnd-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    daemon_ = std::make_unique<Daemon>(folder_);
  }
  void TearDown() override {
    if (HasFailure()) std::fprintf(stderr, "%s\n", daemon_->LogText().c_str());
    daemon_.reset();
    fs::remove_all(folder_);
  }

  // Quotas of seconds are those of an hour of kilnd's clock, and begin anew with the next: what such an end fell into is done once more, by a new
  // kilnd with an empty store. What came of it is looked at afterwards.
  void WithinOneHour(const std::function<void()>& what) {
    const auto hour = [] { return std::chrono::floor<std::chrono::hours>(std::chrono::system_clock::now()); };
    for (auto began = hour();; began = hour()) {
      what();
      if (HasFailure() || hour() == began) return;
      daemon_.reset();
      for (const char* name : {"kiln.db", "kiln.db-wal", "kiln.db-shm"}) fs::remove(folder_ / "state" / name);
      daemon_ = std::make_unique<Daemon>(folder_);
    }
  }

  fs::path folder_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace kiln::server::testing
