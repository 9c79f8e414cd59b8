// SPDX-License-Identifier: Apache-2.0
#include "server/service/shared_stores.h"

#include <sys/stat.h>

#include <filesystem>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "cache/object/object_tier.h"
#include "cache/redis/redis_tier.h"
#include "server/system/guarded_file.h"

namespace kiln::server {
namespace {

namespace redis = cache::redis;
namespace object = cache::object;

// So that hosts that start one job at one time begin with the store. The rest of the start takes longer.
constexpr std::chrono::milliseconds kPatience{250};

constexpr std::size_t kBesideAnEntry = std::size_t{1} << 20;  // of a reply: heads, and lists of servers

// OpenSSL opens it again, and would wait for ever for one that is no ordinary file.
std::expected<void, std::string> CheckReadable(const char* setting, const std::filesystem::path& file) {
  if (file.empty()) return {};
  if (const auto text = ReadOrdinary(file); !text) return std::unexpected(fmt::format("{}: {}", setting, text.error()));
  return {};
}

// The lines of a file that nobody but its owner may read, at most so many, up to the first that is empty.
std::expected<std::vector<std::string>, std::string> SecretLines(const std::filesystem::path& path, const char* setting, std::size_t most) {
  struct stat about{};
  if (::stat(path.c_str(), &about) == 0 && (about.st_mode & 077) != 0) {
    return std::unexpected(fmt::format("others can read {} ({}): chmod 600 it", path.string(), setting));
  }
  const auto text = ReadOrdinary(path);
  if (!text) return std::unexpected(fmt::format("{} ({})", text.error(), setting));
  std::istringstream file(*text);
  std::vector<std::string> lines;
  for (std::string line; lines.size() < most && std::getline(file, line) && !line.empty();) lines.push_back(line);
  if (lines.empty()) return std::unexpected(fmt::format("{} ({}) is empty", path.string(), setting));
  return lines;
}

// A password alone, or a user and a password, each on its line.
std::expected<std::optional<redis::Credentials>, std::string> ReadCredentials(const std::filesystem::path& path) {
  auto lines = SecretLines(path, "--cluster-credentials", 2);
  if (!lines) return std::unexpected(std::move(lines.error()));
  if (lines->size() == 1) return redis::Credentials{"", (*lines)[0]};
  return redis::Credentials{(*lines)[0], (*lines)[1]};
}

// For S3 the key's id, its secret, and the token of a session if there is one. For others a token alone, or a user and a password.
std::expected<std::optional<object::Credentials>, std::string> ReadCredentials(const ObjectConfig& config) {
  const char* const setting = "--object-credentials";
  auto lines = SecretLines(config.credentials, setting, 3);
  if (!lines) return std::unexpected(std::move(lines.error()));
  const bool signs = config.store->region.has_value();
  if (signs ? lines->size() < 2 : lines->size() > 2) {
    return std::unexpected(fmt::format(
        "{} ({}) has {} lines: {}", config.credentials.string(), setting, lines->size(),
        signs ? "S3 needs the key's id and its secret, and takes the token of a session" : "a token, or a user and a password, are one or two"));
  }
  if (!signs && lines->size() == 1) return object::Credentials{.token = (*lines)[0]};
  return object::Credentials{(*lines)[0], (*lines)[1], lines->size() == 3 ? (*lines)[2] : ""};
}

std::expected<std::shared_ptr<const redis::Tls>, std::string> LoadTls(const ClusterConfig& config) {
  if (!config.store->tls) return nullptr;
  if (auto readable = CheckReadable("--cluster-ca", config.ca); !readable) return std::unexpected(std::move(readable.error()));
  auto tls = redis::Tls::Load(config.ca);
  if (!tls) return std::unexpected("--cluster-ca: " + tls.error());
  return tls;
}

std::expected<std::shared_ptr<const object::Roots>, std::string> LoadRoots(const ObjectConfig& config) {
  if (!config.store->tls) return nullptr;
  if (auto readable = CheckReadable("--object-ca", config.ca); !readable) return std::unexpected(std::move(readable.error()));
  auto roots = object::Roots::Load(config.ca);
  if (!roots) return std::unexpected("--object-ca: " + roots.error());
  return roots;
}

}  // namespace

std::expected<void, std::string> CheckClusterStore(const ClusterConfig& config) {
  if (!config.store) return {};
  if (const auto tls = LoadTls(config); !tls) return std::unexpected(tls.error());
  if (config.credentials.empty()) return {};
  if (const auto credentials = ReadCredentials(config.credentials); !credentials) return std::unexpected(credentials.error());
  return {};
}

std::expected<void, std::string> CheckObjectStore(const ObjectConfig& config) {
  if (!config.store) return {};
  if (const auto roots = LoadRoots(config); !roots) return std::unexpected(roots.error());
  if (config.credentials.empty()) return {};
  if (const auto credentials = ReadCredentials(config); !credentials) return std::unexpected(credentials.error());
  return {};
}

std::expected<void, std::string> SharedStores::OpenClusterStore(const ClusterConfig& config, const Telemetry& telemetry, const cache::Clock& clock) {
  if (!config.store) return {};
  if (auto checked = CheckClusterStore(config); !checked) return checked;
  redis::Cluster::Options options{.servers = config.store->servers, .tls = *LoadTls(config), .timeout = config.timeout};
  options.max_reply = config.max_entry_bytes * 2 + kBesideAnEntry;
  if (!config.credentials.empty()) options.credentials = [path = config.credentials] { return ReadCredentials(path); };
  options.on_event = [&telemetry](bool good, std::string_view what) {
    telemetry.Log(good ? Level::kInfo : Level::kWarning, "cluster-store", {{"state", good ? "ok" : "left-alone"}, {"message", what}});
  };
  const auto cluster = std::make_shared<redis::Cluster>(std::move(options), clock);
  const auto table = std::make_shared<redis::LeaseTable>();
  const auto tier = std::make_shared<redis::RedisTier>(
      redis::RedisTier::Options{.max_entry = config.max_entry_bytes, .queue = {.expiry = config.expiry}}, cluster, table);
  tiers_.push_back(tier);
  leases_ = std::make_unique<redis::RedisLeases>(cluster, table, tier);
  cluster->AwaitAvailable(kPatience);
  return {};
}

std::expected<void, std::string> SharedStores::OpenObjectStore(const ObjectConfig& config, const Telemetry& telemetry, const cache::Clock& clock) {
  if (!config.store) return {};
  if (auto checked = CheckObjectStore(config); !checked) return checked;
  object::Store::Options store{.address = *config.store, .roots = *LoadRoots(config), .timeout = config.timeout};
  if (!config.credentials.empty()) store.credentials = [config] { return ReadCredentials(config); };
  store.on_event = [&telemetry](std::string_view state, std::string_view what) {
    const bool good = state == "ok" || state == "takes-puts";
    telemetry.Log(good ? Level::kInfo : Level::kWarning, "object-store", {{"state", state}, {"message", what}});
  };
  const auto tier =
      std::make_shared<object::ObjectTier>(object::ObjectTier::Options{.max_entry = config.max_entry_bytes, .store = std::move(store)}, clock);
  tiers_.push_back(tier);
  tier->AwaitAvailable(kPatience);
  return {};
}

std::expected<std::unique_ptr<SharedStores>, std::string> SharedStores::Open(const Config& config, const Telemetry& telemetry,
                                                                             const cache::Clock& clock) {
  std::unique_ptr<SharedStores> stores(new SharedStores());
  if (auto opened = stores->OpenClusterStore(config.cluster, telemetry, clock); !opened) return std::unexpected(std::move(opened.error()));
  if (auto opened = stores->OpenObjectStore(config.object, telemetry, clock); !opened) return std::unexpected(std::move(opened.error()));
  return stores;
}

}  // namespace kiln::server
