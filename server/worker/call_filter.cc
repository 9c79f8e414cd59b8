// SPDX-License-Identifier: Apache-2.0
#include "server/worker/call_filter.h"

#include <asm/sockios.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "clients/common/unique_fd.h"
#include "server/worker/sandbox.h"

namespace kiln::server {
namespace {

// Memory, threads, time, files that are open or may be opened, the worker's own channel. By name, so that one list serves every
// architecture; a name that this one does not have is skipped.
// clang-format off: grouped by what they are for
constexpr std::array kAllowed = {
    // descriptors
    "read", "write", "readv", "writev", "pread64", "pwrite64", "lseek", "_llseek", "close", "close_range", "dup", "dup2", "dup3",
    "fstat", "pipe", "pipe2", "poll", "ppoll", "select", "pselect6", "eventfd2",
    // the channel to kilnd, which is open
    "recvfrom", "recvmsg", "sendto", "sendmsg", "shutdown",
    // memory
    "brk", "munmap", "mprotect", "mremap", "madvise", "mincore", "membarrier",
    // threads and signals of this process
    "futex", "futex_waitv", "set_robust_list", "get_robust_list", "rseq", "set_tid_address", "arch_prctl", "sched_yield",
    "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_getscheduler", "getpriority", "getcpu", "rt_sigaction",
    "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "sigaltstack", "tgkill", "restart_syscall", "exit", "exit_group",
    // who and when
    "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getpgrp", "getpgid", "getsid", "uname", "sysinfo",
    "getrusage", "getrlimit", "times", "time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep",
    "getrandom",
};
// clang-format on
// Landlock says which.
constexpr std::array kFiles = {"open",    "openat", "stat",         "lstat",      "newfstatat", "statx",      "statfs",
                               "fstatfs", "access", "faccessat",    "faccessat2", "readlink",   "readlinkat", "getdents64",
                               "getcwd",  "umask",  "memfd_create", "ftruncate",  "fallocate"};
// Memory that devices and several processors share, at addresses and on nodes of the driver's choice; events of devices.
constexpr std::array kOfDrivers = {"mmap",
                                   "mlock",
                                   "mlock2",
                                   "munlock",
                                   "mbind",
                                   "get_mempolicy",
                                   "set_mempolicy",
                                   "msync",
                                   "epoll_create1",
                                   "epoll_ctl",
                                   "epoll_wait",
                                   "epoll_pwait",
                                   "timerfd_create",
                                   "timerfd_settime",
                                   "sched_get_priority_max",
                                   "sched_get_priority_min",
                                   "rt_sigtimedwait",
                                   "fadvise64"};
// Not setpgid: what a worker starts ends with its group.
constexpr std::array kToStartPrograms = {"fork", "vfork", "execve", "wait4", "waitid", "chdir"};

// What no driver needs and what breaks out of a process.
constexpr std::array kForbidden = {
    "io_uring_setup",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "pidfd_getfd",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "add_key",
    "request_key",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsmount",
    "mount_setattr",
    "swapon",
    "swapoff",
    "reboot",
    "settimeofday",
    "clock_settime",
    "setuid",
    "setgid",
    "setresuid",
    "setresgid",
    "personality",
    "acct",
    "quotactl",
    "kill",
    "tkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_open",
    "pidfd_send_signal",
};
// With sanitizers this filter is that of the workers who start ptxas, too.
constexpr std::array kOtherPrograms = {"execve", "execveat"};

using Context = std::unique_ptr<void, decltype([](void* context) { ::seccomp_release(context); })>;

void Allow(void* context, const char* name) {
  if (const int number = ::seccomp_syscall_resolve_name(name); number >= 0) {
    ::seccomp_rule_add(context, SCMP_ACT_ALLOW, number, 0);
  }
}

void Forbid(void* context, const char* name) {
  if (const int number = ::seccomp_syscall_resolve_name(name); number >= 0) {
    ::seccomp_rule_add(context, SCMP_ACT_ERRNO(EPERM), number, 0);
  }
}

template <class... Arguments>
void AllowIf(void* context, int number, Arguments... arguments) {
  ::seccomp_rule_add(context, SCMP_ACT_ALLOW, number, sizeof...(arguments), arguments...);
}

CallFilter Export(void* context) {
  const UniqueFd file(::memfd_create("kiln-call-filter", MFD_CLOEXEC));
  if (!file || ::seccomp_export_bpf(context, file.get()) != 0) return {};
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  CallFilter filter(static_cast<std::size_t>(size) / sizeof(sock_filter));
  const std::size_t bytes = filter.size() * sizeof(sock_filter);
  if (::pread(file.get(), filter.data(), bytes, 0) != static_cast<ssize_t>(bytes)) return {};
  return filter;
}

// The kernel looks at the low half of a command alone.
constexpr std::uint64_t kCommand = 0xffff'ffff;

// Commands that choose which process and which signal the kernel uses for a descriptor are not allowed: the kernel checks the permissions
// of the descriptor's owner, which may be kilnd.
void AllowDescriptorCommands(void* context) {
  for (const int command : {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_ADD_SEALS, F_GET_SEALS}) {
    AllowIf(context, SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, kCommand, static_cast<std::uint64_t>(command)));
  }
  AllowIf(context, SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, kCommand, F_SETFL), SCMP_A2(SCMP_CMP_MASKED_EQ, O_ASYNC, 0));
}

