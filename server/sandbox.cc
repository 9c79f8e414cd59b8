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
#include <cstdint>
#include <utility>
#include <vector>

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

// Calls of another table than this machine's own are refused in each filter.
constexpr std::size_t kPrologue = 4;
constexpr std::array<sock_filter, kPrologue> Prologue(std::uint8_t to_refuse) {
  return {{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArch, 0, static_cast<std::uint8_t>(to_refuse - 2)),
           BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
           BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kForeignCalls, static_cast<std::uint8_t>(to_refuse - 4), 0)}};
}
constexpr sock_filter kRefuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES);
constexpr sock_filter kAllow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);

bool Install(std::vector<sock_filter> code) {
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// socket(2) fails with EACCES for every family (but the local one, if `local`), and io_uring, which could make sockets too.
// Processes that the worker starts inherit it. False where the system has no seccomp.
bool ForbidSockets(bool local) {
  constexpr std::uint8_t kRefuseAt = 9;
  const auto prologue = Prologue(kRefuseAt);
  std::vector<sock_filter> code(prologue.begin(), prologue.end());
  const std::uint32_t family = local ? AF_UNIX : ~std::uint32_t{0};
  code.insert(code.end(), {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, family, 0, 1),
      kAllow,
      kRefuse,
  });
  return Install(std::move(code));
}

// What a program needs that computes in memory it has or maps, with threads, and talks over descriptors it has.
constexpr std::array kComputing = {
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_close, SYS_fstat, SYS_lseek, SYS_fcntl, SYS_dup,
    SYS_sendto, SYS_sendmsg, SYS_recvfrom, SYS_recvmsg, SYS_ppoll, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_mremap, SYS_madvise,
    SYS_brk, SYS_mlock, SYS_munlock, SYS_membarrier, SYS_clone, SYS_clone3, SYS_futex, SYS_set_robust_list, SYS_rseq,
    SYS_set_tid_address, SYS_exit, SYS_exit_group, SYS_gettid, SYS_getpid, SYS_tgkill, SYS_rt_sigaction, SYS_rt_sigprocmask,
    SYS_rt_sigreturn, SYS_sigaltstack, SYS_restart_syscall, SYS_sched_yield, SYS_sched_getaffinity, SYS_getcpu,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_clock_getres, SYS_nanosleep, SYS_gettimeofday, SYS_getrandom, SYS_getrusage,
    SYS_prlimit64, SYS_uname, SYS_sysinfo,
#if defined(__x86_64__)
    SYS_poll, SYS_arch_prctl, SYS_time,
#endif
};

bool AllowComputingOnly() {
  constexpr std::size_t kRefuseAt = kPrologue + kComputing.size();
  static_assert(kRefuseAt < 256);
  const auto prologue = Prologue(kRefuseAt);
  std::vector<sock_filter> code(prologue.begin(), prologue.end());
  for (std::size_t i = 0; i < kComputing.size(); ++i) {
    const auto to_allow = static_cast<std::uint8_t>(kComputing.size() - i);
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(kComputing[i]), to_allow, 0));
  }
  code.push_back(kRefuse);
  code.push_back(kAllow);
  return Install(std::move(code));
}

}  // namespace

void EnterSandbox(WorkerRole role, const SandboxLimits& limits) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  Limit(RLIMIT_CORE, 0);
  const bool gpu = role == WorkerRole::kGpu;
  if (!gpu) Limit(RLIMIT_NOFILE, 256);
  if (!gpu && limits.memory_bytes > 0 && !kSanitized) Limit(RLIMIT_DATA, limits.memory_bytes);
  const bool forbidden = role == WorkerRole::kEmulator && !kSanitized ? AllowComputingOnly() : ForbidSockets(gpu);
  if (!forbidden && !gpu) ::unshare(CLONE_NEWNET);  // slower, and needs a privilege
}

}  // namespace kiln::server
