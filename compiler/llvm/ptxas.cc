// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/emit_base.h"
#include "compiler/llvm/sass/early_reads.h"
#include "compiler/llvm/sass/lost_halves.h"
#include "compiler/llvm/sass/torn_registers.h"

namespace kiln::llvm_ir {
namespace {

// The number that stands before `unit` in `line`: "32 registers" → 32.
std::optional<uint32_t> NumberBefore(std::string_view line, std::string_view unit) {
  const size_t at = line.find(unit);
  if (at == std::string_view::npos || at == 0) return std::nullopt;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  uint32_t value = 0;
  if (std::from_chars(line.data() + begin, line.data() + at, value).ptr != line.data() + at || begin == at) return std::nullopt;
  return value;
}

// What ptxas -v prints of each entry, in three lines:
//   Compiling entry function 'NAME' for 'sm_90a' | N bytes stack frame, N bytes spill stores, N bytes spill loads |
//   Used N registers, …, N bytes smem, …
class Log {
 public:
  explicit Log(PtxasOutput& output) : output_(output) {}

  void Line(std::string_view line) {
    if (line.find("Compiling entry function '") != std::string_view::npos) return Entry(line);
    if (const size_t at = line.find(kFunction); at != std::string_view::npos) function_ = line.substr(at + kFunction.size());
    if (line.find("warning") != std::string_view::npos || line.find("(C7") != std::string_view::npos) {
      output_.warnings.emplace_back(line);
      return;
    }
    if (output_.kernels.empty()) return;
    if (function_ != output_.kernels.back().entry()) return Called(line);
    v1::KernelResources& kernel = output_.kernels.back();
    if (auto bytes = NumberBefore(line, " bytes stack frame")) kernel.set_local_bytes(*bytes);
    if (auto bytes = NumberBefore(line, " bytes spill stores")) kernel.set_spill_bytes(*bytes);
    if (auto count = NumberBefore(line, " registers")) kernel.set_registers(*count);
    if (auto bytes = NumberBefore(line, " bytes smem")) kernel.set_shared_bytes(*bytes);
  }

 private:
  void Entry(std::string_view line) {
    const size_t begin = line.find('\'') + 1;
    function_ = line.substr(begin, line.find('\'', begin) - begin);
    output_.kernels.emplace_back().set_entry(function_);
  }

  // Of a function that is part of a long kernel (outline.h), whose name it begins with: what it spills is the kernel's.
  void Called(std::string_view line) {
    const auto bytes = NumberBefore(line, " bytes spill stores");
    if (!bytes) return;
    for (v1::KernelResources& kernel : output_.kernels)
      if (function_.starts_with(kernel.entry() + "_$_")) kernel.set_spill_bytes(kernel.spill_bytes() + *bytes);
  }

