// SPDX-License-Identifier: Apache-2.0
#include "cache/bundle/bundle_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "cache/try.h"

namespace kiln::cache {

std::expected<std::unique_ptr<BundleTier>, Error> BundleTier::Open(BundleOptions options) {
  std::vector<BundleFile> files;
  for (const auto& path : options.files) {
    KILN_ASSIGN_OR_RETURN(BundleFile file, BundleFile::Open(path));
    files.push_back(std::move(file));
  }
  std::unique_ptr<BundleTier> tier(new BundleTier(std::move(options), std::move(files)));
  tier->Index();
  return tier;
}

void BundleTier::Index() {
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    const BundleFile::Contents contents = files_[file].Index();
    {
      MutexLock lock(mutex_);
      State& state = states_.emplace_back();
      for (const auto& record : contents.records) {
        index_.push_back({record.key, file, record.size, record.offset});
        state.bytes += record.size;
      }
      state.entries = contents.records.size();
      state.damaged = contents.damaged;
      stats_.corrupt += contents.damaged;
    }
    if (!options_.on_damage || (contents.damaged == 0 && contents.trouble.empty())) continue;
    options_.on_damage(
        {ErrorCode::kCorrupt, fmt::format("{}: {} entries are served, {} are damaged and left out{}{}", files_[file].path().string(),
                                          contents.records.size(), contents.damaged, contents.trouble.empty() ? "" : "; ", contents.trouble)});
  }
  MutexLock lock(mutex_);
  index_.shrink_to_fit();
  std::ranges::sort(index_, Before);
}

bool BundleTier::Before(const Place& one, const Place& other) {
  return std::tie(one.key, one.file, one.offset) < std::tie(other.key, other.file, other.offset);
}

// The place itself, or the next one of the same key.
std::optional<BundleTier::Place> BundleTier::FirstFrom(const Place& from) const {
  MutexLock lock(mutex_);
  for (auto at = std::ranges::lower_bound(index_, from, Before); at != index_.end() && at->key == from.key; ++at) {
    if (at->size != 0 && !states_[at->file].lost) return *at;
  }
  return std::nullopt;
}

std::expected<std::optional<Entry>, Error> BundleTier::Get(const Digest& key) {
  Place from{.key = key};
  while (const auto place = FirstFrom(from)) {
    KILN_ASSIGN_OR_RETURN(const Entry entry, Read(*place));
    if (auto taken = TakenIn(*place, entry)) {
      MutexLock lock(mutex_);
      ++stats_.hits;
      return taken;
    }
    from = *place;
    ++from.offset;
  }
  MutexLock lock(mutex_);
  ++stats_.misses;
  return std::nullopt;
}

std::expected<Entry, Error> BundleTier::Read(const Place& place) {
  auto sealed = files_[place.file].Read(place.offset, place.size);
  if (!sealed && sealed.error().code == ErrorCode::kUnreachable) {
    MutexLock lock(mutex_);
    ++stats_.errors;
    return std::unexpected(std::move(sealed.error()));
  }
  if (!sealed) return std::unexpected(LeaveOut(place, sealed.error().message));
  auto entry = Unseal(std::move(*sealed));
  if (!entry) return std::unexpected(LeaveOut(place, entry.error().message));
  if (entry->key() != place.key) return std::unexpected(LeaveOut(place, "it holds another entry than when it was opened"));
  return entry;
}

std::optional<Entry> BundleTier::TakenIn(const Place& place, const Entry& entry) {
  std::expected<Entry, std::string> taken = std::unexpected("nobody takes it in");
  if (options_.take_in) taken = options_.take_in(entry);
  if (taken) return std::move(*taken);
  {
    MutexLock lock(mutex_);
    ++stats_.refused;
    if (std::exchange(states_[place.file].told, true)) return std::nullopt;
  }
  if (options_.on_refused) options_.on_refused(files_[place.file].path(), place.key, taken.error());
  return std::nullopt;
}

Error BundleTier::LeaveOut(const Place& place, std::string_view why) {
  const BundleFile& file = files_[place.file];
  const bool changed = !file.IsAsOpened();
  MutexLock lock(mutex_);
  State& state = states_[place.file];
  const auto at = std::ranges::lower_bound(index_, place, Before);
  if (at->size != 0 && !state.lost) {  // nobody else has left it out meanwhile
    ++stats_.corrupt;
    --state.entries;
    state.bytes -= at->size;
    at->size = 0;
  }
  if (!changed) return {ErrorCode::kCorrupt, fmt::format("{}: an entry is damaged and left out: {}", file.path().string(), why)};
  if (!std::exchange(state.lost, true)) ++lost_;
  return {ErrorCode::kCorrupt,
          fmt::format("{} was changed while it was in use ({}); nothing of it is served until the next start. Put a new bundle in "
                      "the place of an old one by renaming it",
                      file.path().string(), why)};
}

void BundleTier::Put(Entry entry, PutDone done) {
  if (done) done(Fail(ErrorCode::kInvalid, fmt::format("a bundle takes no entries, {} included", entry.key().ToHex())));
}

std::expected<bool, Error> BundleTier::Erase(const Digest& key) {
  return Fail(ErrorCode::kInvalid, fmt::format("a bundle loses no entries, {} included", key.ToHex()));
}

TierStats BundleTier::Stats() const {
  MutexLock lock(mutex_);
  TierStats stats = stats_;
  for (const State& state : states_) {
    if (state.lost) continue;
    stats.entries += state.entries;
    stats.bytes += state.bytes;
  }
  return stats;
}

std::vector<BundleTier::FileReport> BundleTier::Files() const {
  std::vector<FileReport> reports;
  MutexLock lock(mutex_);
  for (std::size_t file = 0; file < files_.size(); ++file) {
    reports.push_back({files_[file].path(), states_[file].entries, states_[file].bytes, states_[file].damaged});
  }
  return reports;
}

std::expected<std::optional<Entry>, Error> BundleTier::Sample(std::size_t file) {
  std::optional<Place> first;
  {
    MutexLock lock(mutex_);
    const auto at = std::ranges::find_if(index_, [&](const Place& place) { return place.file == file && place.size != 0; });
    if (at != index_.end()) first = *at;
  }
  if (!first) return std::nullopt;
  KILN_ASSIGN_OR_RETURN(const Entry entry, Read(*first));
  return TakenIn(*first, entry);
}

}  // namespace kiln::cache
