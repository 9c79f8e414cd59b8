// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>

#include "server/config.h"
#include "server/daemon.h"

int main(int argc, char** argv) {
  using namespace kiln::server;
  auto config = ReadConfig(argc, argv);
  if (!config) {
    std::fprintf(config.error().status == 0 ? stdout : stderr, "%s%s\n", config.error().status == 0 ? "" : "kilnd: ",
                 config.error().text.c_str());
    return config.error().status;
  }
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
  int signal = 0;
  while (::sigwait(&signals, &signal) == 0 && signal == SIGHUP) (*daemon)->Reload();
  (*daemon)->Drain([&] {
    const timespec now{};
    return ::sigtimedwait(&ends, nullptr, &now) > 0;  // a second signal
  });
  return 0;
}
