// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include <fmt/format.h>

#include "clients/cli/sources.h"
#include "clients/common/config_environment.h"
#include "clients/cpp/recording.h"

namespace kiln::cli {
namespace {

constexpr const char* kVariable = "KILN_RECORD";
// As shells have them.
constexpr int kCannotRun = 126, kNotFound = 127, kSignalled = 128;

// What somebody may send this process and means for COMMAND; and that COMMAND has ended.
sigset_t Awaited() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

// The signals wait in this thread alone, which is the only one.
class Child {
 public:
  std::expected<void, Error> Start(std::vector<std::string> words, int& status) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    sigset_t before;
    ::pthread_sigmask(SIG_BLOCK, &awaited_, &before);
    ::signal(SIGCHLD, SIG_DFL);  // whoever ignores it is told of no child's end
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &before);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    const int error = ::posix_spawnp(&pid_, argv[0], nullptr, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    if (error == 0) return {};
    status = error == ENOENT ? kNotFound : kCannotRun;
    return std::unexpected(InvalidInput(fmt::format("cannot run {}: {}", words[0], ::strerror(error))));
  }

  // Its status.
  int Await() {
    for (;;) {
      siginfo_t info;
      const int signal = ::sigwaitinfo(&awaited_, &info);
      int status = 0;
      if (signal == SIGCHLD && ::waitpid(pid_, &status, WNOHANG) == pid_) {
        return WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
      }
      // What the kernel sends comes from the terminal, and COMMAND has it already.
      if (signal > 0 && signal != SIGCHLD && info.si_code <= 0) ::kill(pid_, signal);
    }
  }

 private:
  const sigset_t awaited_ = Awaited();
  pid_t pid_ = 0;
};

struct RecordCommand {
  std::string file;
  std::vector<std::string> given;  // by which the parser knows that there is a command; it may change words in brackets
  std::vector<std::string> words;  // behind `record`, as they are

  void Run(Context& context) const {
    context.LeaveStdout();  // it is COMMAND's
    const auto mark = std::ranges::find(words, "--");
    if (mark == words.end()) return context.Fail(InvalidInput("write -- before the command: kiln record -o FILE -- COMMAND"));
    auto recording = Recording::Begin(file);
    if (!recording) return context.Fail(recording.error());
    const std::string before = Environment(kVariable);
    ::setenv(kVariable, before.empty() ? recording->folder().c_str() : (before + ":" + recording->folder()).c_str(), 1);
    Child child;
    int status = 0;
    const auto started = child.Start({mark + 1, words.end()}, status);
    if (started) status = child.Await();
    const auto total = started ? recording->End() : std::unexpected(started.error());
    if (!total) {
      context.Fail(total.error());
    } else if (context.json()) {
      context.Print(Json::Object({{"file", file}, {"requests", std::uint64_t{*total}}, {"status", std::int64_t{status}}}));
    } else {
      fmt::print(context.report, "kiln: {} has {} requests\n", file, *total);
    }
    if (status != 0) context.status = status;
  }
};

}  // namespace

void AddRecord(CLI::App& app, Context& context) {
  const auto command = std::make_shared<RecordCommand>();
  CLI::App& sub = *app.add_subcommand("record", "Note what every client below a command asks for: kiln record -o FILE -- COMMAND …");
  sub.add_option("-o,--output", command->file, "the manifest; one that is there is added to")->required();
  sub.add_option("command", command->given, "what is run; its status and its output are those of kiln record")->required();
  sub.preparse_callback(
      [command, &context](std::size_t left) { command->words.assign(context.words.end() - static_cast<std::ptrdiff_t>(left), context.words.end()); });
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
