// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <grpcpp/impl/codegen/client_unary_call.h>

#include "tests/bench/figures.h"

namespace kiln::bench {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;

// CacheChunk stands for "some bytes": the request's data is the wanted number in decimal. The reply is made once for each
// number and then only referred to, so that this is as fast as gRPC lets a server be.
class PeerService final : public v1::Kiln::WithRawCallbackMethod_Stats<v1::Kiln::Service> {
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) override {
    grpc::Slice bytes;
    v1::CacheChunk wanted;
    const bool parsed = request->DumpToSingleSlice(&bytes).ok() && wanted.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size()));
    const grpc::Slice slice = ReplyOf(parsed ? std::stoul(wanted.data()) : 0);
    *reply = grpc::ByteBuffer(&slice, 1);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::Slice ReplyOf(std::size_t size) {
    std::lock_guard lock(mutex_);
    const auto [at, is_new] = replies_.try_emplace(size);
    if (is_new) {
      v1::CacheChunk reply;
      reply.mutable_data()->resize(size, 'p');
      at->second = grpc::Slice(reply.SerializeAsString());
    }
    return at->second;
  }

  std::mutex mutex_;
  std::map<std::size_t, grpc::Slice> replies_;
};

// The fields of /proc/PID/stat from the third on; none where the process has gone.
std::istringstream StatusOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t name = stat.rfind(')');
  return std::istringstream(name == stat.npos ? "" : stat.substr(name + 2));
}

[[noreturn]] void ServePeer(const std::string& address) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  PeerService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  const auto server = builder.BuildAndStart();
  server->Wait();
  std::_Exit(0);
}

}  // namespace

unsigned Setup::workers() const {
  const unsigned all = std::max(1u, std::thread::hardware_concurrency());
  return split ? static_cast<unsigned>(CPU_COUNT(&split->workers)) : all;
}

double Milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.at(values.size() / 2);
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);  // as long as one attempt may take
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

Daemon::Daemon(const Setup& setup, const std::string& state, const std::vector<std::string>& options)
    : address_("unix:" + (setup.scratch / "kiln.sock").string()) {
  std::vector<std::string> words = {(setup.bin / "kilnd").string(), "--listen=" + address_, "--ptxas=none",
                                    "--state-dir=" + (setup.scratch / state).string(), "--log-file=" + (setup.scratch / "kilnd.log").string()};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--workers=" + std::to_string(setup.workers()));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::optional<OnProcessors> there;
  if (setup.split) there.emplace(setup.split->workers);
  const auto began = Clock::now();
  if (::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ) != 0) {
    throw std::runtime_error("cannot run " + words[0] + "; build it first, or name the build folder in KILN_BUILD");
  }
  there.reset();
  for (;;) {
    grpc::ClientContext context;
    v1::CapabilitiesReply reply;
    if (Connect()->Capabilities(&context, {}, &reply).ok()) break;
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_ || Clock::now() - began > std::chrono::seconds(30)) {
      throw std::runtime_error("kilnd does not start; see " + (setup.scratch / "kilnd.log").string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  start_ms_ = Milliseconds(Clock::now() - began);
  if (setup.split) Move(pid_, setup.split->kilnd);  // the zygote, which forks the workers, stays
}

Daemon::~Daemon() {
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

std::unique_ptr<v1::Kiln::Stub> Daemon::Connect() const { return v1::Kiln::NewStub(Dial(address_)); }

v1::StatsReply Daemon::Stats() const {
  grpc::ClientContext context;
  v1::StatsReply reply;
  const grpc::Status status = Connect()->Stats(&context, {}, &reply);
  if (!status.ok()) throw std::runtime_error("kilnd: " + status.error_message());
  return reply;
}

std::size_t Daemon::Descriptors() const {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid_) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Whoever descends from it, those that ended and nobody has waited for among them.
std::size_t Daemon::Processes() const {
  std::multimap<pid_t, pid_t> children;
  for (const auto& folder : std::filesystem::directory_iterator("/proc")) {
    const std::string name = folder.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    char state = 0;
    pid_t parent = 0;
    if (StatusOf(std::stoi(name)) >> state >> parent) children.emplace(parent, std::stoi(name));
  }
  std::vector<pid_t> found = {pid_};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto child = first; child != last; ++child) found.push_back(child->second);
  }
  return found.size();
}

double Daemon::CpuSeconds() const {
  std::istringstream fields = StatusOf(pid_);
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double Daemon::ResidentMiB() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

std::string Daemon::build_id() const {
  grpc::ClientContext context;
  v1::CapabilitiesReply reply;
  const grpc::Status status = Connect()->Capabilities(&context, {}, &reply);
  if (!status.ok()) throw std::runtime_error(status.error_message());
  return reply.compiler();
}

Peer::Peer(const Setup& setup) : address_("unix:" + (setup.scratch / "peer.sock").string()), pid_(::fork()) {
  if (pid_ != 0) return;
  std::optional<OnProcessors> there;
  if (setup.split) there.emplace(setup.split->kilnd);
  ServePeer(address_);
}

Peer::~Peer() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::shared_ptr<grpc::Channel> Peer::Connect() const {
  auto channel = Dial(address_);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10))) {
    throw std::runtime_error("the peer does not start");
  }
  return channel;
}

std::size_t Peer::Call(grpc::Channel& channel, std::size_t bytes) {
  static const grpc::internal::RpcMethod method("/kiln.v1.Kiln/Stats", grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ClientContext context;
  v1::CacheChunk request;
  v1::CacheChunk reply;
  request.set_data(std::to_string(bytes));
  const grpc::Status status = grpc::internal::BlockingUnaryCall(&channel, method, &context, request, &reply);
  if (!status.ok()) throw std::runtime_error("the peer: " + status.error_message());
  return reply.data().size();
}

}  // namespace kiln::bench
