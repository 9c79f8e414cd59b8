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

// The sanitizers reserve terabytes of shadow memory, which counts as data.
constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

#if defined(__x86_64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
#error "the socket filter needs this machine's AUDIT_ARCH"
#endif

// socket(2) fails with EACCES for every family; a foreign syscall table is refused altogether. ptxas inherits it.
void ForbidSockets() {
  std::array<sock_filter, 6> code = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArch, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{code.size(), code.data()};
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

}  // namespace

void EnterSandbox(const SandboxLimits& limits) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::unshare(CLONE_NEWNET);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ForbidSockets();
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_NOFILE, 256);
  if (limits.memory_bytes > 0 && !kSanitized) Limit(RLIMIT_DATA, limits.memory_bytes);
}

}  // namespace kiln::server
