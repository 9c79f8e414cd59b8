// SPDX-License-Identifier: Apache-2.0
//
// kilnd without its main(): everything that serves, in the order in which it must be made, and unmade in the reverse.
#pragma once

#include <expected>
#include <functional>
#include <memory>
#include <string>

#include "server/config/config.h"

namespace kiln::server {

class Daemon {
 public:
  // Starts serving. The zygote is started first, before gRPC exists. The error is for the person who started kilnd.
  static std::expected<std::unique_ptr<Daemon>, std::string> Start(Config config);
  ~Daemon();

  // Reads tokens, access rules and trusted keys again, and opens the logs again where their names are.
  void Reload();

  // Whether requests still get through its threads.
  bool Alive();

  // Now and then: gives back memory that a burst has left, in a quiet moment if there is one.
  void Tidy();

  // Refuses new compiles, lets what was accepted before finish for as long as the grace period, ends the others, writes the cache.
  // `hurry` is asked now and then; true ends the grace period.
  void Drain(const std::function<bool()>& hurry);

 private:
  struct Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kiln::server
