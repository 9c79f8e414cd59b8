// SPDX-License-Identifier: Apache-2.0
#include "server/pool/zygote.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kiln::server {
namespace {

using std::chrono::seconds;
constexpr seconds kStartPatience{30};  // a cold disk under LLVM's libraries
constexpr seconds kForkPatience{10};
constexpr seconds kRespawnPause{1};

// Variables that drivers, ptxas and sanitizers read. Workers compile strangers' programs, so they get nothing else of kilnd's environment,
// which may hold tokens and addresses.
constexpr std::array<std::string_view, 2> kKeptVariables = {"LD_LIBRARY_PATH=", "TMPDIR="};
constexpr std::array<std::string_view, 12> kKeptPrefixes = {
    "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "AMD_", "GPU_", "ASAN_", "LSAN_", "TSAN_", "UBSAN_", "KILN_FAKE_DRIVER_"};  // the last: of our tests

std::vector<char*> WorkerEnvironment() {
  std::vector<char*> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const auto begins = [text = std::string_view(*variable)](std::string_view name) { return text.starts_with(name); };
    if (std::ranges::any_of(kKeptVariables, begins) || std::ranges::any_of(kKeptPrefixes, begins)) kept.push_back(*variable);
  }
  kept.push_back(nullptr);
  return kept;
}

std::expected<pid_t, std::string> SpawnProcess(const ZygoteOptions& options, int socket) {
  std::vector<std::string> words = {options.executable.string(), "--zygote", fmt::format("--memory={}", options.worker_memory_bytes),
                                    fmt::format("--ptxas={}", options.ptxas)};
  if (options.user) words.push_back(fmt::format("--user={}", *options.user));
  if (!options.library_path.empty()) words.push_back(fmt::format("--library-path={}", options.library_path));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, kWorkerFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kWorkerFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // A group of its own: Ctrl-C at kilnd's terminal must not end the workers of requests that are being drained.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), WorkerEnvironment().data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return std::unexpected(
        fmt::format("cannot run the compile worker {}: {}. It belongs beside kilnd; name another with "
                    "--worker-executable.",
                    words[0], std::strerror(error)));
  }
  return pid;
}

struct Packet {
  ZygoteEvent event;
  UniqueFd socket;
  UniqueFd log;
};

std::optional<Packet> ReceivePacket(int control) {
  Packet packet{};
  iovec data{&packet.event, sizeof packet.event};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  ssize_t got;
  do {
    got = ::recvmsg(control, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof packet.event) return std::nullopt;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
    std::array<int, 2> fds;
    std::memcpy(fds.data(), CMSG_DATA(header), sizeof fds);
    packet.socket = UniqueFd(fds[0]);
    packet.log = UniqueFd(fds[1]);
  }
  packet.event.text.back() = '\0';
  return packet;
}

}  // namespace

struct Zygote::Peer {
  explicit Peer(cache::Mutex& zygotes) : mutex(zygotes) {}

  // Call this with the zygote's mutex held, which the analysis cannot see.
  void Locked() const KILN_ASSERT_HELD(mutex) {}
  bool IsDead() const {
    Locked();
    return dead;
  }
  bool NeverStarted() const {
    Locked();
    return dead && !ready;
  }

  cache::Mutex& mutex;
  pid_t pid = 0;
  std::uint64_t generation = 0;
  UniqueFd control;
  std::thread reader;
  bool ready KILN_GUARDED_BY(mutex) = false;
  bool dead KILN_GUARDED_BY(mutex) = false;
  std::vector<std::string> passes KILN_GUARDED_BY(mutex);
  std::string refusal KILN_GUARDED_BY(mutex);  // it must not be used: another build
  std::optional<std::expected<Child, std::string>> forked KILN_GUARDED_BY(mutex);
  std::unordered_map<pid_t, WorkerEnd> ends KILN_GUARDED_BY(mutex);
};

Zygote::Zygote(ZygoteOptions options, const cache::Clock& clock) : options_(std::move(options)), clock_(clock) {}

Zygote::~Zygote() {
  std::shared_ptr<Peer> peer;
  {
    cache::MutexLock lock(mutex_);
    stopping_ = true;
    peer = peer_;
  }
  changed_.NotifyAll();
  if (!peer) return;
  ::shutdown(peer->control.get(), SHUT_RDWR);  // the zygote ends, and its workers with it
  peer->reader.join();
}

std::expected<void, std::string> Zygote::Start() {
  cache::MutexLock lock(mutex_);
  return Spawn();
}

// Under mutex_.
std::expected<void, std::string> Zygote::Spawn() {
  std::array<int, 2> pair;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return std::unexpected(fmt::format("cannot make a socket for the compile workers: {}", std::strerror(errno)));
  }
  auto peer = std::make_shared<Peer>(mutex_);
  peer->control = UniqueFd(pair[0]);
  UniqueFd theirs(pair[1]);
  auto pid = SpawnProcess(options_, theirs.get());
  if (!pid) return std::unexpected(std::move(pid.error()));
  peer->pid = *pid;
  peer->generation = ++generation_;
  peer->reader = std::thread([this, peer] { ReadEvents(peer); });
  last_spawn_ = clock_.SteadyNow();
  if (peer_ && peer_->reader.joinable()) peer_->reader.detach();  // dead: it has nothing left to read
  peer_ = std::move(peer);
  return {};
}

void Zygote::ReadEvents(std::shared_ptr<Peer> peer) {
  while (auto packet = ReceivePacket(peer->control.get())) {
    cache::MutexLock lock(mutex_);
    Note(*peer, packet->event, std::move(packet->socket), std::move(packet->log));
    changed_.NotifyAll();
  }
  ::kill(peer->pid, SIGKILL);
  ::waitpid(peer->pid, nullptr, 0);
  cache::MutexLock lock(mutex_);
  peer->Locked();
  peer->dead = true;
  changed_.NotifyAll();
}

