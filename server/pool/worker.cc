// SPDX-License-Identifier: Apache-2.0
#include "server/pool/worker.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "server/worker/worker_protocol.h"

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kEndPatience{2};

std::string Describe(const WorkerEnd& end) {
  if (WIFSIGNALED(end.status)) {
    const int signal = WTERMSIG(end.status);
    const char* name = ::sigabbrev_np(signal);
    const std::string cause = fmt::format("killed by SIG{}", name != nullptr ? name : std::to_string(signal).c_str());
    if (signal != SIGKILL) return cause;
    return fmt::format("{}: the host was out of memory, or somebody killed it (it had {} MiB)", cause, end.max_rss_kib / 1024);
  }
  if (WEXITSTATUS(end.status) == kExitOutOfMemory) return "out of memory";
  return fmt::format("exited with status {}", WEXITSTATUS(end.status));
}

std::string TailOf(int log) {
  constexpr off_t kTail = 4096;
  const off_t end = ::lseek(log, 0, SEEK_CUR);
  if (end <= 0) return {};
  std::string tail(static_cast<std::size_t>(std::min(end, kTail)), '\0');
  const ssize_t got = ::pread(log, tail.data(), tail.size(), end - static_cast<off_t>(tail.size()));
  tail.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return tail;
}

}  // namespace

Worker::Worker(Zygote& zygote, Zygote::Child child) : zygote_(&zygote), child_(std::move(child)), channel_(std::move(child_.socket)) {}

std::expected<Worker, std::string> Worker::Start(Zygote& zygote, WorkerRole role, std::string_view device) {
  auto child = zygote.Fork(role, device);
  if (!child) return std::unexpected(std::move(child.error()));
  return Worker(zygote, std::move(*child));
}

unsigned Worker::BeginJob() {
  ::lseek(child_.log.get(), 0, SEEK_SET);
  return jobs_++;
}

Worker::Death Worker::Bury(Channel::End end) {
  using End = Channel::End;
  if (end != End::kClosed) zygote_->Kill(child_);
  const auto ended = zygote_->WaitForEnd(child_, kEndPatience);
  // A dying zygote takes its workers along before its own end is visible, so only the wait above tells the two cases apart.
  Death death{.with_zygote = end == End::kClosed && !ended && zygote_->Lost(child_)};
  death.from_outside = end == End::kClosed && ended && WIFSIGNALED(ended->status) && WTERMSIG(ended->status) == SIGKILL;
  death.said = TailOf(child_.log.get());
  switch (end) {
    case End::kWoken: death.cause = "cancelled"; break;
    case End::kDeadline: death.cause = "deadline"; break;
    case End::kInvalid: death.cause = "sent what is no message"; break;
    default: death.cause = ended ? Describe(*ended) : "ended with its zygote"; break;
  }
  return death;
}

void Worker::Retire(std::optional<Worker>& worker) {
  if (!worker) return;
  Zygote& zygote = *worker->zygote_;
  const Zygote::Child gone{.pid = worker->child_.pid, .generation = worker->child_.generation};
  worker.reset();
  if (zygote.WaitForEnd(gone, kEndPatience)) return;
  zygote.Kill(gone);  // it no longer does what it was made to
  zygote.WaitForEnd(gone, kEndPatience);
}

}  // namespace kiln::server
