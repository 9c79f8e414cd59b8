// SPDX-License-Identifier: Apache-2.0
//
// The store that hosts share, as kilnd's settings name it.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "cache/clock.h"
#include "cache/leases.h"
#include "cache/redis/redis_leases.h"
#include "cache/redis/redis_tier.h"
#include "server/config/cluster_config.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

class ClusterStore {
 public:
  // Waits a moment for the store, and then goes on without it for now. The error says which setting is wrong.
  static std::expected<std::unique_ptr<ClusterStore>, std::string> Open(const ClusterConfig& config, const Telemetry& telemetry,
                                                                        const cache::Clock& clock);

  std::shared_ptr<cache::Tier> tier() const { return tier_; }
  cache::Leases* leases() const { return leases_.get(); }

 private:
  ClusterStore() = default;

  std::shared_ptr<cache::redis::RedisTier> tier_;
  std::unique_ptr<cache::redis::RedisLeases> leases_;
};

// What would keep it from being opened, that can be known without asking it.
std::expected<void, std::string> CheckClusterStore(const ClusterConfig& config);

}  // namespace kiln::server
