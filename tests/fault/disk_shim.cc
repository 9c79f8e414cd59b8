// SPDX-License-Identifier: Apache-2.0
//
// To be preloaded, with cache/testing/disk_faults.cc in it: the disk of a process fails as the file $DISK_SHIM says, which holds a
// DiskFaults. It can be armed while the process runs.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdlib>

#include "cache/testing/disk_faults.h"

namespace {

__attribute__((constructor)) void UseSharedFaults() {
  using kiln::cache::testing::DiskFaults;
  const char* path = std::getenv("DISK_SHIM");
  const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* page = ::mmap(nullptr, sizeof(DiskFaults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) kiln::cache::testing::disk_faults = static_cast<DiskFaults*>(page);
}

}  // namespace
