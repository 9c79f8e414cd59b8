// SPDX-License-Identifier: Apache-2.0
#include "server/pool/ptxas.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "clients/common/unique_fd.h"
#include "server/system/deadline.h"

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kPause{1};

bool Readable(int fd, const Deadline& until) {
  pollfd one{fd, POLLIN, 0};
  return !until.IsOver() && ::poll(&one, 1, until.PollTimeout()) > 0;
}

// A process group of its own, whose output goes to `out`; 0 where it cannot be started.
pid_t StartAlone(const std::string& path, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string program = path;
  std::string flag = "--version";
  const std::array<char*, 3> argv = {program.data(), flag.data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : 0;
}

// Up to its end; false where that does not come in time.
bool ReadAll(int fd, const Deadline& until, std::string& text) {
  constexpr std::size_t kMost = 65536;
  std::array<char, 4096> chunk;
  while (Readable(fd, until) && text.size() < kMost) {
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got <= 0) return got == 0;
    text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  return false;
}

// What `path --version` prints; nothing when it cannot be run, or does not end until then.
std::string Ask(const std::string& path, const Deadline& until) {
  std::array<int, 2> pipe;
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return {};
  const UniqueFd out(pipe[0]);
  UniqueFd in(pipe[1]);
  const pid_t pid = StartAlone(path, in.get());
  if (pid == 0) return {};
  in.Reset();
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // none before Linux 5.3: its end follows that of its output
  std::string text;
  if (!ReadAll(out.get(), until, text) || (process && !Readable(process.get(), until))) ::kill(-pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : std::string();
}

std::string LastLine(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));
}

}  // namespace

Ptxas::Identity Ptxas::Look() const {
  struct stat status{};
  if (::stat(path_.c_str(), &status) != 0) return {};
  return {static_cast<std::int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_nsec};
}

std::string Ptxas::Version() {
  if (path_.empty()) return {};
  cache::MutexLock lock(mutex_);
  Identity now;
  for (;;) {
    now = Look();
    const bool asks_again = version_.empty() && clock_.SteadyNow() - last_try_ >= kPause;
    if (asked_ == now && (asking_ || !asks_again)) return version_;
    if (!asking_) break;
    answered_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return !asking_; });
  }
  asking_ = true;
  lock.Unlock();
  std::string version = LastLine(Ask(path_.string(), Deadline(clock_, patience_)));
  lock.Lock();
  asked_ = now;
  last_try_ = clock_.SteadyNow();
  asking_ = false;
  version_ = std::move(version);
  answered_.NotifyAll();
  return version_;
}

}  // namespace kiln::server
