// SPDX-License-Identifier: Apache-2.0
#include "server/worker/worker_process.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "clients/common/unique_fd.h"
#include "server/system/thread_niceness.h"
#include "server/worker/channel.h"
#include "server/worker/sandbox.h"
#include "server/worker/worker_protocol.h"

namespace kiln::server {
namespace {

struct Arguments {
  bool zygote = false;
  bool worker = false;
  SandboxOptions sandbox;
  std::string ptxas;
};

template <class Number>
bool ParseNumber(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// Where this executable and what belongs to it are installed.
std::filesystem::path Prefix() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path();
}

bool Parse(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--zygote") {
      out.zygote = true;
    } else if (arg == "--worker") {
      out.worker = true;
    } else if (arg.starts_with("--memory=")) {
      if (!ParseNumber(arg.substr(9), out.sandbox.memory_bytes)) return false;
    } else if (arg.starts_with("--user=")) {
      if (!ParseNumber(arg.substr(7), out.sandbox.user.emplace())) return false;
    } else if (arg.starts_with("--library-path=")) {
      out.sandbox.library_path = arg.substr(15);
    } else if (arg.starts_with("--ptxas=")) {
      out.ptxas = arg.substr(8);
      out.sandbox.program = out.ptxas;
    } else {
      return false;
    }
  }
  out.sandbox.readable = {Prefix()};
  return out.zygote != out.worker;
}

[[noreturn]] void EndOutOfMemory() {
  constexpr std::string_view kMessage = "the worker's memory limit is reached\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  std::_Exit(kExitOutOfMemory);
}

void RunJob(Channel& channel, const v1::WorkerJob& job, const WorkerProgram& program, const std::string& ptxas) {
  const auto tell_stage = [&](std::string_view stage) {
    v1::WorkerEvent event;
    event.set_id(job.id());
    event.set_started(std::string(stage));
    channel.Send(event, {});
  };
  v1::WorkerEvent done;
  done.set_id(job.id());
  *done.mutable_result() = program.compile(job, {.on_stage = tell_stage, .cancelled = [&] { return channel.PeerGone(); }, .ptxas = ptxas});
  channel.Send(done, {});
}

// What a worker is forked for.
struct WorkerTask {
  WorkerRole role = WorkerRole::kCompile;
  std::string device = {};  // that a GPU's worker opens
};

// Each compile frees what the next one allocates again: so much stays with the process, faulted in.
void KeepFreedMemory() {
  constexpr int kMostMapped = 32 << 20;  // glibc takes no larger threshold
  constexpr int kKept = 64 << 20, kGrowth = 2 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kMostMapped);
  ::mallopt(M_TRIM_THRESHOLD, kKept);
  ::mallopt(M_TOP_PAD, kGrowth);
}

int ServeCompiles(Channel& channel, const WorkerProgram& program, const Arguments& arguments) {
  KeepFreedMemory();
  v1::WorkerJob job;
  while (channel.Receive(job, {}) == Channel::End::kOk) RunJob(channel, job, program, arguments.ptxas);
  return 0;
}

int ServeDevice(Channel& channel, WorkerProgram::Device& device, const std::string& protections) {
  v1::DeviceJob job;
  while (channel.Receive(job, {}) == Channel::End::kOk) {
    const UniqueFd memory = channel.TakeDescriptor();
    const auto tell_stage = [&](std::string_view stage) {
      v1::DeviceEvent event;
      event.set_id(job.id());
      event.set_started(std::string(stage));
      channel.Send(event, {});
    };
    v1::DeviceEvent done;
    done.set_id(job.id());
    tell_stage(job.list() ? "list" : job.has_sense() ? "sense" : "load");
    if (job.list()) {
      *done.mutable_devices() = device.List();
      done.mutable_devices()->set_protections(protections);
      done.mutable_devices()->set_trouble(device.Trouble());
    } else if (job.has_sense()) {
      *done.mutable_states() = device.Sense(job.sense());
    } else if (job.has_measure()) {
      *done.mutable_result() = device.Measure(job.measure(), memory.get(), tell_stage);
    } else {
      *done.mutable_result() = device.Run(job.run(), memory.get(), tell_stage);
    }
    channel.Send(done, {});
    if (done.result().unusable()) return 0;
  }
  return 0;
}

