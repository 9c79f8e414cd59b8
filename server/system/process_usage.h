// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kiln::server {

// What the kernel says about this process.
struct ProcessUsage {
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_descriptors = 0;
  std::uint64_t max_descriptors = 0;
  double cpu_seconds = 0;
};
ProcessUsage ReadProcessUsage();

}  // namespace kiln::server
