// SPDX-License-Identifier: Apache-2.0
//
// Walks over the whole store. They read in pages and hold no lease between them: a read transaction that lasts would
// keep the write-ahead log from being used again.
#include <algorithm>
#include <utility>

#include "cache/sqlite/sqlite_tier_impl.h"
#include "cache/try.h"

namespace kiln::cache {
namespace {

constexpr std::size_t kPage = 256;
constexpr std::size_t kMaxEvictedKeys = 1000;

}  // namespace

std::expected<std::vector<EntryInfo>, Error> SqliteTier::Impl::ListPage(const std::optional<Digest>& after, std::size_t limit) {
  KILN_ASSIGN_OR_RETURN(auto lease, readers_.Acquire(ReaderPool::Work::kShort));
  if (!lease) return {};
  auto page = (*lease)->List(after, limit);
  if (!page) lease->Failed(page.error());
  return page;
}

std::expected<std::vector<EntryInfo>, Error> SqliteTier::Impl::List(const ListOptions& options) {
  std::vector<EntryInfo> listed;
  std::optional<Digest> after = options.after;
  while (listed.size() < options.limit) {
    // Without a filter everything on a page is wanted.
    const std::size_t wanted = options.accept ? kPage : std::min(kPage, options.limit - listed.size());
    KILN_ASSIGN_OR_RETURN(auto page, ListPage(after, wanted));
    for (EntryInfo& info : page) {
      if (listed.size() == options.limit) break;
      if (!options.accept || options.accept(info)) listed.push_back(info);
    }
    if (page.size() < wanted) break;
    after = page.back().key;
  }
  return listed;
}

std::expected<void, Error> SqliteTier::Impl::VerifyEntry(const Digest& key, VerifyReport& report) {
  KILN_ASSIGN_OR_RETURN(auto sealed, Read(key));
  if (!sealed) return {};
  ++report.entries;
  report.bytes += sealed->size();
  const auto entry = Unseal(std::move(*sealed));
  if (entry && entry->key() == key) return {};
  ++report.corrupt;
  if (report.evicted.size() < kMaxEvictedKeys) report.evicted.push_back(key);
  if (writer_) writer_->EvictIfCorrupt(key);
  return {};
}

std::expected<bool, Error> SqliteTier::Impl::StructureIsSound() {
  KILN_ASSIGN_OR_RETURN(auto lease, readers_.Acquire(ReaderPool::Work::kLong));
  if (!lease) return false;
  auto problem = (*lease)->QuickCheck();
  if (problem && !problem->empty()) problem = Fail(ErrorCode::kDamaged, *problem);
  if (problem) return true;
  lease->Failed(problem.error());
  if (problem.error().code == ErrorCode::kDamaged) return false;
  return std::unexpected(std::move(problem.error()));
}

std::expected<VerifyReport, Error> SqliteTier::Impl::Verify() {
  VerifyReport report;
  KILN_ASSIGN_OR_RETURN(const bool sound, StructureIsSound());
  report.store_damaged = !sound;
  std::optional<Digest> after;
  while (!report.store_damaged) {
    auto page = ListPage(after, kPage);
    std::expected<void, Error> verified;
    if (!page) verified = std::unexpected(page.error());
    for (std::size_t i = 0; verified && i < page->size(); ++i) verified = VerifyEntry((*page)[i].key, report);
    if (!verified && verified.error().code != ErrorCode::kDamaged) return std::unexpected(std::move(verified.error()));
    report.store_damaged = !verified;
    if (!verified || page->size() < kPage) break;
    after = page->back().key;
  }
  return report;
}

}  // namespace kiln::cache
