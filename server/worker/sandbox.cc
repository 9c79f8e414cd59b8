// SPDX-License-Identifier: Apache-2.0
#include "server/worker/sandbox.h"

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <ranges>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "server/worker/call_filter.h"
#include "server/worker/gpu_files.h"
#include "server/worker/landlock.h"
#include "server/worker/read_only_files.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;
constexpr rlim_t kCompileFiles = 64;
constexpr rlim_t kEmulatorFiles = 256;
constexpr rlim_t kDriverFiles = 1024;  // some dozens for each GPU
constexpr rlim_t kProcesses = 4096;    // of the workers' user, threads among them: where programs that multiply end
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

bool HoldsFor(unsigned user, const std::function<bool()>& condition) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(Become(user) && condition() ? 0 : 1);
  int status = 1;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

// One in a folder of root's own needs root.
bool CanStart(const fs::path& program, unsigned user) {
  return program.empty() || HoldsFor(user, [&] { return ::access(program.c_str(), X_OK) == 0; });
}

std::vector<fs::path> FoldersOf(std::string_view library_path) {
  std::vector<fs::path> folders;
  for (const auto part : std::views::split(library_path, ':')) {
    if (!part.empty()) folders.emplace_back(std::string_view(part));
  }
  return folders;
}

bool CanUseGpus(unsigned user, std::string_view library_path) {
  return HoldsFor(user, [&] {
    return std::ranges::all_of(GpuFiles(), [](const fs::path& file) { return ::access(file.c_str(), R_OK | W_OK) == 0; }) &&
           std::ranges::all_of(FoldersOf(library_path),
                               [](const fs::path& folder) { return ::access(folder.c_str(), R_OK | X_OK) == 0 || errno == ENOENT; });
  });
}

bool ApplyFilterOf(const CallFilters& filters, WorkerRole role) {
  switch (role) {
    case WorkerRole::kCompile: return OnlySignalsItself() && ApplyCallFilter(filters.compile);
    case WorkerRole::kEmulator: return OnlySignalsItself() && ApplyCallFilter(filters.emulator);
    case WorkerRole::kGpu:
    case WorkerRole::kSensors:
    case WorkerRole::kLooseGpu: return OnlySignalsItself() && ApplyCallFilter(filters.driver);
  }
  return false;
}

LandlockPaths Paths(const SandboxOptions& options) {
  LandlockPaths paths{
      .readable = {"/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo", "/dev/urandom"},
      .writable = {"/dev/null"},
      .devices = {},
      .executable = {}};
  paths.readable.insert(paths.readable.end(), options.readable.begin(), options.readable.end());
  return paths;
}

LandlockPaths CompilerPaths(const SandboxOptions& options) {
  LandlockPaths paths = Paths(options);
  if (options.program.empty()) return paths;
  std::error_code error;
  // A program needs the dynamic loader, which is started as one as well.
  paths.executable = {fs::canonical(options.program, error), "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"};
  paths.readable.push_back(fs::canonical(options.program, error).parent_path().parent_path());
  return paths;
}

// NVIDIA's driver reads these while it starts, and of /proc/self its mappings and status; it writes its threads' names there, below task, or
// does not start. The whole folder is granted: that is what was tried, and threads that come later have their files in it. The cache of
// compiled PTX below the home folder it does without. In the worker: /proc/self is another folder in each process.
LandlockPaths DriverPaths(const SandboxOptions& options) {
  LandlockPaths paths = Paths(options);
  paths.writable.emplace_back("/proc/self");
  for (const char* path : {"/proc/driver", "/proc/devices", "/proc/sys/vm", "/sys/devices", "/sys/bus/pci", "/sys/module", "/etc/nvidia"}) {
    paths.readable.emplace_back(path);
  }
  std::ranges::copy(FoldersOf(options.library_path), std::back_inserter(paths.readable));
  std::ranges::copy(GpuPartFiles(), std::back_inserter(paths.readable));
  paths.devices = GpuFiles();
  return paths;
}

}  // namespace

