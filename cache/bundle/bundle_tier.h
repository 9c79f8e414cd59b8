// SPDX-License-Identifier: Apache-2.0
//
// Bundles (bundle.h) that are served as they lie there, with no import: what a container image ships with.
//
// Opening a bundle reads and verifies the head of each entry, and no body. A body is verified and taken in each time it is read from here; the
// nearer tiers keep what comes of that.
//
// An entry that turns out wrong is left out from then on, and so is its whole file where somebody has written into that since it was opened.
//
// All members may be called from any thread. The mutex guards the index and the counts; no file is read under it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/bundle/bundle_file.h"
#include "cache/mutex.h"
#include "cache/tier.h"

namespace kiln::cache {

struct BundleOptions {
  std::vector<std::filesystem::path> files;  // the first that has an entry which is taken in gives it
  // The entry as this process serves it, or why it is refused. Empty: all are refused.
  std::function<std::expected<Entry, std::string>(const Entry&)> take_in;
  // What is wrong with a file that is served all the same. While it is opened.
  std::function<void(const Error&)> on_damage;
  // The first refusal of each file. Any thread, and never under a lock.
  std::function<void(const std::filesystem::path& file, const Digest& key, std::string_view why)> on_refused;
};

class BundleTier final : public Tier {
 public:
  // The error names the file. kRefused where it is no ordinary file, or others than its owner could change it: root or the user of this
  // process must own it. A file that is cut off or damaged is opened; its whole entries are served.
  static std::expected<std::unique_ptr<BundleTier>, Error> Open(BundleOptions options);

  std::string_view name() const override { return "bundle"; }
  bool blocking() const override { return true; }
  bool read_only() const override { return true; }
  bool available() const override { return lost_ < files_.size(); }  // any of the files is

  // kCorrupt: this entry, or its whole file, is not asked for again.
  std::expected<std::optional<Entry>, Error> Get(const Digest& key) override;

  // These fail with kInvalid.
  void Put(Entry entry, PutDone done = {}) override;
  std::expected<bool, Error> Erase(const Digest& key) override;

  TierStats Stats() const override;
  std::uint64_t losses() const override { return lost_; }

  struct FileReport {
    std::filesystem::path path;
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;    // of these
    std::uint64_t damaged = 0;  // entries that were left out
  };
  std::vector<FileReport> Files() const;  // in their order

  // The first entry of the file as it is taken in; nothing where it has none, or that one is refused.
  std::expected<std::optional<Entry>, Error> Sample(std::size_t file);

 private:
  struct Place {
    Digest key;
    std::uint32_t file = 0;
    std::uint32_t size = 0;  // 0: it is left out
    std::uint64_t offset = 0;
  };
  struct State {  // of a file
    std::uint64_t entries = 0, bytes = 0, damaged = 0;
    bool lost = false;
    bool told = false;  // of a refusal
  };

  BundleTier(BundleOptions options, std::vector<BundleFile> files) : options_(std::move(options)), files_(std::move(files)) {}
  void Index() KILN_EXCLUDES(mutex_);
  static bool Before(const Place& one, const Place& other);
  std::optional<Place> FirstFrom(const Place& from) const KILN_EXCLUDES(mutex_);
  std::expected<Entry, Error> Read(const Place& place) KILN_EXCLUDES(mutex_);
  std::optional<Entry> TakenIn(const Place& place, const Entry& entry) KILN_EXCLUDES(mutex_);
  Error LeaveOut(const Place& place, std::string_view why) KILN_EXCLUDES(mutex_);

  const BundleOptions options_;
  const std::vector<BundleFile> files_;
  mutable Mutex mutex_;
  std::vector<Place> index_ KILN_GUARDED_BY(mutex_);  // by key, then as they are asked
  std::vector<State> states_ KILN_GUARDED_BY(mutex_);
  TierStats stats_ KILN_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> lost_ = 0;  // files
};

}  // namespace kiln::cache
