// SPDX-License-Identifier: Apache-2.0
//
// A disk that fails at a chosen call. Linked into a program, or preloaded into one as a library, disk_faults.cc takes the place of the
// C library's calls that write: write, pwrite, writev, ftruncate, fsync, fdatasync, rename, mkdir, and open and fopen where they make a
// file. Removing a file, and whatever reads, does not fail. Nothing waits for the disk: fsync and fdatasync do nothing else.
//
// A full disk (ENOSPC) takes half of one write: of the first call that fails, where it is write or pwrite and not the last to fail. All other
// calls that fail leave the disk as it is.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace kiln::cache::testing {

// May lie in memory that processes share. All zeros: nothing fails and nothing is counted.
struct DiskFaults {
  std::atomic<std::int64_t> first = 0;   // the number of the first call that fails, from 1; 0: not armed
  std::atomic<std::int64_t> last = 0;    // and of the last
  std::atomic<std::int64_t> error = 0;   // its errno
  std::atomic<std::int64_t> calls = 0;   // since it was armed
  std::atomic<std::int64_t> failed = 0;  // of these
  std::array<char, 4096> below{};        // the folder whose files count

  void Arm(std::string_view folder, int with, std::int64_t from, std::int64_t to) {
    first = 0;
    below.fill('\0');
    folder.copy(below.data(), below.size() - 1);
    calls = failed = 0;
    error = with;
    last = to;
    first = from;
  }
  void Heal() { first = 0; }
};

// This process's, which disk_faults.cc looks at.
extern DiskFaults* disk_faults;

}  // namespace kiln::cache::testing
