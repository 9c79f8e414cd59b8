// SPDX-License-Identifier: Apache-2.0
#include "server/fair_share.h"

#include <algorithm>
#include <optional>

namespace kiln::server {
namespace {

constexpr double kMemory = 16;  // jobs over which the average forgets
constexpr std::size_t kRemembered = 64;

}  // namespace

void FairShare::Enter(const std::string& tenant) {
  const auto [at, is_new] = tenants_.try_emplace(tenant);
  Tenant& state = at->second;
  if (is_new) state.average_ms = first_estimate_ms_;
  if (state.present == 0) state.time_ms = std::max(state.time_ms, LeastTime());
  ++state.present;
  ++present_;
}

// Of those who are there.
double FairShare::LeastTime() const {
  std::optional<double> least;
  for (const auto& [name, state] : tenants_) {
    if (state.present == 0) continue;
    const double time = state.time_ms - state.charged_ms;
    least = std::min(least.value_or(time), time);
  }
  return least.value_or(0);
}

void FairShare::Leave(const std::string& tenant) {
  --tenants_.at(tenant).present;
  --present_;
  ForgetIdle();
}

double FairShare::TimeOf(const std::string& tenant) const { return tenants_.at(tenant).time_ms; }

double FairShare::Begin(const std::string& tenant) {
  Tenant& state = tenants_.at(tenant);
  state.time_ms += state.average_ms;
  state.charged_ms += state.average_ms;
  return state.average_ms;
}

void FairShare::Finish(const std::string& tenant, double charged_ms, double took_ms) {
  Tenant& state = tenants_.at(tenant);
  state.time_ms += took_ms - charged_ms;
  state.charged_ms -= charged_ms;
  state.average_ms += (took_ms - state.average_ms) / kMemory;
  Leave(tenant);
}

void FairShare::ForgetIdle() {
  if (present_ == 0) {
    for (auto& [name, state] : tenants_) state.time_ms = state.charged_ms = 0;
  }
  // A name costs memory, and names come from outside.
  if (tenants_.size() <= kRemembered) return;
  const double least = LeastTime();
  std::erase_if(tenants_, [&](const auto& item) { return item.second.present == 0 && item.second.time_ms <= least; });
}

}  // namespace kiln::server
