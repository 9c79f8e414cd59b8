// SPDX-License-Identifier: Apache-2.0
#include "server/ptxas.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <string_view>

#include "server/unique_fd.h"

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kPause{1};

bool Readable(int fd, std::chrono::steady_clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  pollfd one{fd, POLLIN, 0};
  return left.count() > 0 && ::poll(&one, 1, static_cast<int>(left.count())) > 0;
}

// What `path --version` prints; nothing when it cannot be run, or does not end until then.
std::string Ask(const std::string& path, std::chrono::steady_clock::time_point until) {
  std::array<int, 2> pipe;
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return {};
  UniqueFd out(pipe[0]);
  UniqueFd in(pipe[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  std::string program = path;
  std::string flag = "--version";
  const std::array<char*, 3> argv = {program.data(), flag.data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return {};
  in.Reset();
  std::string text;
  std::array<char, 4096> chunk;
  ssize_t got = -1;
  while (Readable(out.get(), until) && (got = ::read(out.get(), chunk.data(), chunk.size())) > 0 && text.size() < 65536) {
    text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  if (got != 0) ::kill(pid, SIGKILL);
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
  std::unique_lock lock(mutex_);
  const bool first = !asked_;
  if (first) answered_.wait(lock, [&] { return !asking_; });
  const Identity now = Look();
  const bool again = version_.empty() && Clock::now() - last_try_ >= kPause;
  if (asking_ || (asked_ == now && !again)) return version_;
  asking_ = true;
  lock.unlock();
  std::string version = LastLine(Ask(path_.string(), Clock::now() + patience_));
  lock.lock();
  asked_ = now;
  last_try_ = Clock::now();
  asking_ = false;
  version_ = std::move(version);
  answered_.notify_all();
  return version_;
}

}  // namespace kiln::server
