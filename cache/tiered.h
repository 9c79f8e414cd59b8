// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "cache/tier.h"
#include "cache/unsettled.h"

namespace kiln::cache {

// The tiers as one cache, nearest first. It cannot fail: a tier's error makes it a miss there, goes to the observer,
// and the work goes on.
//
// A tier that answers kUnreachable is left alone for `disable_for`. When that has passed, one caller tries it again
// while the others still pass by, so that a tier that hangs holds up one thread per period and no more.
//
// Outside tiers (Tier::outside) come last. They are no part of what a put promises: nobody waits for them, and their errors fail nothing.
//
// A tier that only reads (Tier::read_only) comes behind those of this host that are written: what was put there later goes before what it has,
// also after the next start.
class TieredCache {
 public:
  struct Options {
    std::chrono::milliseconds disable_for = std::chrono::seconds(10);
    // Called with every error, on the thread that met it, and never under a lock.
    std::function<void(std::string_view tier, const Error&)> on_error;
    // Whether an entry of a tier that blocks may be served. One that may not is erased there, and never seen by anybody: it is
    // asked before the entry is copied into a nearer tier. Empty: all may. Any thread, and never under a lock.
    std::function<bool(const Entry&)> accept;
    // What becomes of an entry of an outside tier: as this process keeps and serves it, or nothing where it is refused. A refused one stays
    // where it is, since others may trust it, until this process puts its own (Tier::Refused). Empty: all are refused. Any thread, and never
    // under a lock.
    std::function<std::optional<Entry>(std::string_view tier, const Entry&)> take_in;
    // Whether others can take in what this process seals. While they cannot, its entries are not put into outside tiers. Empty: they can. Any
    // thread, and never under a lock.
    std::function<bool()> shares;
  };

  struct Hit {
    Entry entry;
    std::size_t level;      // 0 is the nearest
    std::string_view tier;  // its name; lives as long as the cache
    bool durable;           // a blocking tier of this host has it, as far as this cache put it there itself, or found it there
    bool outside;           // it came from an outside tier
    bool read_only;         // it came from a tier that only reads
  };

  TieredCache(std::vector<std::shared_ptr<Tier>> tiers, const Clock& clock, Options options);

  // Waits for the outcome of every Put.
  ~TieredCache();

  // Asks tier after tier, and copies a hit that is accepted into those before it that never block; one of an outside tier into all of this
  // host's own, and as it was found into the outside tiers before that. May block.
  std::optional<Hit> Get(const Digest& key);
  // As Get, for a request that may have waited for outside tiers before.
  std::optional<Hit> Get(const Digest& key, Waited& waited);

  // As Get, but asks only this host's own tiers, so that nobody waits for what hosts share.
  std::optional<Hit> GetOwn(const Digest& key);

  // As Get, but asks only the leading tiers that never block.
  std::optional<Hit> GetWithoutBlocking(const Digest& key);

  // Puts into every tier that is written. `done` is called once, when the last of this host's own has answered: with success if the entry is
  // in at least one that blocks (or in any, where none blocks), else with the last error.
  void Put(Entry entry, PutDone done = {});

  // As Put, but not into tiers that never block, whose room is for what is asked for soon. False, and nothing happens, where no tier of this
  // host's own blocks.
  bool PutFar(Entry entry);

  // Removes what hosts share under the key, so that the next put replaces it: outside tiers keep what is there otherwise. May block.
  void EraseOutside(const Digest& key);

  // Calls `done` once a blocking tier has the entry, or cannot take it: puts anew what could not be kept before. An entry that is in no tier
  // of this host's own fails with kInvalid.
  void MakeDurable(const Digest& key, PutDone done);

  // Erases from every tier of this host's own that is written; whether one had it. An error, a disabled tier included, is returned after all
  // were asked, for the caller wanted the entry gone and it may not be.
  std::expected<bool, Error> Erase(const Digest& key);

  struct TierReport {
    std::string_view name;
    bool enabled;
    TierStats stats;
  };
  std::vector<TierReport> Report() const;

 private:
  struct Slot;
  struct PendingPut;

  std::optional<Hit> GetThrough(const Digest& key, std::size_t levels, Waited& waited);
  std::uint64_t losses() const;
  bool Accepts(const Slot& slot, const Entry& entry) const;
  std::optional<Entry> Accepted(Slot& slot, Entry entry);
  bool MayUse(Slot& slot);
  void Note(Slot& slot, const std::expected<void, Error>& outcome);
  void PutInto(Slot& slot, Entry entry, PutDone done);
  void Touch(const Digest& key);
  void PutOutside(const Entry& entry);
  void Keep(const Entry& entry, std::size_t from, PutDone done);

  const Clock& clock_;
  const Options options_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::size_t nonblocking_ = 0;  // leading tiers that never block
  std::size_t own_ = 0;          // leading tiers that are not outside

  Mutex mutex_;
  CondVar answered_;
  Unsettled unsettled_;
  std::size_t unanswered_ KILN_GUARDED_BY(mutex_) = 0;  // puts that a tier has yet to answer
};

}  // namespace kiln::cache
