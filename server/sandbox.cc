// SPDX-License-Identifier: Apache-2.0
#include "server/sandbox.h"

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "server/call_filter.h"
#include "server/landlock.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
constexpr rlim_t kCompileFiles = 64;
constexpr rlim_t kEmulatorFiles = 256;
constexpr rlim_t kFileBytes = rlim_t{64} << 20;
constexpr rlim_t kOtherAddresses = rlim_t{2} << 30;  // beside its memory: libraries, stacks, what malloc reserves, mapped files

void Limit(__rlimit_resource resource, rlim_t value) {
  const rlimit limit{value, value};
  ::setrlimit(resource, &limit);
}

bool Become(unsigned user) {
  // Landlock and seccomp need no privilege with no_new_privs; opening /proc/self/fd needs a process that may be inspected, which
  // changing the user takes away.
  return ::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0 &&
         ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

// Whether that user could start the program: one in a folder of root's own needs root.
bool CanStart(const fs::path& program, unsigned user) {
  if (program.empty()) return true;
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(Become(user) && ::access(program.c_str(), X_OK) == 0 ? 0 : 1);
  int status = 1;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

bool ApplyFilterOf(const CallFilters& filters, WorkerRole role) {
  switch (role) {
    case WorkerRole::kCompile: return OnlySignalsItself() && ApplyCallFilter(filters.compile);
    case WorkerRole::kEmulator: return OnlySignalsItself() && ApplyCallFilter(filters.emulator);
    case WorkerRole::kGpu: return ApplyCallFilter(filters.driver);
  }
  return false;
}

LandlockPaths Paths(const SandboxOptions& options) {
  LandlockPaths paths{.readable = {"/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/proc/cpuinfo",
                                   "/proc/meminfo", "/dev/urandom"},
                      .writable = {"/dev/null"},
                      .executable = {}};
  paths.readable.insert(paths.readable.end(), options.readable.begin(), options.readable.end());
  if (options.program.empty()) return paths;
  std::error_code error;
  // A program needs the dynamic loader, which is started as one as well.
  paths.executable = {fs::canonical(options.program, error), "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"};
  paths.readable.push_back(fs::canonical(options.program, error).parent_path().parent_path());
  return paths;
}

}  // namespace

Sandbox::Sandbox(SandboxOptions options) : options_(std::move(options)), landlock_version_(LandlockVersion()) {
  if (options_.user && !CanStart(options_.program, *options_.user)) options_.user.reset();
  if (landlock_version_ > 0) ruleset_ = MakeRuleset(landlock_version_, Paths(options_));
  filters_ = MakeCallFilters(!options_.program.empty());
}

std::expected<std::string, std::string> Sandbox::Enter(WorkerRole role) const {
  const bool gpu = role == WorkerRole::kGpu;
  Limit(RLIMIT_CORE, 0);
  if (!gpu) {
    Limit(RLIMIT_NOFILE, role == WorkerRole::kCompile ? kCompileFiles : kEmulatorFiles);
    Limit(RLIMIT_FSIZE, kFileBytes);  // of a memory file, which is all it can write
    if (options_.memory_bytes > 0 && !kSanitized) Limit(RLIMIT_DATA, options_.memory_bytes);
  }
  if (role == WorkerRole::kCompile) {
    Limit(RLIMIT_MEMLOCK, 0);
    if (options_.memory_bytes > 0 && !kSanitized) Limit(RLIMIT_AS, options_.memory_bytes + kOtherAddresses);
  }
  const bool user = ::geteuid() != 0 || (!gpu && options_.user && Become(*options_.user));
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // after the user has changed, which clears it
  // A parent that ended before sends no signal, and may have left a job without end in the socket.
  if (options_.parent != 0 && ::getppid() != options_.parent) return std::unexpected("whoever started this worker has ended");
  const bool privileges = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  const bool files = !gpu && RestrictSelf(ruleset_);
  const bool calls = kSanitized ? ApplyCallFilter(filters_.driver) : ApplyFilterOf(filters_, role);
  if (!gpu && !(privileges && calls)) {
    return std::unexpected(fmt::format("the kernel does not let a worker confine itself ({}: {}), and without that no program of a "
                                       "client is worked on; allow prctl(2) and seccomp filters where kilnd runs",
                                       privileges ? "seccomp" : "no_new_privs", std::strerror(errno)));
  }
  return "user=" + (user ? std::to_string(::geteuid()) : std::string("root")) +
         " files=" + (files ? "landlock-" + std::to_string(landlock_version_) : "open") +
         " network=" + (calls ? "filter" : "open") +
         " calls=" + (!calls ? "open" : kSanitized ? "deny-list" : "allow-list") + " privileges=" + (privileges ? "none-new" : "open");
}

}  // namespace kiln::server
