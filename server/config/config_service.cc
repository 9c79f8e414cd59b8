// SPDX-License-Identifier: Apache-2.0
//
// What systemd says through the environment. The variables are removed, so that no worker takes them for its own.
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/system/service_manager.h"

namespace kiln::server {
namespace {

std::string Take(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  ::unsetenv(name);
  return text;
}

long long NumberOf(std::string_view text) {
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

// Absent means us, as sd_watchdog_enabled(3) has it.
bool IsUs(const std::string& pid) { return pid.empty() || NumberOf(pid) == ::getpid(); }

}  // namespace

ServiceManager ServiceManagerFromEnvironment() {
  ServiceManager manager{.notify_socket = Take("NOTIFY_SOCKET")};
  const std::string watchdog = Take("WATCHDOG_USEC");
  if (IsUs(Take("WATCHDOG_PID"))) manager.watchdog = std::chrono::microseconds(NumberOf(watchdog));
  const std::string sockets = Take("LISTEN_FDS");
  const std::string listener = Take("LISTEN_PID");
  Take("LISTEN_FDNAMES");
  if (!listener.empty() && IsUs(listener)) manager.inherited_sockets = static_cast<int>(NumberOf(sockets));
  return manager;
}

}  // namespace kiln::server
