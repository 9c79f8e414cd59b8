// SPDX-License-Identifier: Apache-2.0
#include "server/worker_pool.h"

#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "server/channel.h"
#include "server/worker_protocol.h"

namespace kiln::server {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kEndPatience{2};
constexpr std::chrono::seconds kBeginPatience{5};  // a worker says that it begins before it does anything else

std::string Describe(const WorkerEnd& end) {
  if (WIFSIGNALED(end.status)) {
    const int signal = WTERMSIG(end.status);
    const char* name = ::sigabbrev_np(signal);
    const std::string cause = fmt::format("killed by SIG{}", name != nullptr ? name : std::to_string(signal).c_str());
    if (signal != SIGKILL) return cause;
    return fmt::format("{}: out of memory on this host, or somebody's doing (it had {} MiB)", cause,
                       end.max_rss_kib / 1024);
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

struct Worker {
  explicit Worker(Zygote::Child forked) : child(std::move(forked)), channel(std::move(child.socket)) {}

  Zygote::Child child;
  Channel channel;
  unsigned jobs = 0;
};

}  // namespace

class WorkerPool::Slot {
 public:
  explicit Slot(WorkerPool& pool)
      : pool_(pool), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { Run(); }) {}

  ~Slot() {
    stopping_ = true;
    Wake();
    thread_.join();
  }

 private:
  void Wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void Run() {
    KeepWarm();
    while (std::unique_ptr<Job> job = pool_.admission_.Take()) {
      ++pool_.busy_;
      const auto began = Clock::now();
      JobOutcome outcome = RunWithRetry(*job);
      outcome.ran = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began);
      outcome.queue_ms = std::chrono::duration<double, std::milli>(began - job->queued).count();
      pool_.admission_.Finished(*job, outcome);
      --pool_.busy_;
      job->done(std::move(outcome));
      job.reset();
      KeepWarm();
    }
    Retire();
  }

  // So that the next job finds a worker ready.
  void KeepWarm() {
    if (worker_ && worker_->jobs >= pool_.options_.jobs_per_worker) Retire();
    if (!worker_ && !stopping_) {
      if (auto child = pool_.zygote_.Fork()) worker_.emplace(std::move(*child));
    }
  }

  JobOutcome RunWithRetry(Job& job) {
    bool blameless = false;
    JobOutcome outcome = RunOnce(job, blameless);
    if (blameless && !stopping_ && !job.stop.stop_requested()) outcome = RunOnce(job, blameless);
    return outcome;
  }

  // `blameless` tells that the worker's end had nothing to do with the job.
  JobOutcome RunOnce(Job& job, bool& blameless) {
    if (!worker_) {
      auto child = pool_.zygote_.Fork();
      if (!child) return {.end = JobOutcome::End::kNoWorker, .cause = std::move(child.error())};
      worker_.emplace(std::move(*child));
    }
    const bool fresh = worker_->jobs++ == 0;
    ::lseek(worker_->child.log.get(), 0, SEEK_SET);
    std::uint64_t old_wakes = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &old_wakes, sizeof old_wakes);
    const std::stop_callback on_stop(job.stop, [this] { Wake(); });

    JobOutcome outcome;
    const Channel::End end = Converse(job, outcome);
    if (end == Channel::End::kOk) return outcome;
    const bool began = !outcome.stage.empty();
    blameless = end == Channel::End::kClosed ? (!fresh && !began) || pool_.zygote_.Lost(worker_->child)
                                             : end == Channel::End::kDeadline && !began;
    Bury(job, end, outcome);
    return outcome;
  }

  Channel::End Converse(Job& job, JobOutcome& outcome) {
    const auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(job.work.timeout_seconds()));
    const Channel::Wait whole{.wake_fd = wake_.get(), .until = Clock::now() + limit};
    const Channel::Wait beginning{.wake_fd = wake_.get(), .until = Clock::now() + std::min<Clock::duration>(limit, kBeginPatience)};
    Channel& channel = worker_->channel;
    if (stopping_) return Channel::End::kWoken;
    if (const auto end = channel.Send(job.work, beginning); end != Channel::End::kOk) return end;
    for (;;) {
      v1::WorkerEvent event;
      if (const auto end = channel.Receive(event, outcome.stage.empty() ? beginning : whole); end != Channel::End::kOk) return end;
      if (event.id() != job.work.id()) return Channel::End::kInvalid;
      if (event.has_result()) {
        outcome.end = JobOutcome::End::kResult;
        outcome.result = std::move(*event.mutable_result());
        return Channel::End::kOk;
      }
      if (event.started().size() > 64) return Channel::End::kInvalid;
      outcome.stage = event.started();
      job.on_stage(outcome.stage);
    }
  }

  // The conversation broke: finds out why, and gets rid of the worker.
  void Bury(const Job& job, Channel::End end, JobOutcome& outcome) {
    using End = Channel::End;
    if (end != End::kClosed) pool_.zygote_.Kill(worker_->child);
    const auto ended = pool_.zygote_.WaitForEnd(worker_->child, kEndPatience);
    outcome.said = TailOf(worker_->child.log.get());
    worker_.reset();
    outcome.end = end == End::kWoken ? JobOutcome::End::kCancelled : JobOutcome::End::kDied;
    switch (end) {
      case End::kWoken: outcome.cause = "cancelled"; break;
      case End::kDeadline: outcome.cause = "deadline"; break;
      case End::kInvalid: outcome.cause = "sent what is no message"; break;
      default: outcome.cause = ended ? Describe(*ended) : "ended with its zygote"; break;
    }
    if (end != End::kWoken) pool_.options_.on_replaced(job.request_id, outcome.cause);
  }

  // Ends an idle worker: it stops when its socket closes.
  void Retire() {
    if (!worker_) return;
    const Zygote::Child gone{.pid = worker_->child.pid, .generation = worker_->child.generation};
    worker_.reset();
    pool_.zygote_.WaitForEnd(gone, kEndPatience);
  }

  WorkerPool& pool_;
  UniqueFd wake_;
  std::atomic<bool> stopping_ = false;
  std::optional<Worker> worker_;
  std::thread thread_;  // last: it uses the others
};

WorkerPool::WorkerPool(WorkerPoolOptions options, Admission& admission, Zygote& zygote)
    : options_(std::move(options)), admission_(admission), zygote_(zygote) {
  for (unsigned i = 0; i < options_.workers; ++i) slots_.push_back(std::make_unique<Slot>(*this));
}

WorkerPool::~WorkerPool() {
  admission_.Close();
  slots_.clear();
}

}  // namespace kiln::server
