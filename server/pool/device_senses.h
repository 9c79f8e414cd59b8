// SPDX-License-Identifier: Apache-2.0
//
// What the GPUs of this host do at this moment, whoever makes them do so: asked of a worker of its own, which opens none of them. It is started when
// somebody asks for the first time, and stays.
//
// Threads. Any thread asks; `done` is called once, on the worker's thread or on the one that asks.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/v1/run.pb.h"
#include "server/pool/device_line.h"

namespace kiln::server {

class DeviceSenses {
 public:
  using Done = std::function<void(std::vector<v1::DeviceState>)>;  // of the devices in their order

  DeviceSenses(std::function<void(std::string_view request_id, std::string_view cause)> on_replaced, Zygote& zygote, const cache::Clock& clock)
      : line_({.name = "sensors", .role = WorkerRole::kSensors, .on_replaced = std::move(on_replaced)}, zygote, clock) {}

  void Ask(const std::vector<v1::DeviceInfo>& devices, Done done);
  void Close() { line_.Close(); }

 private:
  DeviceLine line_;
};

}  // namespace kiln::server
