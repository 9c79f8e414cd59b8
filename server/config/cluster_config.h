// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "cache/redis/address.h"

namespace kiln::server {

// The store that hosts share.
struct ClusterConfig {
  std::optional<cache::redis::StoreAddress> store;  // nothing: this host keeps its results for itself
  std::filesystem::path ca;                         // PEM roots; empty: the system's
  std::filesystem::path credentials;                // empty: none are needed
  std::uint64_t max_entry_bytes = std::uint64_t{8} << 20;
  std::chrono::milliseconds expiry = std::chrono::days(30);  // of what nobody uses
  std::chrono::milliseconds timeout{50};                     // that a request waits for it at most
};

}  // namespace kiln::server
