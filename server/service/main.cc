// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cache/sqlite/store_directory.h"
#include "server/access/token_command.h"
#include "server/config/config.h"
#include "server/service/config_check.h"
#include "server/service/daemon.h"
#include "server/system/system_clock.h"

namespace {

using namespace kiln::server;

constexpr std::chrono::seconds kAfterGrace{10};  // to write the cache and to end

// The next signal. Until then systemd's watchdog is told at least twice in each of its periods that kilnd is alive, as long as it is.
int AwaitSignal(const sigset_t& signals, const ServiceManager& manager, Daemon& daemon) {
  const auto half = std::chrono::duration_cast<std::chrono::nanoseconds>(manager.watchdog) / 2;
  std::chrono::nanoseconds period = std::chrono::seconds(1);
  if (half.count() > 0) period = std::min(period, half);
  const timespec wait{static_cast<time_t>(period.count() / 1'000'000'000), static_cast<long>(period.count() % 1'000'000'000)};
  for (;;) {
    const int signal = ::sigtimedwait(&signals, nullptr, &wait);
    if (signal > 0) return signal;
    if (half.count() > 0 && daemon.Alive()) manager.Tell("WATCHDOG=1");
    daemon.Tidy();
  }
}

// Until another signal of `ends`. The manager's own times for a stop, and for its watchdog, may be shorter than the grace period.
void Drain(const sigset_t& ends, const ServiceManager& manager, std::chrono::microseconds grace, Daemon& daemon) {
  const SystemClock clock;
  manager.Tell("STOPPING=1");
  manager.Tell(fmt::format("EXTEND_TIMEOUT_USEC={}", (grace + kAfterGrace).count()));
  kiln::cache::SteadyTime told{};
  daemon.Drain([&] {
    if (manager.watchdog.count() > 0 && clock.SteadyNow() - told >= manager.watchdog / 2 && daemon.Alive()) {
      manager.Tell("WATCHDOG=1");
      told = clock.SteadyNow();
    }
    const timespec now{};
    return ::sigtimedwait(&ends, nullptr, &now) > 0;
  });
}

// A log that cannot be opened is an exception, as in spdlog.
std::expected<std::unique_ptr<Daemon>, std::string> Started(Config config) {
  try {
    return Daemon::Start(std::move(config));
  } catch (const std::exception& error) {
    return std::unexpected(error.what());
  }
}

// Whether to retry the start with this socket's own store, because another kilnd holds the default one.
bool UseOwnStore(Config& config) {
  if (!config.own_state_directory || !kiln::cache::IsHeld(config.state_directory)) return false;
  config.state_directory = *std::exchange(config.own_state_directory, std::nullopt);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "token") return TokenCommand(argc - 1, argv + 1);
  auto config = ReadConfig(argc, argv);
  if (!config) {
    std::fprintf(config.error().status == 0 ? stdout : stderr, "%s%s\n", config.error().status == 0 ? "" : "kilnd: ", config.error().text.c_str());
    return config.error().status;
  }
  if (config->effective) return CheckConfig(*config);
  const ServiceManager manager = config->service_manager;
  const std::chrono::microseconds grace = config->grace;
  ::umask(0077);
  ::mallopt(M_ARENA_MAX, 4);  // gRPC's threads would each keep one of their own
  // glibc would raise both with the largest block that it has seen freed, and keep up to twice that in each arena from then on.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 4 << 20);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigset_t signals = ends;
  sigaddset(&signals, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // in every thread: this one waits for them

  auto daemon = Started(*config);
  if (!daemon && UseOwnStore(*config)) daemon = Started(std::move(*config));
  if (!daemon) {
    std::fprintf(stderr, "kilnd: %s\n", daemon.error().c_str());
    return 1;
  }
  manager.Tell("READY=1");
  while (AwaitSignal(signals, manager, **daemon) == SIGHUP) (*daemon)->Reload();
  Drain(ends, manager, grace, **daemon);
  return 0;
}
