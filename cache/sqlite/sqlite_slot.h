// SPDX-License-Identifier: Apache-2.0
//
// Holds the SQLite tier, whose store may become available later: if it cannot be opened (a full or read-only disk, a lock file that is not
// a file), the slot tries again until it can. Until then the tier is not available, and the other tiers work without it.
//
// Threads. KeepTrying starts one, which ends when the store is open or the slot goes. `open_` is set once while the slot is shared, when
// `store_` is there: whoever finds it null passes by, and nobody waits while a store is being opened.
#pragma once

#include <atomic>
#include <chrono>
#include <expected>
#include <functional>
#include <memory>
#include <thread>

#include "cache/mutex.h"
#include "cache/sqlite/sqlite_tier.h"

namespace kiln::cache {

class SqliteSlot final : public Tier {
 public:
  struct Options {
    SqliteOptions store;  // on_event is told why it cannot be opened, when that is another reason than the last time
    // A check of a store that was opened later, made before it is used. On an error the store is closed again.
    std::function<std::expected<void, Error>()> may_use;
    std::function<void()> on_open;  // of a store that came later
    std::chrono::milliseconds between_tries = std::chrono::seconds(2);
  };
  SqliteSlot(Options options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}

  // Commits every accepted put, then closes.
  ~SqliteSlot() override;

  // Before the slot is shared: once, and back.
  std::expected<void, Error> Open();
  void Close();
  void KeepTrying();  // while it is not open

  // Null while it is not open.
  SqliteTier* store() const { return open_.load(std::memory_order_acquire); }

  std::string_view name() const override { return "sqlite"; }
  bool blocking() const override { return true; }
  bool available() const override { return store() != nullptr; }
  std::expected<std::optional<Entry>, Error> Get(const Digest& key) override;
  void Touch(const Digest& key) override;
  void Put(Entry entry, PutDone done = {}) override;
  std::expected<bool, Error> Erase(const Digest& key) override;
  TierStats Stats() const override;
  std::uint64_t losses() const override;

 private:
  void Try();
  std::expected<void, Error> OpenLate();
  bool WaitForNextTry();

  const Options options_;
  const Clock& clock_;
  std::unique_ptr<SqliteTier> store_;
  std::atomic<SqliteTier*> open_ = nullptr;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kiln::cache
