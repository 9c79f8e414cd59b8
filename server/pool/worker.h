// SPDX-License-Identifier: Apache-2.0
//
// kilnd's end of one worker process: its socket, what it wrote to stderr, and how it ended. Used by one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "server/pool/zygote.h"
#include "server/system/deadline.h"
#include "server/worker/channel.h"

namespace kiln::server {

class Worker {
 public:
  // The error says why there is none and what to do.
  static std::expected<Worker, std::string> Start(Zygote& zygote, WorkerRole role, std::string_view device = {});

  // Before each job: what it writes to stderr from here on is the job's. The number of jobs it has begun before.
  unsigned BeginJob();
  unsigned jobs() const { return jobs_; }

  // Sends the job and hands each event about it to `take`, until that returns true: it was the last. The worker must begin at once, and
  // end within `limit`; where there is a `run_limit`, within that from the stage "run" on. `descriptor` travels with the job where there is one.
  template <class Event, class Job, class Take>
  Channel::End Converse(const Job& job, int wake_fd, std::chrono::steady_clock::duration limit, Take take, int descriptor = -1,
                        std::optional<std::chrono::steady_clock::duration> run_limit = std::nullopt) {
    constexpr std::size_t kMostOfStage = 64;
    const auto wait_for = [&](std::chrono::steady_clock::duration time) {
      return Channel::Wait{.wake_fd = wake_fd, .until = Deadline(zygote_->clock(), time)};
    };
    Channel::Wait whole = wait_for(limit);
    Channel::Wait wait = wait_for(std::min<std::chrono::steady_clock::duration>(limit, kBeginPatience));
    if (const auto end = channel_.Send(job, wait, descriptor); end != Channel::End::kOk) return end;
    for (;;) {
      Event event;
      if (const auto end = channel_.Receive(event, wait); end != Channel::End::kOk) return end;
      // A GPU's worker says that its driver starts before it knows of any job.
      const bool of_job = event.id() == job.id() || (event.id() == 0 && !event.started().empty());
      if (!of_job || event.started().size() > kMostOfStage) return Channel::End::kInvalid;
      if (run_limit && event.started() == "run") whole = wait_for(*run_limit);
      if (take(event)) return Channel::End::kOk;
      wait = whole;
    }
  }

  struct Death {
    std::string cause;          // "killed by SIGABRT", "deadline", "cancelled"
    std::string said;           // the end of what it wrote to stderr
    bool with_zygote = false;   // which took it along: nobody's fault
    bool from_outside = false;  // SIGKILL that kilnd did not send: its own limit ends a worker otherwise
  };
  // A conversation that ended with `end` (not kOk) is the worker's last: it is killed where it still runs.
  Death Bury(Channel::End end);

  // Ends an idle worker: it stops when its socket closes, or is killed.
  static void Retire(std::optional<Worker>& worker);

 private:
  static constexpr std::chrono::seconds kBeginPatience{5};  // it says that it begins before it does anything else

  Worker(Zygote& zygote, Zygote::Child child);

  Zygote* zygote_;
  Zygote::Child child_;
  Channel channel_;
  unsigned jobs_ = 0;
};

}  // namespace kiln::server
