// SPDX-License-Identifier: Apache-2.0
#include "server/queue/fair_share.h"

#include <algorithm>
#include <optional>

namespace kiln::server {
namespace {

constexpr double kMemory = 16;  // jobs over which the average forgets
constexpr std::size_t kRemembered = 64;

double MillisecondsBetween(FairShare::Time from, FairShare::Time to) { return std::chrono::duration<double, std::milli>(to - from).count(); }

}  // namespace

// By its jobs until now, whatever those that run count for.
double FairShare::Taken(const Tenant& tenant, Time now) {
  double taken_ms = tenant.time_ms;
  for (const Running& job : tenant.running) taken_ms += MillisecondsBetween(job.began, now);
  return taken_ms;
}

// The virtual time at which tenants are served now, with what their running jobs have taken since. While no tenant waits, it is that of the
// tenants for whom something runs.
double FairShare::Served(Time now) const {
  std::optional<double> waits_ms, runs_ms;
  for (const auto& [name, tenant] : tenants_) {
    const double taken_ms = Taken(tenant, now);
    if (tenant.waiting > 0) waits_ms = std::min(waits_ms.value_or(taken_ms), taken_ms);
    if (!tenant.running.empty()) runs_ms = std::min(runs_ms.value_or(taken_ms), taken_ms);
  }
  return std::max(served_ms_, waits_ms ? *waits_ms : runs_ms.value_or(0));
}

void FairShare::Enter(const std::string& tenant, Time now) {
  const auto [at, is_new] = tenants_.try_emplace(tenant);
  Tenant& state = at->second;
  if (is_new) state.average_ms = first_estimate_ms_;
  if (state.waiting == 0) state.time_ms += std::max(0.0, Served(now) - Taken(state, now));
  ++state.waiting;
  ++present_;
}

void FairShare::Leave(const std::string& tenant) {
  --tenants_.at(tenant).waiting;
  --present_;
  ForgetIdle();
}

double FairShare::TimeOf(const std::string& tenant, Time now) const {
  const Tenant& state = tenants_.at(tenant);
  double time_ms = state.time_ms;
  for (const Running& job : state.running) time_ms += std::max(job.least_ms, MillisecondsBetween(job.began, now));
  return time_ms;
}

FairShare::Turn FairShare::Begin(const std::string& tenant, Time now) {
  Tenant& state = tenants_.at(tenant);
  served_ms_ = std::max(served_ms_, Taken(state, now));
  --state.waiting;
  state.running.push_back({++last_turn_, now, state.average_ms});
  return last_turn_;
}

void FairShare::Finish(const std::string& tenant, Turn turn, double took_ms) {
  Tenant& state = tenants_.at(tenant);
  std::erase_if(state.running, [turn](const Running& job) { return job.turn == turn; });
  state.time_ms += took_ms;
  state.average_ms += (took_ms - state.average_ms) / kMemory;
  --present_;
  ForgetIdle();
}

void FairShare::ForgetIdle() {
  if (present_ == 0) {
    for (auto& [name, state] : tenants_) state.time_ms = 0;
    served_ms_ = 0;
  }
  // A name costs memory, and names come from outside.
  if (tenants_.size() <= kRemembered) return;
  std::erase_if(tenants_, [&](const auto& item) {
    const Tenant& state = item.second;
    return state.waiting == 0 && state.running.empty() && state.time_ms <= served_ms_;
  });
}

}  // namespace kiln::server
