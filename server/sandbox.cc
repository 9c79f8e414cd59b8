// SPDX-License-Identifier: Apache-2.0
#include "server/sandbox.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace kiln::server {
namespace {

void Limit(__rlimit_resource resource, rlim_t value) {
  const rlimit limit{value, value};
  ::setrlimit(resource, &limit);
}

#if defined(__x86_64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
#error "the socket filter needs this machine's AUDIT_ARCH"
#endif

constexpr std::uint32_t kForeignCalls = 0x40000000;  // x86-64's x32 table begins there; no other table reaches it

// socket(2) fails with EACCES for every family, and io_uring, which could make sockets too; so does every call of a foreign
// table. Processes that the worker starts inherit it. False where the kernel has no seccomp.
bool ForbidSockets() {
  std::array<sock_filter, 8> code = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArch, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kForeignCalls, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{code.size(), code.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

void EnterSandbox(const SandboxLimits& limits) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (!ForbidSockets()) ::unshare(CLONE_NEWNET);  // slower, and needs a privilege
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_NOFILE, 256);
  if (limits.memory_bytes > 0 && !kSanitized) Limit(RLIMIT_DATA, limits.memory_bytes);
}

}  // namespace kiln::server
