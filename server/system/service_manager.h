// SPDX-License-Identifier: Apache-2.0
//
// systemd's end of a service, as sd_notify(3) and sd_listen_fds(3) document it: datagrams on the socket it names, and sockets it has
// opened. Without systemd all of it does nothing.
#pragma once

#include <chrono>
#include <expected>
#include <string>
#include <string_view>

#include "clients/common/unique_fd.h"

namespace kiln::server {

struct ServiceManager {
  std::string notify_socket;              // $NOTIFY_SOCKET; empty: none
  std::chrono::microseconds watchdog{0};  // to be told of that often at least; 0: never
  int inherited_sockets = 0;              // from descriptor 3 on

  // "READY=1", "STOPPING=1", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=…"; lines are separated by '\n'. What cannot be sent is lost:
  // the manager then acts as if nothing had been said.
  void Tell(std::string_view state) const;
};

// As the environment says.
ServiceManager ServiceManagerFromEnvironment();

// The one socket that was inherited, which must be a listening Unix socket: kilnd speaks for nobody else's choice of address. The error
// says what the unit must change. Empty where none was.
std::expected<UniqueFd, std::string> TakeListener(const ServiceManager& manager);

// Where it listens, as Endpoint::address.
std::string AddressOf(const UniqueFd& listener);

}  // namespace kiln::server
