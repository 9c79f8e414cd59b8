// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/module_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/compile.h"
#include "server/worker/sandbox.h"
#include "server/worker/worker_protocol.h"
#include "tests/fuzz/module_request.h"

namespace kiln::fuzz {
namespace {

constexpr double kMostWaiting =
    12;  // times the limit that a module may take by the clock: a busy machine delays it, a process that sleeps never ends

double Now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return double(time.tv_sec) + double(time.tv_nsec) / 1e9;
}

std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return text.substr(0, 600);
}

void Note(char (&to)[64], std::string_view what) {
  const size_t length = std::min(what.size(), sizeof to - 1);
  std::memcpy(to, what.data(), length);
  to[length] = 0;
}

[[noreturn]] void EndOutOfMemory() { std::_Exit(server::kExitOutOfMemory); }

Verdict VerdictOf(uint64_t seed, const v1::WorkerResult& result) {
  if (result.has_artifact()) return {.seed = seed, .status = "ok", .text = {}};
  if (!result.unavailable().empty()) return {.seed = seed, .status = "unavailable", .text = OneLine(result.unavailable())};
  Verdict verdict{.seed = seed, .status = "internal", .text = "no artifact and no error"};
  for (const v1::Diagnostic& d : result.diagnostics()) {
    if (d.severity() != v1::Diagnostic::ERROR) continue;
    verdict.text = OneLine(d.message());
    verdict.status = d.kind() == v1::Diagnostic::INVALID ? "invalid" : d.kind() == v1::Diagnostic::UNSUPPORTED ? "unsupported" : "internal";
    if (verdict.status == "internal") break;
  }
  return verdict;
}

// The three stages that took longest, by the clock. A stage that ran more than once counts as one.
std::string StagesOf(const v1::WorkerResult& result) {
  std::map<std::string, double> taken;
  for (const v1::Timing& timing : result.timings()) taken[timing.stage()] += timing.milliseconds() / 1000;
  std::vector<std::pair<double, std::string>> longest;
  for (const auto& [stage, seconds] : taken) longest.emplace_back(seconds, stage);
  std::ranges::sort(longest, std::greater());
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(3, longest.size()); ++i)
    text += fmt::format("{}{} {:.2f}", i == 0 ? "" : ", ", longest[i].second, longest[i].first);
  return text;
}

Verdict Compile(uint64_t seed, const Limits& limits, const compiler::Hooks& hooks, const std::string& llvm) {
  v1::CompileRequest request = RequestOf(seed);
  if (!request.target().starts_with(limits.among)) return {.seed = seed, .status = "skipped", .text = {}};
  if (!limits.target.empty()) request.set_target(limits.target);
  if (!llvm.empty()) request.mutable_explain()->set_llvm(true);
  const double start = Now(CLOCK_PROCESS_CPUTIME_ID);
  const v1::WorkerResult result = compiler::Compile(request, hooks);
  Verdict verdict = VerdictOf(seed, result);
  verdict.seconds = Now(CLOCK_PROCESS_CPUTIME_ID) - start;
  verdict.stages = StagesOf(result);
  if (std::ofstream file(llvm); !llvm.empty())
    for (const v1::PassDump& dump : result.dumps()) file << "; " << dump.pass() << '\n' << dump.text();
  return verdict;
}

}  // namespace

struct Worker::Shared {
  std::atomic<uint64_t> seed;
  std::atomic<bool> busy, stopped;
  std::atomic<double> since, since_processor;
  char stage[64];
};

Verdict CompileOne(uint64_t seed, const Limits& limits, const std::string& llvm) { return Compile(seed, limits, {}, llvm); }

Worker::Worker(uint64_t first, uint64_t end, const Limits& limits) : limits_(limits), next_(first), end_(end) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int ends[2];
  if (memory == MAP_FAILED || ::pipe2(ends, O_CLOEXEC) != 0) std::perror("compile_modules"), std::exit(2);
  shared_ = new (memory) Shared{};
  pid_ = ::fork();
  if (pid_ < 0) std::perror("fork"), std::exit(2);
  if (pid_ == 0) {
    ::close(ends[0]);
    Serve(ends[1]);
  }
  ::close(ends[1]);
  fd_ = ends[0];
}