// What is in force when the first job is read.
std::expected<Protections, std::string> StartDriver(Channel& channel, const WorkerTask& task, WorkerProgram::Device& device, const Sandbox& sandbox,
                                                    const Protections& entered) {
  v1::DeviceEvent begins;
  begins.set_started("driver");
  channel.Send(begins, {});
  device.Start(task.device);
  if (task.role == WorkerRole::kLooseGpu) return entered;
  return sandbox.Close(entered);
}

int ServeJobs(UniqueFd socket, const WorkerTask& task, const WorkerProgram& program, const Arguments& arguments, const Sandbox& sandbox) {
  std::set_new_handler(EndOutOfMemory);
  const bool compiles = task.role == WorkerRole::kCompile;
  Channel channel(std::move(socket), compiles ? Channel::Descriptors::kRefuse : Channel::Descriptors::kTake);
  auto entered = sandbox.Enter(task.role);
  if (entered && compiles) return ServeCompiles(channel, program, arguments);
  const auto device = entered && program.make_device ? program.make_device(task.role) : nullptr;
  if (entered && device && IsGpu(task.role)) entered = StartDriver(channel, task, *device, sandbox, *entered);
  if (!entered) std::fprintf(stderr, "kiln-worker: %s\n", entered.error().c_str());
  return entered && device ? ServeDevice(channel, *device, entered->Text()) : 1;
}

void SendEvent(int control, const ZygoteEvent& event, std::array<int, 2> fds = {-1, -1}) {
  iovec data{const_cast<ZygoteEvent*>(&event), sizeof event};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fds)> space{};
  if (fds[0] >= 0) {
    message.msg_control = space.data();
    message.msg_controllen = space.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
  }
  while (::sendmsg(control, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

// What is in force in a worker: asked of a process that enters the sandbox and ends.
std::string ProtectionsOf(const Sandbox& sandbox) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto entered = sandbox.Enter(WorkerRole::kCompile);
    const std::string text = entered ? entered->Text() : std::string(kUnconfined) + entered.error();
    [[maybe_unused]] const ssize_t written = ::write(in.get(), text.data(), text.size());
    ::_exit(0);
  }
  in.Reset();
  std::array<char, 512> text;
  const ssize_t got = ::read(out.get(), text.data(), text.size());
  ::waitpid(pid, nullptr, 0);
  return std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
}

// What a worker says on stderr, for the log and the reproducer. Bounded: it is sealed at its size.
UniqueFd MakeStderr() {
  constexpr off_t kBytes = 64 << 10;
  UniqueFd file(::memfd_create("kiln-worker-stderr", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), kBytes) != 0) return UniqueFd();
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK);
  return file;
}