  static constexpr std::string_view kFunction = "Function properties for ";
  PtxasOutput& output_;
  std::string function_;  // that the lines are about
};

// Whether a process ends by this signal for what its code does: not for a limit, or because somebody sent it.
bool IsOfItsOwn(int signal) { return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE; }

// The processor time, in seconds, that ptxas has with this optimization. For most kernels, its optimizer takes 0.2 ms a statement and less; for a
// few, minutes. Without it, only the request's deadline limits the time.
std::optional<rlim_t> SecondsFor(int level, std::string_view ptx) {
  if (level == 0) return std::nullopt;
  return 5 + std::ranges::count(ptx, ';') / 1000;
}

// Bounds this process's time by so many seconds and what bounds it already. Where SIGXCPU is ignored, SIGKILL follows.
bool BoundTime(rlim_t seconds) {
  rlimit time = {};
  if (::getrlimit(RLIMIT_CPU, &time) != 0) return false;
  time.rlim_max = std::min(time.rlim_max, seconds + 2);
  time.rlim_cur = std::min({time.rlim_cur, time.rlim_max, seconds});
  return ::setrlimit(RLIMIT_CPU, &time) == 0;
}

// Starts `argv` with both output streams in `log`; an errno. The child may only make system calls: it shares this process's memory until it has
// become the other program.
int Start(char* const* argv, int log, std::optional<rlim_t> seconds, pid_t& pid) {
  char* const environment[] = {nullptr};  // nothing outside may change the output
  volatile int failed = 0;
  pid = ::vfork();
  if (pid < 0) return errno;
  if (pid > 0) return failed;
  const int none = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool ready = (!seconds || BoundTime(*seconds)) && none >= 0 && ::dup2(none, 0) == 0 && ::dup2(log, 1) == 1 && ::dup2(log, 2) == 2;
  if (ready) ::execve(argv[0], argv, environment);
  failed = errno;
  ::_exit(127);
}

// Runs `args` for so many seconds of processor time at most, with both output streams in `log`; the exit status.
std::expected<int, PtxasFailure> Run(const std::vector<std::string>& args, const MemoryFile& log, std::optional<rlim_t> seconds) {
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int failed = Start(argv.data(), log.fd(), seconds, pid);
  int status = 0;
  while (pid > 0 && waitpid(pid, &status, 0) < 0) {
    if (errno == EINTR) continue;
    return std::unexpected(PtxasFailure{"lost " + args[0] + ": " + std::strerror(errno), true});
  }
  if (failed != 0) {
    const char* why = failed == EACCES ? " (a confined worker starts only the program itself: no script around it)" : "";
    return std::unexpected(PtxasFailure{"cannot run " + args[0] + ": " + std::strerror(failed) + why, true});
  }
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  if (signal == SIGXCPU && seconds) {
    return std::unexpected(PtxasFailure{args[0] + " took more than " + std::to_string(*seconds) + " s of processor time", false, true});
  }
  const bool from_outside = signal == SIGKILL || signal == SIGXCPU;
  return std::unexpected(PtxasFailure{args[0] + " ended by signal " + std::to_string(signal), from_outside, IsOfItsOwn(signal)});
}

std::expected<PtxasOutput, PtxasFailure> RunAt(int level, const std::string& ptxas, const target::Target& target, const std::string& ptx) {
  const MemoryFile log("kiln-ptxas-log");
  MemoryFile input("kiln-ptx", true);
  const MemoryFile cubin("kiln-cubin", true);
  if (!log.ok() || !input.ok() || !cubin.ok() || !input.Write(ptx.data(), ptx.size())) {
    return std::unexpected(PtxasFailure{std::string("no memory file for ptxas: ") + std::strerror(errno), true});
  }
  std::vector<std::string> command = {ptxas,        "-v",        "-O" + std::to_string(level), "-arch=" + std::string(target.arch), "-o",
                                      cubin.Path(), input.Path()};
  // With this option ptxas leaves functions apart; without it, it takes time that grows with the square of all of them.
  if (level == 0) command.insert(command.end(), {"--Ofast-compile", "max"});
  const std::optional<rlim_t> seconds = SecondsFor(level, ptx);
  auto status = Run(command, log, seconds);
  std::string text = log.Read();
  if (level == 0 && status && *status != 0 && text.find("nknown option") != std::string::npos) {  // before CUDA 12.9
    command.resize(command.size() - 2);
    status = Run(command, log, seconds);
    text = log.Read().substr(text.size());
  }
  if (!status) return std::unexpected(status.error());
  if (*status != 0) return std::unexpected(PtxasFailure{text.empty() ? "ptxas failed with status " + std::to_string(*status) : text});
  PtxasOutput output{.cubin = cubin.Read(), .kernels = {}, .warnings = {}};
  Log parser(output);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    parser.Line(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  return output;
}

// What is wrong with the code, if anything.
std::optional<std::string> FaultOf(const std::string& cubin, const target::Target& target) {
  if (const auto early = FindEarlyRead(cubin, target.arch)) return early->Text();
  if (const auto torn = FindTornRegister(cubin, target.arch)) return torn->Text();
  if (const auto lost = FindLostHalf(cubin, target.arch)) return lost->Text();
  return std::nullopt;
}

}  // namespace

std::expected<PtxasOutput, PtxasFailure> RunPtxas(const std::string& ptxas, const target::Target& target, const std::string& ptx, bool optimized) {
  std::string faults;
  bool wrong = false;  // some code was
  const auto note = [&](int level, const std::string& fault) { faults += (faults.empty() ? "-O" : "; -O") + std::to_string(level) + ": " + fault; };
  for (const int level : optimized ? std::vector{3, 1, 0} : std::vector{0}) {
    auto made = RunAt(level, ptxas, target, ptx);
    if (!made && made.error().optimizer_failed && level > 0) {
      note(level, made.error().text);
      continue;
    }
    // What it refuses with less optimization, it may make with more: the program is not at fault.
    const bool refused = !made && !made.error().optimizer_failed;
    if (!made && (wrong || (refused && !faults.empty())))
      return std::unexpected(PtxasFailure{faults + "; -O" + std::to_string(level) + ": " + made.error().text, true});
    if (!made) return made;
    const std::optional<std::string> fault = FaultOf(made->cubin, target);
    if (!fault) {
      if (!faults.empty()) {
        made->warnings.push_back((wrong ? "its code was wrong and is not used (" : "it failed (") + faults + "); what -O" + std::to_string(level) +
                                 " makes has no such fault, but may be slower: another version of ptxas may do better");
      }
      return made;
    }
    wrong = true;
    note(level, *fault);
  }
  return std::unexpected(PtxasFailure{"its code is wrong (" + faults + "): another version of ptxas may not have this fault", true});
}

}  // namespace kiln::llvm_ir
