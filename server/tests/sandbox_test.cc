// SPDX-License-Identifier: Apache-2.0
//
// What workers cannot do, tried in them.
#include "server/worker/sandbox.h"

#include <asm/sockios.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <latch>
#include <optional>
#include <thread>

#include <gmock/gmock.h>

#include "server/testing/daemon_fixture.h"
#include "server/testing/escape.h"
#include "server/worker/gpu_files.h"
#include "server/worker/landlock.h"

namespace kiln::server::testing {
namespace {

using ::testing::HasSubstr;

class SandboxTest : public DaemonTest {
 protected:
  // "refused" or "escaped".
  std::string Try(Escape escape) {
    const auto result = daemon_->Compile(MakeRequest(Order::kEscape, static_cast<uint32_t>(escape)));
    return result.status.ok() ? result.reply.artifact().code() : result.status.error_message();
  }
};

bool IsOfTheFilter(Escape escape) {
  switch (escape) {
    case Escape::kWriteFile:
    case Escape::kReadFile:
    case Escape::kMakeFolder:
    case Escape::kMount: return false;
    default: return true;
  }
}

TEST_F(SandboxTest, LetsAWorkerDoNothingButCompile) {
  daemon_->Start();
  for (uint32_t i = 0; i < static_cast<uint32_t>(Escape::kEnd); ++i) {
    const auto escape = static_cast<Escape>(i);
    if (kSanitized && IsOfTheFilter(escape)) continue;
    if (LandlockVersion() == 0 && !IsOfTheFilter(escape)) continue;
    EXPECT_EQ(Try(escape), "refused") << "escape " << i;
  }
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 0u) << "what is refused is an error of the call, not the end of the worker";
}

// What a child process writes to the pipe before it ends.
std::vector<int> NumbersFrom(pid_t pid, const std::array<int, 2>& ends) {
  ::close(ends[1]);
  std::vector<int> numbers;
  for (int i = 0; ::read(ends[0], &i, sizeof i) == sizeof i;) numbers.push_back(i);
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  return numbers;
}

enum class Step { kEntered, kClosed };

// Those of `tried` that succeed in a process that has entered the sandbox in that role, in a thread that was there before the last step.
std::vector<int> EscapesIn(WorkerRole role, const std::vector<Escape>& tried, Step step = Step::kEntered) {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Sandbox sandbox({.memory_bytes = std::uint64_t{1} << 30, .program = {}, .user = 65534, .readable = {}, .parent = 0});
    const auto entered = sandbox.Enter(role);
    if (!entered) ::_exit(1);
    std::latch last_step(1);
    std::thread earlier([&] {
      last_step.wait();
      for (const Escape escape : tried) {
        const int number = static_cast<int>(escape);
        if (Escapes(escape, "") && ::write(ends[1], &number, sizeof number) < 0) ::_exit(2);
      }
      ::_exit(0);
    });
    if (step == Step::kClosed && !sandbox.Close(*entered)) ::_exit(3);
    last_step.count_down();
    earlier.join();
  }
  return NumbersFrom(pid, ends);
}

TEST(Sandbox, LetsAnEmulatorDoNothingButCompute) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  std::vector<Escape> all;
  for (uint32_t i = 0; i < static_cast<uint32_t>(Escape::kEnd); ++i) all.push_back(static_cast<Escape>(i));
  EXPECT_THAT(EscapesIn(WorkerRole::kEmulator, all), ::testing::IsEmpty());
}

TEST(Sandbox, LetsALooseDriverReachNoOtherProcess) {
  EXPECT_THAT(EscapesIn(WorkerRole::kLooseGpu, {Escape::kInternet, Escape::kTracing, Escape::kKernelCode, Escape::kNewNamespace, Escape::kIoUring,
                                                Escape::kAskForSignals, Escape::kExec, Escape::kBecomeRoot, Escape::kMount, Escape::kSignal,
                                                Escape::kRaiseLimits, Escape::kKeys, Escape::kUserFaults}),
              ::testing::IsEmpty());
}

TEST(Sandbox, LetsADriverThatStartsReachNoFilesEither) {
  std::vector<Escape> tried = {Escape::kInternet, Escape::kTracing, Escape::kExec, Escape::kSignal, Escape::kAskForSignals};
  if (LandlockVersion() > 0) {
    for (const Escape escape : {Escape::kWriteFile, Escape::kReadFile, Escape::kRename, Escape::kMakeFolder}) tried.push_back(escape);
  }
  EXPECT_THAT(EscapesIn(WorkerRole::kGpu, tried), ::testing::IsEmpty());
}

