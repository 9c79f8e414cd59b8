// SPDX-License-Identifier: Apache-2.0
#include "server/service/cluster_store.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace kiln::server {
namespace {

namespace redis = cache::redis;

// So that hosts that start one job at one time begin with the store. The rest of the start takes longer.
constexpr std::chrono::milliseconds kPatience{250};

constexpr std::size_t kBesideAnEntry = std::size_t{1} << 20;  // of a reply: heads, and lists of servers

// A password alone, or a user and a password, each on its line.
std::expected<std::optional<redis::Credentials>, std::string> ReadCredentials(const std::filesystem::path& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) == 0 && (about.st_mode & 077) != 0) {
    return std::unexpected(fmt::format("others can read {} (--cluster-credentials): chmod 600 it", path.string()));
  }
  std::ifstream file(path);
  std::string first, second;
  if (!std::getline(file, first) || first.empty())
    return std::unexpected(fmt::format("{} (--cluster-credentials) cannot be read, or is empty", path.string()));
  if (!std::getline(file, second) || second.empty()) return redis::Credentials{"", first};
  return redis::Credentials{first, second};
}

std::expected<std::shared_ptr<const redis::Tls>, std::string> LoadTls(const ClusterConfig& config) {
  if (!config.store->tls) return nullptr;
  auto tls = redis::Tls::Load(config.ca);
  if (!tls) return std::unexpected("--cluster-ca: " + tls.error());
  return tls;
}

}  // namespace

std::expected<void, std::string> CheckClusterStore(const ClusterConfig& config) {
  if (!config.store) return {};
  if (const auto tls = LoadTls(config); !tls) return std::unexpected(tls.error());
  if (config.credentials.empty()) return {};
  if (const auto credentials = ReadCredentials(config.credentials); !credentials) return std::unexpected(credentials.error());
  return {};
}

std::expected<std::unique_ptr<ClusterStore>, std::string> ClusterStore::Open(const ClusterConfig& config, const Telemetry& telemetry,
                                                                             const cache::Clock& clock) {
  if (auto checked = CheckClusterStore(config); !checked) return std::unexpected(std::move(checked.error()));
  redis::Cluster::Options options{.servers = config.store->servers, .tls = *LoadTls(config), .timeout = config.timeout};
  options.max_reply = config.max_entry_bytes * 2 + kBesideAnEntry;
  if (!config.credentials.empty()) options.credentials = [path = config.credentials] { return ReadCredentials(path); };
  options.on_event = [&telemetry](bool good, std::string_view what) {
    telemetry.Log(good ? Level::kInfo : Level::kWarning, "cluster-store", {{"state", good ? "ok" : "left-alone"}, {"message", what}});
  };
  const auto cluster = std::make_shared<redis::Cluster>(std::move(options), clock);
  std::unique_ptr<ClusterStore> store(new ClusterStore());
  const auto table = std::make_shared<redis::LeaseTable>();
  store->tier_ = std::make_shared<redis::RedisTier>(
      redis::RedisTier::Options{.max_entry = config.max_entry_bytes, .queue = {.expiry = config.expiry}}, cluster, table);
  store->leases_ = std::make_unique<redis::RedisLeases>(cluster, table, store->tier_);
  cluster->AwaitAvailable(kPatience);
  return store;
}

}  // namespace kiln::server
