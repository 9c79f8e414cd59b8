// SPDX-License-Identifier: Apache-2.0
//
// What a compile worker gives up before it reads its first byte of a request.
#pragma once

#include <cstdint>

namespace kiln::server {

struct SandboxLimits {
  std::uint64_t memory_bytes = 0;  // of writable private memory; 0: no limit
};

// No network, no new privileges, no core dumps, few descriptors, a memory limit, and death with the parent. Each step is
// best effort: a kernel that refuses one still has the others.
void EnterSandbox(const SandboxLimits& limits);

}  // namespace kiln::server
