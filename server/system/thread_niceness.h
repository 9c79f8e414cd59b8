// SPDX-License-Identifier: Apache-2.0
//
// Which of kilnd's threads go first where processors are scarce: gRPC's, which hold the answers that are ready; then those that work
// on what will be one; then the workers' processes (kWorkerNiceness). Who wakes preempts whoever is nicer.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace kiln::server {

inline constexpr int kBackgroundNiceness = 5;  // above kilnd's own
inline constexpr int kWorkerNiceness = 10;
inline constexpr std::chrono::nanoseconds kWorkerTurn = std::chrono::milliseconds(100);  // the longest that Linux gives

// The calling thread, for good: on Linux each has a niceness of its own.
inline void YieldToAnswers() {
  const auto thread = static_cast<id_t>(::gettid());
  ::setpriority(PRIO_PROCESS, thread, ::getpriority(PRIO_PROCESS, thread) + kBackgroundNiceness);
}

// This process, for good: nice, and with long turns. Who wakes preempts whoever asked for longer turns than itself (Linux ≥ 6.12); of equal
// turns it may wait for the end of the other's, some milliseconds.
inline void YieldAsWorker() {
  struct {  // sched_setattr(2), which glibc 2.36 does not wrap
    std::uint32_t size = 48, policy = SCHED_OTHER;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t turn_ns = kWorkerTurn.count(), deadline_ns = 0, period_ns = 0;
  } attributes;
  static_assert(sizeof attributes == 48);
  [[maybe_unused]] const int done = ::nice(kWorkerNiceness);
  attributes.nice = ::getpriority(PRIO_PROCESS, 0);
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);  // where it is refused, niceness is all there is
}

}  // namespace kiln::server