// Neither shared memory without a file nor growing stacks are allowed, since the limit on data counts neither.
void AllowMappings(void* context) {
  for (const std::uint64_t alternative : {MAP_SHARED, MAP_ANONYMOUS}) {
    AllowIf(context, SCMP_SYS(mmap), SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_GROWSDOWN | alternative, 0));
  }
}

// Everything a worker shares, whatever it does.
void AllowComputing(void* context) {
  for (const char* name : kAllowed) Allow(context, name);
  AllowDescriptorCommands(context);
  AllowMappings(context);
  // Its flags lie in memory, where a filter cannot look; the C library then takes clone.
  ::seccomp_rule_add(context, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
  // Limits can be read, and of this process alone.
  AllowIf(context, SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0), SCMP_A2(SCMP_CMP_EQ, 0));
  AllowIf(context, SCMP_SYS(prctl), SCMP_A0(SCMP_CMP_EQ, PR_SET_NAME));
  AllowIf(context, SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_EQ, TCGETS));  // isatty
  ::seccomp_attr_set(context, SCMP_FLTATR_CTL_OPTIMIZE, 2);         // a binary tree: a handful of comparisons a call
}

void AllowThreads(void* context) { AllowIf(context, SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD)); }

void AllowPrograms(void* context) {
  for (const char* name : kToStartPrograms) Allow(context, name);
  // The child bounds its own processor time before it becomes the program.
  AllowIf(context, SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0), SCMP_A1(SCMP_CMP_EQ, RLIMIT_CPU));
  constexpr std::uint64_t kNamespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
  AllowIf(context, SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, kNamespaces, 0));
}

CallFilter CompileFilter(bool starts_programs) {
  const Context context(::seccomp_init(SCMP_ACT_ERRNO(EPERM)));
  if (!context) return {};
  AllowComputing(context.get());
  for (const char* name : kFiles) Allow(context.get(), name);
  if (!starts_programs) AllowThreads(context.get());
  if (starts_programs) AllowPrograms(context.get());
  return Export(context.get());
}

CallFilter EmulatorFilter() {
  const Context context(::seccomp_init(SCMP_ACT_ERRNO(EPERM)));
  if (!context) return {};
  AllowComputing(context.get());
  AllowThreads(context.get());
  for (const char* name : {"mlock", "munlock"}) Allow(context.get(), name);
  return Export(context.get());
}

// NVIDIA's drivers number their commands as _IOWR('F', …), those of managed memory 0 to 255 and two more: open-gpu-kernel-modules,
// nv-ioctl-numbers.h and uvm_linux_ioctl.h.
constexpr std::uint64_t kCommandType = 0xff00, kNvidia = 0x4600, kAnyManaged = 0xff;
constexpr std::uint64_t kManagedStart = 0x3000'0001, kManagedEnd = 0x3000'0002;

void AllowDeviceCommands(void* context) {
  AllowIf(context, SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kCommandType, kNvidia));
  AllowIf(context, SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kCommand & ~kAnyManaged, 0));
  for (const std::uint64_t command : {kManagedStart, kManagedEnd}) {
    AllowIf(context, SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kCommand, command));
  }
}

CallFilter StartedDriverFilter() {
  const Context context(::seccomp_init(SCMP_ACT_ERRNO(EPERM)));
  if (!context) return {};
  AllowComputing(context.get());
  AllowThreads(context.get());
  AllowDeviceCommands(context.get());
  for (const char* name : kFiles) Allow(context.get(), name);
  for (const char* name : kOfDrivers) Allow(context.get(), name);
  return Export(context.get());
}

CallFilter DriverFilter() {
  const Context context(::seccomp_init(SCMP_ACT_ALLOW));
  if (!context) return {};
  for (const char* name : kForbidden) Forbid(context.get(), name);
  if (!kSanitized) {
    for (const char* name : kOtherPrograms) Forbid(context.get(), name);
  }
  for (const int command : {F_SETOWN, F_SETOWN_EX, F_SETSIG}) {
    ::seccomp_rule_add(context.get(), SCMP_ACT_ERRNO(EPERM), SCMP_SYS(fcntl), 1,
                       SCMP_A1(SCMP_CMP_MASKED_EQ, kCommand, static_cast<std::uint64_t>(command)));
  }
  for (const std::uint64_t command : {FIOSETOWN, SIOCSPGRP}) {
    ::seccomp_rule_add(context.get(), SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_MASKED_EQ, kCommand, command));
  }
  ::seccomp_rule_add(context.get(), SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
  return Export(context.get());
}

bool Install(const sock_filter* code, std::size_t size) {
  const sock_fprog program{static_cast<unsigned short>(size), const_cast<sock_filter*>(code)};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

CallFilters MakeCallFilters(bool starts_programs) {
  return {CompileFilter(starts_programs), EmulatorFilter(), DriverFilter(), StartedDriverFilter()};
}

bool ApplyCallFilter(const CallFilter& filter) { return !filter.empty() && Install(filter.data(), filter.size()); }

bool ApplyCallFilterToThreads(const CallFilter& filter) {
  const sock_fprog program{static_cast<unsigned short>(filter.size()), const_cast<sock_filter*>(filter.data())};
  return !filter.empty() && ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

bool OnlySignalsItself() {
  const std::array<sock_filter, 6> code = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(::getpid()), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
  }};
  return Install(code.data(), code.size());
}

}  // namespace kiln::server