// Drivers map memory as they like.
TEST(Sandbox, LetsADriverThatHasStartedDoNothingButCompute) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  std::vector<Escape> tried;
  for (uint32_t i = 0; i < static_cast<uint32_t>(Escape::kEnd); ++i) {
    const auto escape = static_cast<Escape>(i);
    const bool memory =
        escape == Escape::kSharedMemory || escape == Escape::kStackMemory || escape == Escape::kMemoryFiles || escape == Escape::kLongFile;
    if (!memory && (LandlockVersion() > 0 || IsOfTheFilter(escape))) tried.push_back(escape);
  }
  EXPECT_THAT(EscapesIn(WorkerRole::kGpu, tried, Step::kClosed), ::testing::IsEmpty());
  EXPECT_THAT(EscapesIn(WorkerRole::kSensors, tried, Step::kClosed), ::testing::IsEmpty());
}

TEST(Sandbox, TakesADevicesCommandsAndNoOthers) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Sandbox sandbox({});
    const auto entered = sandbox.Enter(WorkerRole::kGpu);
    if (!entered || !sandbox.Close(*entered)) ::_exit(1);
    const int file = ::memfd_create("kiln-commands", MFD_CLOEXEC);
    const auto refused = [file](unsigned long command) { return ::ioctl(file, command, nullptr) != 0 && errno == EPERM; };
    constexpr unsigned long kControl = 0xc020462a, kManagedMemory = 0x49, kManagedStart = 0x3000'0001;  // as an H200's driver sends them
    if (refused(kControl) || refused(kManagedMemory) || refused(kManagedStart)) ::_exit(2);
    constexpr std::array<unsigned long, 5> kOthers = {TIOCSTI, FIOASYNC, FIOSETOWN, SIOCGIFCONF, 0x4b01};
    for (const unsigned long command : kOthers) {
      if (!refused(command)) ::_exit(3);
    }
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(SandboxTest, AGpuIsTheDevicesThatItsDriverNeeds) {
  const fs::path devices = folder_ / "dev";
  for (const char* folder : {"dri", "nvidia-caps"}) fs::create_directories(devices / folder);
  for (const char* name : {"nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia", "nvidia0p1", "null",
                           "dri/card0", "dri/renderD128", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"}) {
    std::ofstream(devices / name).flush();
  }
  fs::permissions(devices / "nvidia-caps/nvidia-cap1", fs::perms(0400));
  fs::permissions(devices / "nvidia-caps/nvidia-cap2", fs::perms(0444));
  EXPECT_THAT(GpuFiles(GpuDriver::kNvidia, devices),
              ::testing::UnorderedElementsAre(devices / "nvidia0", devices / "nvidia12", devices / "nvidiactl", devices / "nvidia-uvm"));
  EXPECT_THAT(GpuPartFiles(devices), ::testing::ElementsAre(devices / "nvidia-caps/nvidia-cap2"));
  EXPECT_THAT(GpuFiles(GpuDriver::kAmd, devices), ::testing::IsEmpty()) << "what renders is another's";
  std::ofstream(devices / "kfd").flush();
  EXPECT_THAT(GpuFiles(GpuDriver::kAmd, devices), ::testing::UnorderedElementsAre(devices / "kfd", devices / "dri/renderD128"));
}

// From here on this thread, and what it starts, cannot have a filter; prctl says EINVAL, as a kernel without seccomp does.
void TakeFiltersAway() {
  const std::array<sock_filter, 6> code = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_SECCOMP, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{code.size(), const_cast<sock_filter*>(code.data())};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// From here on this thread, and what it starts, has no such calls, as on an older kernel.
void TakeCallsAway(const std::vector<long>& calls, int error) {
  std::vector<sock_filter> code = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

struct OldKernel {
  std::vector<long> without;  // calls
  bool root = false;
  std::optional<unsigned> becomes = {};
};

// In a process on such a kernel that has entered as a compile worker: what is in force, and the files it could write.
std::string CompilesOn(const OldKernel& kernel) {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (!kernel.root && ::geteuid() == 0 && (::setresgid(4244, 4244, 4244) != 0 || ::setresuid(4244, 4244, 4244) != 0)) ::_exit(1);
    const unsigned user = kernel.becomes.value_or(::geteuid());
    TakeCallsAway(kernel.without, ENOSYS);
    const Sandbox sandbox({.memory_bytes = 0, .program = {}, .user = kernel.becomes, .readable = {}, .parent = 0});
    const auto entered = sandbox.Enter(WorkerRole::kCompile);
    std::string text = entered ? entered->Text() : entered.error();
    for (const Escape escape : {Escape::kWriteFile, Escape::kRename, Escape::kMakeFolder, Escape::kChangeMode, Escape::kMount}) {
      if (Escapes(escape, "")) text += " escaped-" + std::to_string(static_cast<int>(escape));
    }
    // What a compiler does write: a memory file under its name, and nowhere.
    const int memory = ::memfd_create("kiln-sandbox", 0);
    if (::open(("/proc/self/fd/" + std::to_string(memory)).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600) < 0) text += " no-memory-file";
    if (::open("/dev/null", O_WRONLY) < 0) text += " no-null";
    if (::open("/etc/passwd", O_RDONLY) < 0) text += " reads-nothing";
    if (::geteuid() != user) text += " another-user";
    ::_exit(::write(ends[1], text.data(), text.size()) > 0 ? 0 : 2);
  }
  ::close(ends[1]);
  std::string text(1000, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(ends[0], text.data(), text.size()), 0)));
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  return text;
}

