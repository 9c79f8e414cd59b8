// SPDX-License-Identifier: Apache-2.0
//
// Keeps each tenant within its bytes of the store: if a tenant puts in more, its own least recently used entries are evicted. Others'
// entries are not touched.
//
// Threads. Note returns at once. A maintenance thread goes through the store and evicts, one tenant at a time, and repeats this until
// nothing noted meanwhile exceeds the limit. So once that thread is idle, each tenant is within its limit.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <map>
#include <string>

#include "cache/mutex.h"
#include "server/access/quotas.h"
#include "server/flow/maintenance.h"

namespace kiln::server {

class StoreKeeper {
 public:
  StoreKeeper(Quotas& quotas, Maintenance& maintenance) : quotas_(quotas), maintenance_(maintenance) {}

  // Checks that the tenant may keep an entry of so many bytes at all.
  std::expected<void, Failure> Fits(const std::string& tenant, std::uint64_t bytes) const;

  // Notes that so many bytes were put. Call it after the put, so that a look at the store finds them.
  void Note(const std::string& tenant, std::uint64_t bytes);

  // Imports a bundle, on the maintenance thread.
  std::expected<v1::CacheImportReply, Failure> Import(const std::filesystem::path& bundle);

 private:
  struct Held {
    std::uint64_t bytes = UINT64_MAX;  // an upper bound of what the tenant has; unknown at first
    bool looking = false;
  };
  void Look(const std::string& tenant);
  bool LookOnce(const std::string& tenant);  // whether it has to be looked at again

  Quotas& quotas_;
  Maintenance& maintenance_;
  cache::Mutex mutex_;
  std::map<std::string, Held> held_ KILN_GUARDED_BY(mutex_);  // of tenants with a limit
};

}  // namespace kiln::server
