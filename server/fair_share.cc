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
  const double behind = served_ms_ - state.time_ms;
  if (state.waiting == 0 && behind > 0) {
    state.time_ms += behind;
    if (state.running > 0) state.ahead_ms += behind;
  }
  ++state.waiting;
  ++present_;
}

void FairShare::Leave(const std::string& tenant) {
  --tenants_.at(tenant).waiting;
  --present_;
  ForgetIdle();
}

double FairShare::TimeOf(const std::string& tenant) const { return tenants_.at(tenant).time_ms; }

double FairShare::Begin(const std::string& tenant) {
  Tenant& state = tenants_.at(tenant);
  served_ms_ = std::max(served_ms_, state.time_ms - state.charged_ms);
  --state.waiting;
  ++state.running;
  state.time_ms += state.average_ms;
  state.charged_ms += state.average_ms;
  return state.average_ms;
}

void FairShare::Finish(const std::string& tenant, double charged_ms, double took_ms) {
  Tenant& state = tenants_.at(tenant);
  const double more_ms = took_ms - charged_ms, paid_ms = std::clamp(more_ms, 0.0, state.ahead_ms);
  state.time_ms += more_ms - paid_ms;
  state.charged_ms -= charged_ms;
  state.average_ms += (took_ms - state.average_ms) / kMemory;
  state.ahead_ms = --state.running == 0 ? 0 : state.ahead_ms - paid_ms;
  --present_;
  ForgetIdle();
}

void FairShare::ForgetIdle() {
  if (present_ == 0) {
    for (auto& [name, state] : tenants_) state.time_ms = state.charged_ms = 0;
    served_ms_ = 0;
  }
  // A name costs memory, and names come from outside.
  if (tenants_.size() <= kRemembered) return;
  std::erase_if(tenants_, [&](const auto& item) {
    const Tenant& state = item.second;
    return state.waiting == 0 && state.running == 0 && state.time_ms <= served_ms_;
  });
}

}  // namespace kiln::server
