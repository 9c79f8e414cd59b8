// SPDX-License-Identifier: Apache-2.0
#include "server/flow/store_keeper.h"

#include <fmt/format.h>

namespace kiln::server {

std::expected<void, Failure> StoreKeeper::Fits(const std::string& tenant, std::uint64_t bytes) const {
  const auto limit = quotas_.LimitsFor(tenant).store_bytes;
  if (!limit || bytes <= *limit) return {};
  return quotas_.Refuse(tenant, {.kind = Failure::Kind::kQuota,
                                 .message = fmt::format("the result has {} bytes, and the tenant {} may keep {} in the store (store-bytes in the "
                                                        "file of --access); to try again later does not help",
                                                        bytes, tenant, *limit)});
}

void StoreKeeper::Note(const std::string& tenant, std::uint64_t bytes) {
  const auto limit = quotas_.LimitsFor(tenant).store_bytes;
  if (!limit) return;
  {
    cache::MutexLock lock(mutex_);
    Held& held = held_[tenant];
    held.bytes = held.bytes > UINT64_MAX - bytes ? UINT64_MAX : held.bytes + bytes;
    if (held.bytes <= *limit || held.looking) return;
    held.looking = true;
  }
  if (!maintenance_.PostTrim(tenant, [this, tenant] { Look(tenant); })) {
    cache::MutexLock lock(mutex_);
    held_[tenant].looking = false;  // the next put tries again
  }
}

std::expected<v1::CacheImportReply, Failure> StoreKeeper::Import(const std::filesystem::path& bundle) {
  return maintenance_.Import(bundle, {.fits = [this](const std::string& tenant, std::uint64_t bytes) { return Fits(tenant, bytes); },
                                      .note = [this](const std::string& tenant, std::uint64_t bytes) { Note(tenant, bytes); }});
}

void StoreKeeper::Look(const std::string& tenant) {
  while (LookOnce(tenant)) {
  }
}

bool StoreKeeper::LookOnce(const std::string& tenant) {
  {
    cache::MutexLock lock(mutex_);
    held_[tenant].bytes = 0;  // what is put from now on counts besides
  }
  const std::uint64_t limit = quotas_.LimitsFor(tenant).store_bytes.value_or(UINT64_MAX);
  const auto left = maintenance_.TrimTenant(tenant, limit);
  cache::MutexLock lock(mutex_);
  Held& held = held_[tenant];
  held.bytes = left ? held.bytes + *left : UINT64_MAX;  // not known: the next put tries again
  held.looking = left && held.bytes > limit;
  return held.looking;
}

}  // namespace kiln::server
