// SPDX-License-Identifier: Apache-2.0
#include "server/pool/device_senses.h"

#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "server/system/process_name.h"

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kLimit{10};

std::vector<v1::DeviceState> NothingKnown(std::size_t devices, const std::string& why) {
  v1::DeviceState state;
  state.set_problem(why);
  return std::vector<v1::DeviceState>(devices, state);
}

std::string ProblemOf(const DeviceOutcome& outcome) {
  switch (outcome.end) {
    case DeviceOutcome::End::kTimeout: return fmt::format("the driver did not answer within {} s", kLimit.count());
    case DeviceOutcome::End::kCancelled: return "kilnd stops";
    default: return fmt::format("the worker that asks the driver ended: {}", outcome.cause);
  }
}

// The worker sees no other process; kilnd may.
std::vector<v1::DeviceState> Named(const v1::DeviceStates& said) {
  std::vector<v1::DeviceState> states(said.states().begin(), said.states().end());
  for (v1::DeviceState& state : states) {
    for (v1::DeviceProcess& process : *state.mutable_processes()) process.set_name(ProcessName(process.pid()));
  }
  return states;
}

}  // namespace

void DeviceSenses::Ask(const std::vector<v1::DeviceInfo>& devices, Done done) {
  if (devices.empty()) return done({});
  auto task = std::make_unique<DeviceTask>();
  task->request_id = "sensors";
  for (const v1::DeviceInfo& device : devices) *task->job.mutable_sense()->add_devices() = device;
  task->limit = kLimit;
  task->done = [done, count = devices.size()](DeviceOutcome outcome) {
    const auto& states = outcome.event.states();
    const bool whole = outcome.end == DeviceOutcome::End::kResult && static_cast<std::size_t>(states.states_size()) == count;
    done(whole ? Named(states) : NothingKnown(count, ProblemOf(outcome)));
  };
  if (!line_.Submit(task)) done(NothingKnown(devices.size(), "too many ask already"));
}

}  // namespace kiln::server
