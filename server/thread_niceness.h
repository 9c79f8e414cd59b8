// SPDX-License-Identifier: Apache-2.0
//
// Which of kilnd's threads go first where processors are scarce: gRPC's, which hold the answers that are ready; then those that work
// on what will be one; then the workers' processes (kWorkerNiceness). Who wakes preempts whoever is nicer.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace kiln::server {

inline constexpr int kBackgroundNiceness = 5;  // above kilnd's own
inline constexpr int kWorkerNiceness = 10;

// The calling thread, for good: on Linux each has a niceness of its own.
inline void YieldToAnswers() {
  const auto thread = static_cast<id_t>(::gettid());
  ::setpriority(PRIO_PROCESS, thread, ::getpriority(PRIO_PROCESS, thread) + kBackgroundNiceness);
}

}  // namespace kiln::server
