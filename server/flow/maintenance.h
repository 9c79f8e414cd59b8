// SPDX-License-Identifier: Apache-2.0
//
// The store's upkeep, as `kiln cache` asks for it. Everything here may take seconds and runs on an executor of its own, one
// task at a time. What keeps tenants within their bytes has another one: it waits for no verification, export or import, during which
// the store would grow.
#pragma once

#include <expected>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cache/sqlite/sqlite_slot.h"
#include "cache/tiered.h"
#include "kiln/v1/service.pb.h"
#include "server/queue/executor.h"
#include "server/reply/failure.h"
#include "server/reply/sealer.h"

namespace kiln::server {

// A file's path that is removed with this.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {}
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFile& operator=(TemporaryFile&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class Maintenance {
 public:
  struct Options {
    std::filesystem::path scratch;  // where bundles pass through
    std::uint64_t max_import_bytes = 0;
    bool accept_import = true;
    std::string build_id = {};  // of the compiler
  };

  // While the store on disk could not be opened all fail with kStore.
  Maintenance(Options options, cache::TieredCache& cache, const cache::SqliteSlot& disk, const Sealer& sealer, const cache::Clock& clock);

  // False when too many tasks wait. All posted tasks are admins'; they share one queue.
  bool Post(Executor::Task task) { return executor_.Post("", task); }
  bool PostTrim(const std::string& tenant, Executor::Task task) { return trimmer_.Post(tenant, task); }

  std::expected<std::vector<v1::CacheEntry>, Failure> List(const v1::CacheListRequest& request) const;
  // The tenant's programs whose results by another build of the compiler were used most, most used first: at most `limit`, 10,000, and
  // 64 MiB. Results whose programs are not kept are left out.
  std::expected<std::vector<v1::ManifestEntry>, Failure> Hot(std::size_t limit, std::string_view tenant) const;
  std::expected<v1::CacheVerifyReply, Failure> Verify();
  std::expected<v1::CacheGcReply, Failure> Gc(std::uint64_t target_bytes);
  // A key may be that of a program, that of a result kept for the tenant, or one that List returns. Each must be known and undamaged;
  // what the store lacks is put there. Of a result with a cubin, its PTX goes along where it is still known. Without keys, all that the store has.
  std::expected<TemporaryFile, Failure> Export(const v1::CacheExportRequest& request, std::string_view tenant);
  // What the store keeps for tenants: whether an entry of so many bytes may be kept for one; that so many were put.
  struct Shares {
    std::function<std::expected<void, Failure>(const std::string& tenant, std::uint64_t bytes)> fits;
    std::function<void(const std::string& tenant, std::uint64_t bytes)> note;
  };
  std::expected<v1::CacheImportReply, Failure> Import(const std::filesystem::path& bundle, const Shares& shares);

  // Evicts the tenant's least recently used entries until it has at most nine tenths of `limit`, if it has more than that; how many
  // bytes it has then.
  std::expected<std::uint64_t, Failure> TrimTenant(std::string_view tenant, std::uint64_t limit);

  TemporaryFile NewScratch() const;
  const Options& options() const { return options_; }

 private:
  std::expected<cache::SqliteTier*, Failure> Disk() const;
  std::expected<std::uint64_t, Failure> EvictForged(cache::SqliteTier& disk);

  const Options options_;
  cache::TieredCache& cache_;
  const cache::SqliteSlot& disk_;
  const Sealer& sealer_;
  Executor trimmer_;  // last, these two: their tasks use the others, and those of the second post to the first
  Executor executor_;
};

}  // namespace kiln::server