class ForkServer {
 public:
  ForkServer(const WorkerProgram& program, const Arguments& arguments, const Sandbox& sandbox)
      : program_(program), arguments_(arguments), sandbox_(sandbox) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &old_mask_);
    child_ended_ = UniqueFd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  // Returns in the zygote when kilnd is gone, and in each worker when that has ended.
  int Run() {
    Greet();
    for (;;) {
      std::array<pollfd, 2> fds = {pollfd{kWorkerFd, POLLIN, 0}, pollfd{child_ended_.get(), POLLIN, 0}};
      if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return 1;
      if (fds[1].revents != 0) Reap();
      if (fds[0].revents == 0) continue;
      ZygoteCommand command;
      const ssize_t got = ::recv(kWorkerFd, &command, sizeof command, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got != sizeof command) return 0;
      if (command.kind == ZygoteCommand::Kind::kKill) Kill(command.pid);
      if (command.kind == ZygoteCommand::Kind::kFork) {
        command.device.back() = '\0';
        const WorkerTask task{command.role, command.device.data()};
        if (UniqueFd socket = Fork()) return ServeJobs(std::move(socket), task, program_, arguments_, sandbox_);
      }
    }
  }

 private:
  void Greet() const {
    ZygoteEvent ready{.kind = ZygoteEvent::Kind::kReady};
    std::string text(program_.build_id);
    text.append("\n").append(ProtectionsOf(sandbox_));
    for (const std::string_view pass : program_.passes) text.append("\n").append(pass);
    text.copy(ready.text.data(), ready.text.size() - 1);
    SendEvent(kWorkerFd, ready);
  }

  void Kill(pid_t pid) const {
    if (children_.contains(pid)) ::kill(-pid, SIGKILL);  // its group: a ptxas that it started ends with it
  }

  void Reap() {
    signalfd_siginfo ignored;
    while (::read(child_ended_.get(), &ignored, sizeof ignored) > 0) {
    }
    siginfo_t ended{};
    while (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
      const pid_t pid = std::exchange(ended.si_pid, 0);
      ::kill(-pid, SIGKILL);  // what it left behind; before its number can be another's
      int status = 0;
      rusage usage{};
      ::wait4(pid, &status, 0, &usage);
      children_.erase(pid);
      SendEvent(kWorkerFd,
                {.kind = ZygoteEvent::Kind::kExited, .pid = pid, .status = status, .max_rss_kib = static_cast<std::uint32_t>(usage.ru_maxrss)});
    }
  }

  // The worker's socket in the worker; nothing in the zygote.
  UniqueFd Fork() {
    std::array<int, 2> pair;
    UniqueFd log = MakeStderr();
    if (!log || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
      SendEvent(kWorkerFd, {.kind = ZygoteEvent::Kind::kFailed, .status = errno});
      return UniqueFd();
    }
    UniqueFd ours(pair[0]);
    UniqueFd theirs(pair[1]);
    const pid_t pid = ::fork();
    if (pid == 0) return EnterWorker(std::move(theirs), log.get());
    if (pid < 0) {
      SendEvent(kWorkerFd, {.kind = ZygoteEvent::Kind::kFailed, .status = errno});
      return UniqueFd();
    }
    ::setpgid(pid, pid);
    children_.insert(pid);
    SendEvent(kWorkerFd, {.kind = ZygoteEvent::Kind::kForked, .pid = pid}, {ours.get(), log.get()});
    return UniqueFd();
  }

  UniqueFd EnterWorker(UniqueFd socket, int log) {
    ::setpgid(0, 0);
    ::close(kWorkerFd);
    child_ended_.Reset();
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    YieldAsWorker();
    return socket;
  }

  const WorkerProgram& program_;
  const Arguments& arguments_;
  const Sandbox& sandbox_;
  sigset_t old_mask_{};
  UniqueFd child_ended_;
  std::set<pid_t> children_;
};

}  // namespace

int WorkerMain(int argc, char** argv, const WorkerProgram& program) {
  Arguments arguments;
  if (!Parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "kiln-worker is started by kilnd and by `kiln compile --local`, with a socket at descriptor %d.\n"
                 "Run `kiln serve` to start the daemon.\n",
                 kWorkerFd);
    return 2;
  }
  ::fcntl(kWorkerFd, F_SETFD, FD_CLOEXEC);
  program.initialize();
  arguments.sandbox.parent = arguments.worker ? ::getppid() : ::getpid();
  const Sandbox sandbox(arguments.sandbox);
  if (arguments.worker) return ServeJobs(UniqueFd(kWorkerFd), {}, program, arguments, sandbox);
  return ForkServer(program, arguments, sandbox).Run();
}

}  // namespace kiln::server
