// SPDX-License-Identifier: Apache-2.0
#include "server/access/quotas.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace kiln::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
constexpr std::size_t kForgetAbove = 10'000;  // tenants without a request under way and without use in this hour

std::int64_t HourOf(cache::WallTime time) { return std::chrono::floor<hours>(time).time_since_epoch().count(); }

double Seconds(std::chrono::microseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

// The time that the wall clock would show if it had not been set since the start.
cache::WallTime Quotas::Now() const { return wall_start_ + std::chrono::floor<std::chrono::microseconds>(clock_.SteadyNow() - steady_start_); }

Quotas::Use& Quotas::UseOf(const std::string& tenant) {
  const std::int64_t hour = HourOf(Now());
  if (uses_.size() > kForgetAbove) {
    std::erase_if(uses_, [&](const auto& row) { return row.second.requests == 0 && row.second.hour != hour; });
  }
  Use& use = uses_[tenant];
  if (use.hour != hour) {
    use.hour = hour;
    use.compile = use.gpu = {};
  }
  return use;
}

Quotas::Use Quotas::Used(const std::string& tenant) {
  cache::MutexLock lock(mutex_);
  return UseOf(tenant);
}

std::unexpected<Failure> Quotas::Refuse(std::string_view tenant, Failure failure) const {
  if (on_refused_) on_refused_(tenant, failure.message);
  return std::unexpected(std::move(failure));
}

std::expected<void, Failure> Quotas::Begin(const std::string& tenant) {
  const auto limit = limits_of_(tenant).requests;
  std::uint32_t requests = 0;
  {
    cache::MutexLock lock(mutex_);
    Use& use = UseOf(tenant);
    requests = use.requests;
    if (!limit || requests < *limit) {
      ++use.requests;
      return {};
    }
  }
  return Refuse(tenant, {.kind = Failure::Kind::kQueueFull,
                         .message = fmt::format("the tenant {} has {} requests under way, which is its quota; the next is taken when one of "
                                                "them ends",
                                                tenant, requests),
                         .retry_after = milliseconds(200)});
}

void Quotas::End(const std::string& tenant) {
  cache::MutexLock lock(mutex_);
  --UseOf(tenant).requests;
}

Failure Quotas::UsedUp(std::string_view tenant, std::string_view what, double limit) const {
  const cache::WallTime now = Now();
  const auto left = std::chrono::floor<hours>(now) + hours(1) - now;
  return {.kind = Failure::Kind::kQuota,
          .message = fmt::format("the tenant {} has used up its {:g} {} of this hour; there are new ones at {:%H:%M} UTC. What is in "
                                 "the cache is still served",
                                 tenant, limit, what, std::chrono::round<std::chrono::minutes>(clock_.WallNow() + left)),
          .retry_after = std::chrono::ceil<milliseconds>(left)};
}

std::expected<void, Failure> Quotas::MayCompile(const std::string& tenant) {
  const auto limit = limits_of_(tenant).compile_seconds;
  if (!limit) return {};
  if (Seconds(Used(tenant).compile) < *limit) return {};
  return Refuse(tenant, UsedUp(tenant, "compile-seconds", *limit));
}

std::expected<void, Failure> Quotas::MayRun(const std::string& tenant) {
  const auto limit = limits_of_(tenant).gpu_seconds;
  if (!limit) return {};
  if (Seconds(Used(tenant).gpu) < *limit) return {};
  return Refuse(tenant, UsedUp(tenant, "GPU-seconds", *limit));
}

void Quotas::ChargeCompile(const std::string& tenant, std::chrono::microseconds time) {
  cache::MutexLock lock(mutex_);
  UseOf(tenant).compile += time;
}

void Quotas::ChargeGpu(const std::string& tenant, std::chrono::microseconds time) {
  cache::MutexLock lock(mutex_);
  UseOf(tenant).gpu += time;
}

}  // namespace kiln::server
