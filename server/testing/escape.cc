// SPDX-License-Identifier: Apache-2.0
#include "server/testing/escape.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <vector>

namespace kiln::server::testing {
namespace {

bool Opens(const char* path, int flags) {
  const int fd = ::open(path, flags, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

bool MakesSocket(int family) {
  const int fd = ::socket(family, SOCK_STREAM, 0);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

// Whether a child process gets to the end of `program`.
bool Starts(const char* program) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl(program, program, nullptr);
    ::_exit(1);
  }
  int status = 1;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

bool Forks() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  if (pid > 0) ::waitpid(pid, nullptr, 0);
  return pid > 0;
}

bool ReadsParentsMemory() {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec there{reinterpret_cast<void*>(&Opens), 1};  // the zygote has the same code at the same place
  const std::string memory = "/proc/" + std::to_string(::getppid()) + "/mem";
  return ::process_vm_readv(::getppid(), &here, 1, &there, 1, 0) == 1 || Opens(memory.c_str(), O_RDONLY);
}

bool RaisesLimits() {
  const rlimit more{RLIM_INFINITY, RLIM_INFINITY};
  return ::setrlimit(RLIMIT_NOFILE, &more) == 0 || ::setrlimit(RLIMIT_CORE, &more) == 0;
}

// Any one of these, and kilnd could be killed by a byte that arrives.
bool AsksForSignals() {
  std::array<int, 2> ends{-1, -1};
  if (::pipe(ends.data()) != 0) return true;
  const f_owner_ex owner{F_OWNER_PID, ::getppid()};
  const bool asked = ::fcntl(ends[0], F_SETOWN, ::getppid()) == 0 || ::fcntl(ends[0], F_SETOWN_EX, &owner) == 0 ||
                     ::fcntl(ends[0], F_SETSIG, SIGKILL) == 0 || ::syscall(SYS_fcntl, ends[0], (std::uint64_t{1} << 32) | F_SETOWN, ::getppid()) == 0;
  const bool usable = ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
  for (const int end : ends) ::close(end);
  return asked || !usable;
}

bool Maps(int file, int flags) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  return ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, file, 0) != MAP_FAILED;
}

// 32 GiB, in files that are closed again. Nothing is written: none of it is really taken.
bool MapsManyFiles() {
  int mapped = 0;
  std::vector<void*> places;
  for (; mapped < 1024; ++mapped) {
    const int file = ::memfd_create("kiln-escape", MFD_CLOEXEC);
    const bool more = file >= 0 && ::ftruncate(file, 32 << 20) == 0;
    void* const place = more ? ::mmap(nullptr, 32 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) ::close(file);
    if (place == MAP_FAILED) break;
    places.push_back(place);
  }
  for (void* const place : places) ::munmap(place, 32 << 20);
  return mapped == 1024;
}

bool MakesLongFile() {
  ::signal(SIGXFSZ, SIG_IGN);
  const int file = ::memfd_create("kiln-escape", MFD_CLOEXEC);
  const bool made = file >= 0 && ::ftruncate(file, off_t{1} << 30) == 0;
  if (file >= 0) ::close(file);
  ::signal(SIGXFSZ, SIG_DFL);
  return made;
}

}  // namespace

bool Escapes(Escape escape, const std::string& ptxas) {
  switch (escape) {
    case Escape::kInternet: return MakesSocket(AF_INET) || MakesSocket(AF_INET6) || MakesSocket(AF_NETLINK);
    case Escape::kUnixSocket: return MakesSocket(AF_UNIX);
    case Escape::kWriteFile:
      return Opens("/tmp/kiln-escape", O_WRONLY | O_CREAT) || Opens("/dev/shm/kiln-escape", O_WRONLY | O_CREAT) || Opens("/etc/passwd", O_WRONLY) ||
             Opens("/tmp", O_TMPFILE | O_RDWR);
    case Escape::kReadFile: return Opens("/etc/passwd", O_RDONLY) || Opens("/proc/1/environ", O_RDONLY) || Opens("/root", O_RDONLY);
    case Escape::kRename: return ::rename("/tmp", "/tmp-of-kiln") == 0 || ::unlink("/tmp/kiln-escape-target") == 0;
    case Escape::kMakeFolder: return ::mkdir("/tmp/kiln-escape-folder", 0700) == 0;
    case Escape::kChangeMode: return ::chmod("/proc/self", 0700) == 0 || ::chmod("/tmp", 01777) == 0;
    case Escape::kFork: return Forks();
    case Escape::kExec: return ::execl("/bin/ls", "ls", nullptr) == 0 || Starts("/bin/ls");
    case Escape::kTracing: return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0;
    case Escape::kReadMemory: return ReadsParentsMemory();
    case Escape::kSignal: return ::kill(::getppid(), 0) == 0 || ::syscall(SYS_tgkill, ::getppid(), ::getppid(), 0) == 0;
    case Escape::kBecomeRoot: return ::setresuid(0, 0, 0) == 0 && ::geteuid() == 0;
    case Escape::kNewNamespace: return ::unshare(CLONE_NEWUSER) == 0;
    case Escape::kMount: return ::mount("none", "/tmp", "tmpfs", 0, nullptr) == 0;
    case Escape::kKernelCode: return ::syscall(SYS_bpf, 0, nullptr, 0) >= 0 || ::syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0) >= 0;
    case Escape::kIoUring: {
      alignas(8) char parameters[120] = {};
      return ::syscall(SYS_io_uring_setup, 1, parameters) >= 0;
    }
    case Escape::kUserFaults: return ::syscall(SYS_userfaultfd, 1) >= 0;
    case Escape::kKeys: return ::syscall(SYS_keyctl, 0, -3, 1) >= 0;  // the session's keyring
    case Escape::kRaiseLimits: return RaisesLimits();
    case Escape::kAskForSignals: return AsksForSignals();
    case Escape::kSharedMemory: return Maps(-1, MAP_SHARED | MAP_ANONYMOUS);
    case Escape::kStackMemory: return Maps(-1, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN);
    case Escape::kMemoryFiles: return MapsManyFiles();
    case Escape::kLongFile: return MakesLongFile();
    case Escape::kLeaveGroup: return ::setpgid(0, 0) == 0;
    case Escape::kStartPtxas: return Starts(ptxas.c_str());
    case Escape::kEnd: break;
  }
  return true;
}

}  // namespace kiln::server::testing
