// SPDX-License-Identifier: Apache-2.0
#include "server/fair_share.h"

#include <algorithm>

namespace kiln::server {
namespace {

constexpr double kMemory = 16;  // jobs over which the average forgets
constexpr std::size_t kRemembered = 64;

}  // namespace

void FairShare::Enter(const std::string& tenant) {
  const auto [at, is_new] = tenants_.try_emplace(tenant);
  Tenant& state = at->second;
  if (is_new) state.average_ms = first_estimate_ms_;
  if (state.present == 0) state.time_ms = std::max(state.time_ms, served_ms_);
  ++state.present;
}

void FairShare::Leave(const std::string& tenant) {
  --tenants_.at(tenant).present;
  ForgetIdle();
}

double FairShare::TimeOf(const std::string& tenant) const { return tenants_.at(tenant).time_ms; }

double FairShare::Begin(const std::string& tenant) {
  Tenant& state = tenants_.at(tenant);
  served_ms_ = std::max(served_ms_, state.time_ms);
  state.time_ms += state.average_ms;
  return state.average_ms;
}

void FairShare::Finish(const std::string& tenant, double charged_ms, double took_ms) {
  Tenant& state = tenants_.at(tenant);
  state.time_ms += took_ms - charged_ms;
  state.average_ms += (took_ms - state.average_ms) / kMemory;
  Leave(tenant);
}

// A name costs memory, and names come from outside.
void FairShare::ForgetIdle() {
  if (tenants_.size() <= kRemembered) return;
  // While nobody wants anything, nobody owes anybody anything.
  const bool all_idle = std::ranges::all_of(tenants_, [](const auto& item) { return item.second.present == 0; });
  std::erase_if(tenants_, [&](const auto& item) {
    return item.second.present == 0 && (all_idle || item.second.time_ms <= served_ms_);
  });
}

}  // namespace kiln::server
