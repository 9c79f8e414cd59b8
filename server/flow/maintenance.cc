// SPDX-License-Identifier: Apache-2.0
#include "server/flow/maintenance.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "cache/bundle/bundle.h"
#include "server/reply/tenant_key.h"

namespace kiln::server {
namespace {

constexpr std::size_t kMaxListed = 100'000;
constexpr std::size_t kMaxHot = 10'000, kMaxHotBytes = std::size_t{64} << 20;
constexpr std::size_t kCalls = 20;    // of which one line may have sixteen
constexpr std::size_t kTrims = 1024;  // tenants whose turn to be looked at comes

Failure ToFailure(const cache::Error& error) {
  const bool corrupt = error.code == cache::ErrorCode::kCorrupt || error.code == cache::ErrorCode::kInvalid;
  return {.kind = corrupt ? Failure::Kind::kMalformed : Failure::Kind::kStore, .message = error.message};
}

std::int64_t UnixSeconds(cache::WallTime time) { return std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count(); }

v1::CacheEntry ToProto(const cache::EntryInfo& info) {
  v1::CacheEntry entry;
  if (!entry.ParseFromString(info.metadata)) entry.Clear();
  entry.set_key(info.key.bytes.data(), info.key.bytes.size());
  entry.set_bytes(info.sealed_size);
  entry.set_created_unix(UnixSeconds(info.created));
  entry.set_last_used_unix(UnixSeconds(info.last_used));
  entry.set_hits(info.hits);
  return entry;
}

std::string TenantOf(std::string_view metadata) {
  v1::CacheEntry label;
  return label.ParseFromString(std::string(metadata)) ? label.tenant() : std::string();
}

// The keys that would answer each of the request's, by which of them it is.
using Wanted = std::multimap<cache::Digest, std::size_t>;

std::expected<Wanted, Failure> WantedKeys(const v1::CacheExportRequest& request, std::string_view tenant) {
  Wanted wanted;
  for (int i = 0; i < request.keys_size(); ++i) {
    const auto key = cache::Digest::FromBytes(request.keys(i));
    if (!key) {
      return std::unexpected(Failure{.kind = Failure::Kind::kMalformed,
                                     .message = fmt::format("a key has 32 bytes; number {} of the export has {}", i, request.keys(i).size())});
    }
    const auto which = static_cast<std::size_t>(i);
    wanted.emplace(*key, which);
    if (const cache::Digest kept_under = KeptUnder(tenant, *key); kept_under != *key) wanted.emplace(kept_under, which);
  }
  return wanted;
}

// An export reads the store. Results that are known but not in it, such as those of a served bundle, are put there first.
void KeepWanted(cache::TieredCache& cache, cache::SqliteTier& disk, std::set<cache::Digest> missing) {
  if (missing.empty()) return;
  cache::ListOptions options;
  options.accept = [&](const cache::EntryInfo& info) {
    missing.erase(info.key);
    return false;
  };
  if (!disk.List(options)) return;  // the export itself says why
  for (const cache::Digest& key : missing) {
    if (auto hit = cache.Get(key)) (void)cache::PutAndWait(disk, std::move(hit->entry));
  }
}

// Under which key the PTX alone is kept of a result with a cubin.
std::optional<cache::Digest> PtxOf(const cache::EntryInfo& info) {
  const v1::CacheEntry label = ToProto(info);
  const auto key = cache::Digest::FromBytes(label.portable_key());
  return key ? std::optional(KeptUnder(label.tenant(), *key)) : std::nullopt;
}

// That of all that is wanted. Other hosts' ptxas can go on from it.
std::set<cache::Digest> PtxOf(cache::SqliteTier& disk, const Wanted& wanted) {
  std::set<cache::Digest> ptx;
  cache::ListOptions options;
  options.accept = [&](const cache::EntryInfo& info) {
    const auto key = wanted.contains(info.key) ? PtxOf(info) : std::nullopt;
    if (key) ptx.insert(*key);
    return false;
  };
  (void)disk.List(options);  // what fails here fails for the export as well
  return ptx;
}

// The program that is kept beside a result.
std::optional<v1::CompileRequest> ProgramKept(cache::SqliteTier& disk, const Sealer& sealer, const cache::Digest& key) {
  const auto entry = disk.Peek(key);
  return entry && *entry && sealer.Check(**entry) ? ProgramOf(**entry) : std::nullopt;
}

Failure MissingKeys(std::string_view first, std::ptrdiff_t count, std::string_view tenant) {
  return {.kind = Failure::Kind::kNotFound,
          .message = fmt::format("nothing is kept on disk for the tenant {} under {} of the keys, the first of them {}; nothing was "
                                 "exported. `kiln cache ls` lists what there is",
                                 tenant, count, cache::Digest::FromBytes(first)->ToHex())};
}

Failure LostKeys(std::uint64_t count) {
  return {.kind = Failure::Kind::kNotFound,
          .message = fmt::format("{} of the results that were named turned out damaged, or were evicted before they were read; nothing was "
                                 "exported. Compile them again",
                                 count)};
}

}  // namespace

Maintenance::Maintenance(Options options, cache::TieredCache& cache, const cache::SqliteSlot& disk, const Sealer& sealer, const cache::Clock& clock)
    : options_(std::move(options)), cache_(cache), disk_(disk), sealer_(sealer), trimmer_(1, kTrims, clock), executor_(1, kCalls, clock) {}

std::expected<cache::SqliteTier*, Failure> Maintenance::Disk() const {
  if (cache::SqliteTier* const store = disk_.store()) return store;
  return std::unexpected(Failure{.kind = Failure::Kind::kStore,
                                 .message = "this kilnd has no store on disk yet; its log says why it could not be opened; it tries again "
                                            "every few seconds"});
}

std::expected<std::vector<v1::CacheEntry>, Failure> Maintenance::List(const v1::CacheListRequest& request) const {
  const auto disk = Disk();
  if (!disk) return std::unexpected(disk.error());
  cache::ListOptions options;
  options.after = cache::Digest::FromBytes(request.after());
  if (!options.after && !request.after().empty()) {
    return std::unexpected(
        Failure{.kind = Failure::Kind::kMalformed, .message = fmt::format("a key has 32 bytes; that of `after` has {}", request.after().size())});
  }
  options.limit = request.limit() == 0 ? kMaxListed : std::min<std::size_t>(request.limit(), kMaxListed);
  options.accept = [&](const cache::EntryInfo& info) {
    if (!info.key.view().starts_with(request.key_prefix())) return false;
    return request.target().empty() || ToProto(info).target() == request.target();
  };
  const auto found = (*disk)->List(options);
  if (!found) return std::unexpected(ToFailure(found.error()));
  std::vector<v1::CacheEntry> entries;
  std::ranges::transform(*found, std::back_inserter(entries), ToProto);
  return entries;
}

std::expected<std::vector<v1::ManifestEntry>, Failure> Maintenance::Hot(std::size_t limit, std::string_view tenant) const {
  const auto disk = Disk();
  if (!disk) return std::unexpected(disk.error());
  if (const auto flushed = (*disk)->Flush(); !flushed) return std::unexpected(ToFailure(flushed.error()));
  cache::ListOptions options;
  options.accept = [&](const cache::EntryInfo& info) {
    const v1::CacheEntry entry = ToProto(info);
    return entry.tenant() == tenant && !entry.refused() && !entry.tuning() && !entry.compiler().empty() && entry.compiler() != options_.build_id;
  };
  auto found = (*disk)->List(options);
  if (!found) return std::unexpected(ToFailure(found.error()));
  std::ranges::stable_sort(*found, std::greater<>(), [](const cache::EntryInfo& info) { return std::pair(info.hits, info.last_used); });
  std::vector<v1::ManifestEntry> programs;
  std::set<cache::Digest> seen;
  std::size_t bytes = 0;
  for (const cache::EntryInfo& info : *found) {
    if (programs.size() >= std::min(limit, kMaxHot) || bytes > kMaxHotBytes) break;
    auto program = ProgramKept(**disk, sealer_, info.key);
    if (!program || !seen.insert(cache::Sha256(program->SerializeAsString())).second) continue;
    bytes += program->ByteSizeLong();
    *programs.emplace_back().mutable_request() = std::move(*program);
  }
  return programs;
}

std::expected<v1::CacheVerifyReply, Failure> Maintenance::Verify() {
  const auto disk = Disk();
  if (!disk) return std::unexpected(disk.error());
  const auto report = (*disk)->Verify();
  if (!report) return std::unexpected(ToFailure(report.error()));
  v1::CacheVerifyReply reply;
  reply.set_checked(report->entries);
  reply.set_corrupt(report->corrupt);
  reply.set_store_damaged(report->store_damaged);
  if (report->store_damaged) return reply;
  const auto forged = EvictForged(**disk);
  if (!forged) return std::unexpected(forged.error());
  reply.set_forged(*forged);
  return reply;
}

std::expected<std::uint64_t, Failure> Maintenance::EvictForged(cache::SqliteTier& disk) {
  constexpr std::size_t kPage = 256;
  std::uint64_t forged = 0;
  cache::ListOptions options{.after = std::nullopt, .limit = kPage, .accept = {}};
  for (;;) {
    const auto page = disk.List(options);
    if (!page) return std::unexpected(ToFailure(page.error()));
    for (const cache::EntryInfo& info : *page) {
      const auto entry = disk.Peek(info.key);
      if (!entry || !*entry || sealer_.Check(**entry)) continue;
      if (const auto erased = cache_.Erase(info.key); !erased) return std::unexpected(ToFailure(erased.error()));
      ++forged;
    }
    if (page->size() < kPage) return forged;
    options.after = page->back().key;
  }
}

std::expected<v1::CacheGcReply, Failure> Maintenance::Gc(std::uint64_t target_bytes) {
  const auto disk = Disk();
  if (!disk) return std::unexpected(disk.error());
  const auto report = (*disk)->Gc(target_bytes);
  if (!report) return std::unexpected(ToFailure(report.error()));
  v1::CacheGcReply reply;
  reply.set_evicted(report->evicted);
  reply.set_bytes_freed(report->bytes_before - std::min(report->bytes_before, report->bytes_after));
  return reply;
}

std::expected<TemporaryFile, Failure> Maintenance::Export(const v1::CacheExportRequest& request, std::string_view tenant) {
  const auto disk = Disk();
  if (!disk) return std::unexpected(disk.error());
  auto wanted = WantedKeys(request, tenant);
  if (!wanted) return std::unexpected(std::move(wanted.error()));
  std::vector<bool> found(static_cast<std::size_t>(request.keys_size()));
  TemporaryFile file = NewScratch();
  std::set<cache::Digest> keys;
  for (const auto& [key, which] : *wanted) keys.insert(key);
  KeepWanted(cache_, **disk, std::move(keys));
  if (const auto flushed = (*disk)->Flush(); !flushed) return std::unexpected(ToFailure(flushed.error()));
  std::set<cache::Digest> ptx = PtxOf(**disk, *wanted);
  KeepWanted(cache_, **disk, ptx);
  std::function<bool(const cache::EntryInfo&)> accept;
  if (!wanted->empty()) {
    accept = [&](const cache::EntryInfo& info) {
      const auto [first, last] = wanted->equal_range(info.key);
      for (auto at = first; at != last; ++at) found[at->second] = true;
      return first != last || ptx.contains(info.key);
    };
  }
  const auto report = cache::ExportBundle(**disk, file.path(), accept);
  if (!report) return std::unexpected(ToFailure(report.error()));
  if (const auto missing = std::ranges::count(found, false); missing > 0) {
    const auto first = std::ranges::find(found, false) - found.begin();
    return std::unexpected(MissingKeys(request.keys(static_cast<int>(first)), missing, tenant));
  }
  if (!wanted->empty() && report->skipped > 0) return std::unexpected(LostKeys(report->skipped));
  return file;
}

std::expected<v1::CacheImportReply, Failure> Maintenance::Import(const std::filesystem::path& bundle, const Shares& shares) {
  const auto disk = Disk();
  if (!disk) return std::unexpected(disk.error());
  std::string refused;
  std::map<std::string, std::uint64_t> put;  // bytes of each tenant
  const auto take_in = [&](const cache::Entry& entry) -> std::optional<cache::Entry> {
    auto taken = sealer_.TakeIn(entry, Sealer::From::kBundle);
    if (!taken) {
      refused = taken.error() + " (--trusted-keys)";
      return std::nullopt;
    }
    const std::string tenant = TenantOf(taken->metadata());
    if (auto fits = shares.fits(tenant, taken->sealed().size()); !fits) {
      refused = std::move(fits.error().message);
      return std::nullopt;
    }
    put[tenant] += taken->sealed().size();
    return std::move(*taken);
  };
  const auto report = cache::ImportBundle(bundle, **disk, nullptr, take_in);
  for (const auto& [tenant, bytes] : put) shares.note(tenant, bytes);
  if (!report) return std::unexpected(ToFailure(report.error()));
  if (report->entries == 0 && report->skipped > 0) {
    return std::unexpected(
        Failure{.kind = Failure::Kind::kForbidden, .message = fmt::format("none of the {} entries is taken: {}", report->skipped, refused)});
  }
  v1::CacheImportReply reply;
  reply.set_imported(report->entries);
  reply.set_rejected(report->skipped);
  return reply;
}

std::expected<std::uint64_t, Failure> Maintenance::TrimTenant(std::string_view tenant, std::uint64_t limit) {
  const auto disk = Disk();
  if (!disk) return std::unexpected(disk.error());
  if (const auto flushed = (*disk)->Flush(); !flushed) return std::unexpected(ToFailure(flushed.error()));
  cache::ListOptions options;
  options.accept = [&](const cache::EntryInfo& info) { return TenantOf(info.metadata) == tenant; };
  auto entries = (*disk)->List(options);
  if (!entries) return std::unexpected(ToFailure(entries.error()));
  std::uint64_t bytes = 0;
  for (const cache::EntryInfo& info : *entries) bytes += info.sealed_size;
  if (bytes <= limit) return bytes;
  std::ranges::sort(*entries, {}, &cache::EntryInfo::last_used);  // which are the tenant's oldest
  for (const cache::EntryInfo& info : *entries) {
    if (bytes <= limit / 10 * 9) break;
    if (const auto erased = cache_.Erase(info.key); !erased) return std::unexpected(ToFailure(erased.error()));
    bytes -= info.sealed_size;
  }
  return bytes;
}

TemporaryFile Maintenance::NewScratch() const {
  static std::atomic<unsigned> next = 0;
  std::error_code ignored;
  std::filesystem::create_directories(options_.scratch, ignored);
  return TemporaryFile(options_.scratch / fmt::format("transfer-{}", ++next));
}

}  // namespace kiln::server
