// SPDX-License-Identifier: Apache-2.0
#include "server/system/free_memory.h"

#include <malloc.h>

#include <cstddef>

#include "server/system/process_usage.h"

namespace kiln::server {
namespace {

constexpr std::size_t kOfTheProgram = std::size_t{24} << 20;  // its code and data
constexpr std::size_t kMayKeep = std::size_t{32} << 20;

}  // namespace

void ReturnFreeMemory() {
  const std::size_t resident = ReadProcessUsage().resident_bytes;
  if (resident <= kOfTheProgram + kMayKeep) return;
  const struct mallinfo2 heap = ::mallinfo2();
  if (resident > heap.uordblks + heap.hblkhd + kOfTheProgram + kMayKeep) ::malloc_trim(0);
}

}  // namespace kiln::server
