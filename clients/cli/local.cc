// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/local.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "clients/common/unique_fd.h"
#include "clients/cpp/convert.h"
#include "ir/codec/decode.h"
#include "server/system/system_clock.h"
#include "server/worker/channel.h"
#include "server/worker/worker_protocol.h"

namespace kiln::cli {
namespace {

using server::Channel;

Error InternalError(std::string message) { return {.code = ErrorCode::kInternal, .message = std::move(message)}; }

// A module that cannot be read is the worker's to refuse.
bool HasFunctions(std::string_view bytes) {
  ir::Diagnostics ignored;
  const auto module = ir::DecodeModule(bytes, ignored);
  return module && !module->functions.empty();
}

struct Worker {
  pid_t pid = 0;
  UniqueFd said;  // its stderr
  Channel channel;
};

std::expected<Worker, Error> Spawn(std::string executable) {
  std::array<int, 2> pair;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return std::unexpected(InternalError(fmt::format("no socket for the compile worker: {}", ::strerror(errno))));
  }
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  UniqueFd said(::memfd_create("kiln-worker-stderr", MFD_CLOEXEC));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, said.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, said.get(), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), server::kWorkerFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, server::kWorkerFd + 1);
  std::string flag = "--worker";
  const std::array<char*, 3> argv = {executable.data(), flag.data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, executable.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return std::unexpected(Error{.code = ErrorCode::kUnavailable,
                                 .message = fmt::format("cannot run {}: {}; name another with --worker", executable, ::strerror(error))});
  }
  return Worker{pid, std::move(said), Channel(std::move(ours))};
}

std::string Tail(int fd) {
  std::array<char, 4096> text;
  const off_t size = ::lseek(fd, 0, SEEK_END);
  const ssize_t got = ::pread(fd, text.data(), text.size(), std::max<off_t>(0, size - static_cast<off_t>(text.size())));
  return std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
}

// Ends the worker and says how it ended by itself.
std::string Bury(Worker& worker, Channel::End end) {
  int status = 0;
  if (end != Channel::End::kClosed) ::kill(worker.pid, SIGKILL);
  ::waitpid(worker.pid, &status, 0);
  if (end == Channel::End::kDeadline) return "it took longer than the time given (--timeout)";
  if (end == Channel::End::kInvalid) return "the worker sent what is no message";
  if (WIFSIGNALED(status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(status));
    return fmt::format("killed by SIG{}", name == nullptr ? "?" : name);
  }
  if (WEXITSTATUS(status) == server::kExitOutOfMemory) return "out of memory";
  return fmt::format("the worker exited with status {}", WEXITSTATUS(status));
}

std::expected<Compiled, Error> ToCompiled(v1::WorkerResult result) {
  const bool refused = std::ranges::any_of(result.diagnostics(), [](const v1::Diagnostic& d) { return d.severity() == v1::Diagnostic::ERROR; });
  if (result.has_artifact() && !refused) {
    v1::CompileReply reply;
    reply.mutable_artifact()->Swap(result.mutable_artifact());
    reply.mutable_diagnostics()->Swap(result.mutable_diagnostics());
    reply.mutable_timings()->Swap(result.mutable_timings());
    reply.mutable_dumps()->Swap(result.mutable_dumps());
    reply.set_origin(v1::COMPILED);
    return FromProto(std::move(reply));
  }
  if (!result.unavailable().empty()) {
    return std::unexpected(Error{.code = ErrorCode::kUnavailable, .message = result.unavailable()});
  }
  const auto has = [&](v1::Diagnostic::Kind kind) {
    return std::ranges::any_of(result.diagnostics(),
                               [&](const v1::Diagnostic& d) { return d.kind() == kind && d.severity() == v1::Diagnostic::ERROR; });
  };
  Error error{.code = has(v1::Diagnostic::INVALID) ? ErrorCode::kInvalid : ErrorCode::kUnsupported};
  if (result.diagnostics().empty() || has(v1::Diagnostic::INTERNAL)) error.code = ErrorCode::kInternal;
  std::ranges::stable_sort(*result.mutable_diagnostics(), {}, &v1::Diagnostic::severity);  // errors first
  error.message = result.diagnostics().empty() ? "the compiler gave neither an artifact nor a diagnostic" : result.diagnostics(0).message();
  for (const v1::Diagnostic& diagnostic : result.diagnostics()) error.diagnostics.push_back(FromProto(diagnostic));
  return std::unexpected(std::move(error));
}

}  // namespace

std::string Beside(const char* name) {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name).string();
}

std::expected<Compiled, Error> CompileLocally(const CompileRequest& request, const LocalOptions& options, const Client::OnStage& on_stage) {
  if (!options.raw && HasFunctions(request.module)) {
    return std::unexpected(Error{.code = ErrorCode::kRefused,
                                 .message = "the program has functions in other languages, which run as they are: compile it with --raw if you "
                                            "trust them"});
  }
  auto worker = Spawn(options.worker.empty() ? Beside("kiln-worker") : options.worker);
  if (!worker) return std::unexpected(std::move(worker.error()));
  const server::SystemClock clock;
  const Channel::Wait wait{.until = server::Deadline(clock, options.timeout)};
  v1::WorkerJob job;
  *job.mutable_request() = ToProto(request);
  job.set_timeout_seconds(std::chrono::duration<double>(options.timeout).count());

  std::string stage;
  Channel::End end = worker->channel.Send(job, wait);
  while (end == Channel::End::kOk) {
    v1::WorkerEvent event;
    end = worker->channel.Receive(event, wait);
    if (end != Channel::End::kOk) break;
    if (event.has_result()) {
      ::kill(worker->pid, SIGKILL);
      ::waitpid(worker->pid, nullptr, 0);
      return ToCompiled(std::move(*event.mutable_result()));
    }
    stage = event.started();
    if (on_stage) on_stage(stage);
  }
  const std::string cause = Bury(*worker, end);
  std::string message = fmt::format("the compiler failed: {}{}", cause, stage.empty() ? "" : " in stage " + stage);
  if (const std::string said = Tail(worker->said.get()); !said.empty()) message += "\n" + said;
  return std::unexpected(InternalError(std::move(message)));
}

}  // namespace kiln::cli