Worker::Worker(Worker&& other) noexcept
    : limits_(std::move(other.limits_)),
      next_(other.next_),
      end_(other.end_),
      shared_(std::exchange(other.shared_, nullptr)),
      pid_(std::exchange(other.pid_, -1)),
      fd_(std::exchange(other.fd_, -1)),
      overdue_(other.overdue_),
      seconds_(other.seconds_),
      peak_kib_(other.peak_kib_),
      pending_(std::move(other.pending_)) {}

Worker::~Worker() {
  if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  if (fd_ >= 0) ::close(fd_);
  if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
}

void Worker::Serve(int fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (!server::kSanitized) server::LimitMemory(limits_.memory);
  std::set_new_handler(EndOutOfMemory);
  const compiler::Hooks hooks{.on_stage = [&](std::string_view stage) { Note(shared_->stage, stage); }};
  for (uint64_t seed = next_; seed < end_ && !shared_->stopped; ++seed) {
    shared_->seed = seed;
    Note(shared_->stage, "decode");
    shared_->since = Now(CLOCK_MONOTONIC);
    shared_->since_processor = Now(CLOCK_PROCESS_CPUTIME_ID);
    shared_->busy = true;
    const Verdict verdict = Compile(seed, limits_, hooks, {});
    const std::string line = fmt::format("{}\t{}\t{}\t{}\t{}\n", seed, verdict.status, verdict.seconds, verdict.stages, verdict.text);
    for (size_t done = 0; done < line.size();) {
      const ssize_t written = ::write(fd, line.data() + done, line.size() - done);
      if (written < 0 && errno != EINTR) std::_Exit(3);
      if (written > 0) done += size_t(written);
    }
    shared_->busy = false;
  }
  std::_Exit(0);
}

bool Worker::Read(const std::function<void(const Verdict&)>& take) {
  char buffer[65536];
  const ssize_t read = ::read(fd_, buffer, sizeof buffer);
  if (read < 0 && errno == EINTR) return true;
  if (read > 0) pending_.append(buffer, size_t(read));
  for (size_t end; (end = pending_.find('\n')) != std::string::npos; pending_.erase(0, end + 1)) {
    std::istringstream line(pending_.substr(0, end));
    Verdict verdict;
    line >> verdict.seed >> verdict.status >> verdict.seconds;
    line.get();
    std::getline(line, verdict.stages, '\t');
    std::getline(line, verdict.text);
    next_ = verdict.seed + 1;
    take(verdict);
  }
  return read > 0;
}

double Worker::ProcessorSeconds() const {
  clockid_t clock;
  return ::clock_getcpuclockid(pid_, &clock) == 0 ? Now(clock) - shared_->since_processor : 0;
}

void Worker::Stop() { shared_->stopped = true; }

void Worker::Watch() {
  if (!shared_->busy || overdue_) return;
  const double used = ProcessorSeconds(), waited = Now(CLOCK_MONOTONIC) - shared_->since;
  if (used <= limits_.seconds && waited <= kMostWaiting * limits_.seconds) return;
  overdue_ = true;
  seconds_ = used;
  ::kill(pid_, SIGKILL);
}

std::optional<Verdict> Worker::Bury() {
  int status = 0;
  rusage used{};
  ::wait4(pid_, &status, 0, &used);
  pid_ = -1;
  peak_kib_ = used.ru_maxrss;
  if (next_ >= end_ || (shared_->stopped && !shared_->busy && WIFEXITED(status) && WEXITSTATUS(status) == 0)) return std::nullopt;
  Verdict verdict{.seed = next_, .status = "crash", .text = {}, .seconds = seconds_};
  const std::string stage = shared_->stage;
  if (overdue_) {
    verdict.status = "hang", verdict.text = "in " + stage;
  } else if (WIFEXITED(status) && WEXITSTATUS(status) == server::kExitOutOfMemory) {
    verdict.status = "memory", verdict.text = "in " + stage;
  } else if (WIFSIGNALED(status)) {
    verdict.text = fmt::format("{} in {}", ::strsignal(WTERMSIG(status)), stage);
  } else {
    verdict.text = fmt::format("exit {} in {}", WEXITSTATUS(status), stage);
  }
  ++next_;
  return verdict;
}

}  // namespace kiln::fuzz
