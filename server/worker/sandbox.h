// SPDX-License-Identifier: Apache-2.0
//
// What a worker gives up before it reads its first byte of a request: the network, writing files, other programs, privileges.
// A compiler needs none of these. Where the kernel or the container refuses one, the others remain, and Enter says what is in
// force. But without the filter or no_new_privs no worker runs.
//
//   user        root becomes another user
//   files       Landlock: reads below a few roots, writes nowhere; what has no name (memfd, pipes) remains. A compile worker on a kernel
//               without has mounts of its own, which are read-only: it reads what its user may, and writes nowhere either
//   network     Landlock and the filter: no socket of any family
//   calls       seccomp: an allow-list; everything else fails with EPERM
//   privileges  no_new_privs; no core dumps; limits on memory, address space, descriptors and file sizes
//
// The memory limit is one of private memory. Memory files, which a compiler passes to a linker and to ptxas, are bounded beside it:
// in number and size while they are open, and by the address space where they are mapped. An emulator's worker can make none.
//
// An emulator's worker runs machine code made from a client's program: it keeps its memory, its threads and the descriptors it
// has, and can open, start and reach nothing.
//
// A GPU's worker enters in two steps, for what a driver needs to start is more than what it needs to run kernels:
//
//   Enter   user, limits, files as above and of the driver's own (its devices, what it reads of /proc and /sys), no_new_privs, and a
//           deny-list of calls: no network, no other programs, no signals to others. Its own folder of /proc it may read and write as a
//           whole, so that the driver can name its threads: with its memory in it, but nothing of another process
//   Close   when the driver has its context and has run a kernel of ours, before a byte of a client is read: an allow-list for every
//           thread there is, the driver's too. ioctl(2) takes the commands of NVIDIA's devices alone and the question whether a
//           descriptor is a terminal (TCGETS), and no socket is made any more
//
// It needs much address space: nothing limits its memory but the host. Root becomes the other user where that one can use the GPUs and
// the folders of the library path. A kLooseGpu worker, for a driver that does not work so, has the user, the limits, no_new_privs and the
// deny-list, and its files are those of its user; device_pool.h says when.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "clients/common/unique_fd.h"
#include "server/worker/call_filter.h"
#include "server/worker/worker_protocol.h"

namespace kiln::server {

// The sanitizers reserve terabytes of shadow memory, which counts as data, and make calls of their own: no memory limit and no
// allow-list with them.
#if defined(__has_feature)
#define KILN_HAS_FEATURE(name) __has_feature(name)
#else
#define KILN_HAS_FEATURE(name) 0
#endif
inline constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || KILN_HAS_FEATURE(address_sanitizer) || KILN_HAS_FEATURE(thread_sanitizer)
    true;
#else
    false;
#endif

struct SandboxOptions {
  std::uint64_t memory_bytes = 0;               // of writable private memory; 0: no limit
  std::filesystem::path program;                // the one program that may be started (ptxas); empty: none
  std::optional<unsigned> user;                 // whom root becomes; empty: nobody else
  std::string library_path = {};                // folders between colons, where GPU drivers may be
  std::vector<std::filesystem::path> readable;  // beside the system's libraries
  pid_t parent = 0;                             // the process with whose end the worker's comes; 0: whichever is its parent
};

// What is in force in a worker.
struct Protections {
  int landlock = 0;          // its version; 0: files are open, or
  bool read_only = false;    // by mounts of its own
  bool allow_list = false;   // of calls; else a deny-list
  std::string Text() const;  // "user=65534 files=landlock-7 (or read-only, or open) network=filter calls=allow-list privileges=none-new"
};

// The limits of a compile worker's memory, for this process: of private memory, and of the address space.
void LimitMemory(std::uint64_t bytes);

class Sandbox {
 public:
  // Prepares what can be prepared once for many workers. In the process that forks them, while it has one thread.
  explicit Sandbox(SandboxOptions options);

  // Gives it all up, for this process and whatever it starts. The error says why this process must end.
  std::expected<Protections, std::string> Enter(WorkerRole role) const;

  // In a kGpu worker that has entered and whose driver has started, for all threads there are: the rest.
  std::expected<Protections, std::string> Close(Protections entered) const;

 private:
  SandboxOptions options_;
  int landlock_version_ = 0;
  bool driver_as_user_ = false;  // the other user can use the GPUs
  UniqueFd ruleset_;
  CallFilters filters_;
};

}  // namespace kiln::server
