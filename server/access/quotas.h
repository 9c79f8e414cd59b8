// SPDX-License-Identifier: Apache-2.0
//
// What a tenant may use up: seconds of the compile workers and of the devices in an hour, bytes of the store, requests at one
// time. The limits are rows of the access file and may change while kilnd runs; who has no row has no limit.
//
// Seconds are charged when they have been used, so that a tenant can be over by what it has running. The hours are those of the wall
// clock as it was when kilnd started, and go on with the steady one: setting the clock gives nobody an hour more. The store is kept within its
// limit by evicting the tenant's own entries, least recently used first (StoreKeeper).
//
// All members may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "server/access/access_file.h"
#include "server/reply/failure.h"

namespace kiln::server {

class Quotas {
 public:
  using LimitsOf = std::function<TenantLimits(std::string_view tenant)>;
  using OnRefused = std::function<void(std::string_view tenant, std::string_view why)>;
  Quotas(LimitsOf limits_of, const cache::Clock& clock, OnRefused on_refused = {})
      : limits_of_(std::move(limits_of)),
        clock_(clock),
        on_refused_(std::move(on_refused)),
        wall_start_(clock.WallNow()),
        steady_start_(clock.SteadyNow()) {}

  // One more request under way; End it, if it was begun.
  std::expected<void, Failure> Begin(const std::string& tenant);
  void End(const std::string& tenant);

  // The same as an object. The quotas outlive it.
  class InFlight {
   public:
    InFlight(Quotas& quotas, std::string tenant) : quotas_(&quotas), tenant_(std::move(tenant)) {}
    InFlight(InFlight&& other) noexcept : quotas_(std::exchange(other.quotas_, nullptr)), tenant_(std::move(other.tenant_)) {}
    InFlight& operator=(InFlight&&) = delete;
    ~InFlight() {
      if (quotas_ != nullptr) quotas_->End(tenant_);
    }

   private:
    Quotas* quotas_;
    std::string tenant_;
  };
  std::expected<InFlight, Failure> Hold(const std::string& tenant) {
    if (auto begun = Begin(tenant); !begun) return std::unexpected(std::move(begun.error()));
    return InFlight(*this, tenant);
  }

  // Checks that something is left of this hour. The refusal says which quota is used up, and when it resets.
  std::expected<void, Failure> MayCompile(const std::string& tenant);
  std::expected<void, Failure> MayRun(const std::string& tenant);
  void ChargeCompile(const std::string& tenant, std::chrono::microseconds time);
  void ChargeGpu(const std::string& tenant, std::chrono::microseconds time);

  TenantLimits LimitsFor(std::string_view tenant) const { return limits_of_(tenant); }

  // Reports a refusal to whoever records them. Not called under a lock, since it may write to a disk.
  std::unexpected<Failure> Refuse(std::string_view tenant, Failure failure) const;

 private:
  struct Use {
    std::int64_t hour = 0;
    std::chrono::microseconds compile{0};
    std::chrono::microseconds gpu{0};
    std::uint32_t requests = 0;
  };
  cache::WallTime Now() const;
  Use& UseOf(const std::string& tenant) KILN_REQUIRES(mutex_);
  Use Used(const std::string& tenant);
  Failure UsedUp(std::string_view tenant, std::string_view what, double limit) const;

  const LimitsOf limits_of_;
  const cache::Clock& clock_;
  const OnRefused on_refused_;
  const cache::WallTime wall_start_;
  const cache::SteadyTime steady_start_;
  cache::Mutex mutex_;
  std::map<std::string, Use> uses_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::server