// That this machine lets a user have mounts of its own.
bool UsersHaveMounts() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::geteuid() == 0 && ::setresuid(4244, 4244, 4244) != 0) ::_exit(1);
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(1);
    ::_exit(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(pid, &status, 0) == pid && status == 0;
}

TEST(Sandbox, WithoutLandlockACompilerWritesNoFileEither) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  if (!UsersHaveMounts()) GTEST_SKIP() << "no user namespaces here";
  const std::string confined = " files=read-only network=filter calls=allow-list privileges=none-new";
  for (const long without : {long{SYS_landlock_create_ruleset}, long{SYS_mount_setattr}}) {
    const std::vector<long> calls = {SYS_landlock_create_ruleset, without};
    const std::string user = ::geteuid() == 0 ? "4244" : std::to_string(::geteuid());
    EXPECT_EQ(CompilesOn({.without = calls}), "user=" + user + confined) << without;
    if (::geteuid() != 0) continue;
    EXPECT_EQ(CompilesOn({.without = calls, .root = true, .becomes = 4245}), "user=4245" + confined) << without;
    EXPECT_EQ(CompilesOn({.without = calls, .root = true}), "user=root" + confined) << without;
  }
}

// What is then in force is told.
TEST(Sandbox, WithoutLandlockAndMountsFilesAreOpen) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  EXPECT_THAT(CompilesOn({.without = {SYS_landlock_create_ruleset, SYS_unshare}}), HasSubstr(" files=open "));
}

TEST_F(SandboxTest, WithoutLandlockProgramsAreCompiledAndNoFileIsWritten) {
  if (kSanitized || !UsersHaveMounts()) GTEST_SKIP() << "no user namespaces here, or a sanitizer";
  std::thread([&] {
    TakeCallsAway({SYS_landlock_create_ruleset}, ENOSYS);
    daemon_->Start({"--ptxas=/bin/true"});
  }).join();
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("files=read-only") != std::string::npos; }));
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).status.ok());
  EXPECT_EQ(Try(Escape::kWriteFile), "refused");
  EXPECT_EQ(Try(Escape::kStartPtxas), "escaped") << "that is what it has it for";
}

TEST_F(SandboxTest, WithoutAFilterNothingIsCompiled) {
  std::thread([&] {
    TakeFiltersAway();
    daemon_->Start();
  }).join();
  const auto result = daemon_->Compile(MakeRequest(Order::kAnswer, 3));
  EXPECT_FALSE(result.status.ok());
  EXPECT_THAT(result.status.error_message(), HasSubstr("does not let a worker confine itself (seccomp"));
  EXPECT_THAT(daemon_->LogText(), HasSubstr("level=error event=workers protections=\"none: "));
}

