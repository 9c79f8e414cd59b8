// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "server/config.h"
#include "server/config_check.h"
#include "server/daemon.h"
#include "server/token_command.h"

namespace {

using namespace kiln::server;

// The next signal. Until then systemd's watchdog is told twice in each of its periods that kilnd is alive, as long as it is.
int AwaitSignal(const sigset_t& signals, const ServiceManager& manager, Daemon& daemon) {
  const auto half = std::chrono::duration_cast<std::chrono::nanoseconds>(manager.watchdog) / 2;
  const timespec period{static_cast<time_t>(half.count() / 1'000'000'000), static_cast<long>(half.count() % 1'000'000'000)};
  for (;;) {
    const int signal = ::sigtimedwait(&signals, nullptr, half.count() > 0 ? &period : nullptr);
    if (signal > 0) return signal;
    if (daemon.Alive()) manager.Tell("WATCHDOG=1");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "token") return TokenCommand(argc - 1, argv + 1);
  auto config = ReadConfig(argc, argv);
  if (!config) {
    std::fprintf(config.error().status == 0 ? stdout : stderr, "%s%s\n", config.error().status == 0 ? "" : "kilnd: ",
                 config.error().text.c_str());
    return config.error().status;
  }
  if (config->effective) return CheckConfig(*config);
  const ServiceManager manager = config->service_manager;
  ::umask(0077);
  ::mallopt(M_ARENA_MAX, 4);  // gRPC's threads would each keep one of their own
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigset_t signals = ends;
  sigaddset(&signals, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // in every thread: this one waits for them

  auto daemon = Daemon::Start(std::move(*config));
  if (!daemon) {
    std::fprintf(stderr, "kilnd: %s\n", daemon.error().c_str());
    return 1;
  }
  manager.Tell("READY=1");
  while (AwaitSignal(signals, manager, **daemon) == SIGHUP) (*daemon)->Reload();
  manager.Tell("STOPPING=1");
  (*daemon)->Drain([&] {
    const timespec now{};
    return ::sigtimedwait(&ends, nullptr, &now) > 0;  // a second signal
  });
  return 0;
}
