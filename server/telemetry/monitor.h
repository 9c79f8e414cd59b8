// SPDX-License-Identifier: Apache-2.0
//
// What operators' tools ask over HTTP: /metrics for Prometheus, /healthz (is the process alive), /readyz (should it get requests).
// Read-only, on an address of its own, without TLS: it tells numbers, targets and tenants' names, never anything of a program.
#pragma once

#include <expected>
#include <functional>
#include <memory>
#include <string>

namespace kiln::server {

struct Probe {
  bool ok = false;
  std::string text;  // a line for each thing that was looked at
};

class Monitor {
 public:
  // Called on the monitor's threads.
  struct Sources {
    std::function<std::string()> metrics;
    std::function<Probe()> health;
    std::function<Probe()> readiness;
  };

  // `address` is HOST:PORT; port 0 takes a free one.
  static std::expected<std::unique_ptr<Monitor>, std::string> Start(const std::string& address, Sources sources);
  ~Monitor();

  const std::string& address() const { return address_; }  // with the port it got

 private:
  struct Server;
  Monitor(std::unique_ptr<Server> server, std::string address);

  const std::unique_ptr<Server> server_;
  const std::string address_;
};

}  // namespace kiln::server