TEST(Sandbox, WithoutAFilterNoRoleIsEntered) {
  for (const WorkerRole role : {WorkerRole::kCompile, WorkerRole::kEmulator, WorkerRole::kGpu, WorkerRole::kLooseGpu, WorkerRole::kSensors}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      TakeFiltersAway();
      const Sandbox sandbox({});
      ::_exit(sandbox.Enter(role) ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << static_cast<unsigned>(role);
  }
}

// A worker that is forked just before kilnd is killed: the signal that would end it has been sent already.
TEST(Sandbox, IsNotEnteredOnceTheParentHasEnded) {
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const pid_t self = ::getpid();
    const Sandbox sandbox({.program = {}, .user = {}, .readable = {}, .parent = self});
    if (::fork() != 0) ::_exit(0);
    while (::getppid() == self) ::usleep(1000);  // between looks
    const char entered = sandbox.Enter(WorkerRole::kEmulator) ? 'y' : 'n';
    ::_exit(::write(ends[1], &entered, 1) == 1 ? 0 : 1);
  }
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  char entered = '?';
  EXPECT_EQ(::read(ends[0], &entered, 1), 1);
  EXPECT_EQ(entered, 'n');
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(SandboxTest, StartsPtxasAndNothingElse) {
  daemon_->Start({"--ptxas=/bin/true"});
  EXPECT_EQ(Try(Escape::kStartPtxas), "escaped") << "that is what it has it for";
  if (LandlockVersion() > 0) {
    EXPECT_EQ(Try(Escape::kExec), "refused");
  }
  for (const Escape escape : {Escape::kInternet, Escape::kTracing, Escape::kSignal, Escape::kLeaveGroup}) {
    if (!kSanitized) {
      EXPECT_EQ(Try(escape), "refused") << static_cast<uint32_t>(escape);
    }
  }
}

// The limits that a compile worker can set, which may start `program`: as they are, which the kernel itself allows everybody. -1: a limit of its
// parent's.
std::vector<int> LimitsThatACompilerSets(const fs::path& program) {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Sandbox sandbox({.program = program, .user = {}, .readable = {}, .parent = 0});
    if (!sandbox.Enter(WorkerRole::kCompile)) ::_exit(1);
    const auto sets = [](pid_t process, int resource) {
      const auto which = static_cast<__rlimit_resource>(resource);
      rlimit limit = {};
      if (::prlimit(0, which, nullptr, &limit) != 0) ::_exit(2);  // any can be read
      return ::prlimit(process, which, &limit, nullptr) == 0;
    };
    std::vector<int> set;
    for (int resource = 0; resource < static_cast<int>(RLIM_NLIMITS); ++resource) {
      if (sets(0, resource)) set.push_back(resource);
    }
    if (sets(::getppid(), RLIMIT_CPU)) set.push_back(-1);
    const ssize_t bytes = static_cast<ssize_t>(set.size() * sizeof(int));
    ::_exit(::write(ends[1], set.data(), static_cast<std::size_t>(bytes)) == bytes ? 0 : 3);
  }
  return NumbersFrom(pid, ends);
}

TEST(Sandbox, ACompilerBoundsTheTimeOfWhatItStartsAndNoOtherLimit) {
  if (kSanitized) GTEST_SKIP() << "no allow-list with the sanitizers";
  EXPECT_THAT(LimitsThatACompilerSets("/bin/true"), ::testing::ElementsAre(RLIMIT_CPU));
  EXPECT_THAT(LimitsThatACompilerSets({}), ::testing::IsEmpty());
}

TEST_F(SandboxTest, TheLogTellsWhatIsInForce) {
  daemon_->Start();
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("protections=") != std::string::npos; }));
  const std::string log = daemon_->LogText();
  if (!kSanitized) {
    EXPECT_THAT(log, HasSubstr("calls=allow-list privileges=none-new"));
  }
  if (LandlockVersion() > 0) {
    EXPECT_THAT(log, HasSubstr("files=landlock-"));
  }
  EXPECT_THAT(log, ::testing::Not(HasSubstr("user=root")));
}

TEST_F(SandboxTest, OfRootBecomesTheUserThatIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  daemon_->Start({"--worker-user=4243"});
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("user=4243 ") != std::string::npos; }));
  ASSERT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer)).status.ok());
  const auto zygotes = Daemon::Children(daemon_->pid());
  ASSERT_EQ(zygotes.size(), 1u);
  // The one that answered is confined by now. One that has just begun, or that looks for GPUs, is not confined like this.
  std::string other;
  int confined_workers = 0;
  const auto look = [&] {
    other.clear();
    confined_workers = 0;
    for (const pid_t worker : Daemon::Children(zygotes.front())) {
      std::ostringstream text;
      for (const char* file : {"/status", "/limits"}) text << std::ifstream("/proc/" + std::to_string(worker) + file).rdbuf();
      const bool confined = ::testing::Value(text.str(), ::testing::AllOf(HasSubstr("Uid:\t4243\t4243\t4243\t4243"), HasSubstr("NoNewPrivs:\t1"),
                                                                          ::testing::ContainsRegex("Max processes +4096 +4096 ")));
      const bool all = confined && (kSanitized || text.str().find("Seccomp:\t2") != std::string::npos);
      all ? void(++confined_workers) : void(other += text.str());
    }
    return other.empty() && confined_workers > 0;
  };
  (void)look();
  EXPECT_GT(confined_workers, 0) << other;
  EXPECT_TRUE(daemon_->Eventually(look)) << other;
}

}  // namespace
}  // namespace kiln::server::testing