std::string Protections::Text() const {
  return fmt::format("user={} files={} network=filter calls={} privileges=none-new", ::geteuid() == 0 ? "root" : std::to_string(::geteuid()),
                     landlock > 0 ? fmt::format("landlock-{}", landlock)
                     : read_only  ? "read-only"
                                  : "open",
                     allow_list ? "allow-list" : "deny-list");
}

void LimitMemory(std::uint64_t bytes) {
  Limit(RLIMIT_DATA, bytes);
  Limit(RLIMIT_AS, bytes + kOtherAddresses);
}

Sandbox::Sandbox(SandboxOptions options) : options_(std::move(options)), landlock_version_(LandlockVersion()) {
  if (options_.user && !CanStart(options_.program, *options_.user)) options_.user.reset();
  driver_as_user_ = options_.user && CanUseGpus(*options_.user, options_.library_path);
  if (landlock_version_ > 0) ruleset_ = MakeRuleset(landlock_version_, CompilerPaths(options_));
  filters_ = MakeCallFilters(!options_.program.empty());
}

std::expected<Protections, std::string> Sandbox::Enter(WorkerRole role) const {
  const bool gpu = IsGpu(role);
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_NOFILE, role == WorkerRole::kCompile ? kCompileFiles : gpu ? kDriverFiles : kEmulatorFiles);
  if (!gpu) {
    Limit(RLIMIT_FSIZE, kFileBytes);  // of a memory file, which is all it can write
    const bool limited = options_.memory_bytes > 0 && !kSanitized;
    if (limited && role == WorkerRole::kCompile) LimitMemory(options_.memory_bytes);
    if (limited && role != WorkerRole::kCompile) Limit(RLIMIT_DATA, options_.memory_bytes);
  }
  if (role == WorkerRole::kCompile) Limit(RLIMIT_MEMLOCK, 0);
  const UniqueFd driver_ruleset = IsClosedGpu(role) && landlock_version_ > 0 ? MakeRuleset(landlock_version_, DriverPaths(options_)) : UniqueFd();
  // Root's own mounts need no user namespace, which not every host gives.
  bool read_only = role == WorkerRole::kCompile && landlock_version_ == 0 && ::geteuid() == 0 && MakeFilesReadOnly();
  const bool becomes = gpu ? driver_as_user_ : options_.user.has_value();
  if (becomes && ::geteuid() == 0 && Become(*options_.user) && role == WorkerRole::kCompile) Limit(RLIMIT_NPROC, kProcesses);
  read_only = read_only || (role == WorkerRole::kCompile && landlock_version_ == 0 && ::geteuid() != 0 && MakeFilesReadOnly());
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // after the user has changed, which clears it
  // If the parent has already ended, it sends no signal; it may have left a job without an end in the socket.
  if (options_.parent != 0 && ::getppid() != options_.parent) return std::unexpected("whoever started this worker has ended");
  const bool privileges = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  const bool files = RestrictSelf(gpu ? driver_ruleset : ruleset_);
  const bool calls = kSanitized ? ApplyCallFilter(filters_.driver) : ApplyFilterOf(filters_, role);
  if (!(privileges && calls)) {
    return std::unexpected(
        fmt::format("the kernel does not let a worker confine itself ({}: {}), and without that no program of a "
                    "client is worked on; allow prctl(2) and seccomp filters where kilnd runs",
                    privileges ? "seccomp" : "no_new_privs", std::strerror(errno)));
  }
  return Protections{.landlock = files ? landlock_version_ : 0, .read_only = read_only, .allow_list = !kSanitized && !gpu};
}

std::expected<Protections, std::string> Sandbox::Close(Protections entered) const {
  if (!kSanitized && !ApplyCallFilterToThreads(filters_.started_driver)) {
    return std::unexpected(fmt::format("the kernel refuses a filter for a driver's threads (seccomp: {})", std::strerror(errno)));
  }
  entered.allow_list = !kSanitized;
  return entered;
}

}  // namespace kiln::server
