// SPDX-License-Identifier: Apache-2.0
//
// What a worker gives up before it reads its first byte of a request.
#pragma once

#include <cstdint>

#include "server/worker_protocol.h"

namespace kiln::server {

// The sanitizers reserve terabytes of shadow memory, which counts as data: no memory limit with them.
#if defined(__has_feature)
#define KILN_HAS_FEATURE(name) __has_feature(name)
#else
#define KILN_HAS_FEATURE(name) 0
#endif
inline constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || KILN_HAS_FEATURE(address_sanitizer) || \
    KILN_HAS_FEATURE(thread_sanitizer)
    true;
#else
    false;
#endif

struct SandboxLimits {
  std::uint64_t memory_bytes = 0;  // of writable private memory; 0: no limit
};

// No network, no new privileges, no core dumps, few descriptors, a memory limit, and death with the parent. Each step is
// best effort: a system that refuses one still has the others.
//
// An emulator's worker runs machine code made from a client's program: it keeps its memory, its threads and the descriptors it
// has, and can open, start and reach nothing. A GPU's needs its driver's files and local sockets, and much address space.
void EnterSandbox(WorkerRole role, const SandboxLimits& limits);

}  // namespace kiln::server
