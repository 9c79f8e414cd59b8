// SPDX-License-Identifier: Apache-2.0
//
// The stores that hosts share, as kilnd's settings name them: the cluster store and the object store.
#pragma once

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "cache/clock.h"
#include "cache/leases.h"
#include "cache/redis/redis_leases.h"
#include "cache/tier.h"
#include "server/config/config.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

class SharedStores {
 public:
  // Waits a moment for the stores, and then goes on without them for now. The error says which setting is wrong.
  static std::expected<std::unique_ptr<SharedStores>, std::string> Open(const Config& config, const Telemetry& telemetry, const cache::Clock& clock);

  // Nearest first.
  const std::vector<std::shared_ptr<cache::Tier>>& tiers() const { return tiers_; }
  // Null: there is no store that has them.
  cache::Leases* leases() const { return leases_.get(); }

 private:
  SharedStores() = default;
  std::expected<void, std::string> OpenClusterStore(const ClusterConfig& config, const Telemetry& telemetry, const cache::Clock& clock);
  std::expected<void, std::string> OpenObjectStore(const ObjectConfig& config, const Telemetry& telemetry, const cache::Clock& clock);

  std::vector<std::shared_ptr<cache::Tier>> tiers_;
  std::unique_ptr<cache::redis::RedisLeases> leases_;
};

// What would keep them from being opened, that can be known without asking them.
std::expected<void, std::string> CheckClusterStore(const ClusterConfig& config);
std::expected<void, std::string> CheckObjectStore(const ObjectConfig& config);

}  // namespace kiln::server