void Zygote::Note(Peer& peer, const ZygoteEvent& event, UniqueFd socket, UniqueFd log) {
  using Kind = ZygoteEvent::Kind;
  peer.Locked();
  if (event.kind == Kind::kReady) {
    peer.ready = true;
    std::istringstream lines(event.text.data());
    std::string build_id;
    std::getline(lines, build_id);
    std::string protections;
    std::getline(lines, protections);
    if (options_.on_ready) options_.on_ready(protections);
    for (std::string pass; std::getline(lines, pass);) peer.passes.push_back(pass);
    if (protections.starts_with(kUnconfined)) {
      peer.refusal = fmt::format("no worker is started: {}", std::string_view(protections).substr(kUnconfined.size()));
    }
    if (options_.build_id != build_id) {
      peer.refusal = fmt::format("{} is of build {}, and this kilnd of build {}; install both from one build.", options_.executable.string(),
                                 build_id, options_.build_id);
    }
  } else if (event.kind == Kind::kForked && socket && log) {
    peer.ends.erase(event.pid);  // of an earlier process of this number
    peer.forked.emplace(Child{event.pid, peer.generation, std::move(socket), std::move(log)});
  } else if (event.kind == Kind::kFailed) {
    peer.forked.emplace(
        std::unexpected(fmt::format("no worker can be started: {}. Free memory or processes, or lower --workers.", std::strerror(event.status))));
  } else if (event.kind == Kind::kExited) {
    peer.ends[event.pid] = {event.status, event.max_rss_kib};
  }
}

// Starts another zygote where the last one died.
std::expected<std::shared_ptr<Zygote::Peer>, std::string> Zygote::ReadyPeer() {
  const bool start_fails = peer_ && peer_->NeverStarted();
  const bool too_soon = start_fails && clock_.SteadyNow() < last_spawn_ + kRespawnPause;
  if ((!peer_ || peer_->IsDead()) && !too_soon && !stopping_) {
    if (auto spawned = Spawn(); !spawned) return std::unexpected(std::move(spawned.error()));
  }
  const std::shared_ptr<Peer> peer = peer_;
  peer->Locked();
  const bool told =
      changed_.WaitFor(mutex_, kStartPatience, [&]() KILN_REQUIRES(mutex_, peer->mutex) { return stopping_ || peer->ready || peer->dead; });
  if (stopping_) return std::unexpected("kilnd is shutting down");
  if (!told || peer->dead) {
    return std::unexpected(fmt::format("the compile worker {} {}; run it by hand to see why.", options_.executable.string(),
                                       told ? "ends as soon as it starts" : "does not start"));
  }
  if (!peer->refusal.empty()) return std::unexpected(peer->refusal);
  return peer;
}

// For a worker. Nothing where the zygote does not answer.
std::optional<std::expected<Zygote::Child, std::string>> Zygote::Ask(Peer& zygote, WorkerRole role, std::string_view device) {
  zygote.Locked();
  ZygoteCommand command{ZygoteCommand::Kind::kFork, 0, role, {}};
  device.copy(command.device.data(), command.device.size() - 1);
  ::send(zygote.control.get(), &command, sizeof command, MSG_NOSIGNAL);
  changed_.WaitFor(mutex_, kForkPatience, [&]() KILN_REQUIRES(mutex_, zygote.mutex) { return stopping_ || zygote.dead || zygote.forked; });
  return std::exchange(zygote.forked, std::nullopt);
}

std::expected<Zygote::Child, std::string> Zygote::Fork(WorkerRole role, std::string_view device) {
  cache::MutexLock one_at_a_time(forking_);
  cache::MutexLock lock(mutex_);
  for (int attempt = 0;; ++attempt) {
    auto peer = ReadyPeer();
    if (!peer) return std::unexpected(std::move(peer.error()));
    Peer& zygote = **peer;
    zygote.Locked();
    if (auto forked = Ask(zygote, role, device)) return std::move(*forked);
    if (!zygote.dead && !stopping_) ::shutdown(zygote.control.get(), SHUT_RDWR);  // it hangs: replace it
    if (stopping_ || attempt > 0) return std::unexpected("the compile workers' zygote does not answer; see kilnd's log");
  }
}

void Zygote::Kill(const Child& child) {
  cache::MutexLock lock(mutex_);
  if (!peer_ || peer_->generation != child.generation) return;
  const ZygoteCommand command{ZygoteCommand::Kind::kKill, child.pid, {}, {}};
  ::send(peer_->control.get(), &command, sizeof command, MSG_NOSIGNAL);
}

std::optional<WorkerEnd> Zygote::WaitForEnd(const Child& child, std::chrono::milliseconds patience) {
  cache::MutexLock lock(mutex_);
  const std::shared_ptr<Peer> peer = peer_;
  if (!peer || peer->generation != child.generation) return std::nullopt;
  peer->Locked();
  changed_.WaitFor(mutex_, patience, [&]() KILN_REQUIRES(peer->mutex) { return peer->dead || peer->ends.contains(child.pid); });
  const auto node = peer->ends.extract(child.pid);
  if (node.empty()) return std::nullopt;
  return node.mapped();
}

bool Zygote::Lost(const Child& child) {
  cache::MutexLock lock(mutex_);
  return !peer_ || peer_->generation != child.generation || peer_->IsDead();
}

std::vector<std::string> Zygote::Passes() {
  cache::MutexLock lock(mutex_);
  const auto peer = ReadyPeer();
  if (!peer) return {};
  (*peer)->Locked();
  return (*peer)->passes;
}

}  // namespace kiln::server
