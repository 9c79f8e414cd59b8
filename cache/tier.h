// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/entry.h"
#include "cache/error.h"

namespace kiln::cache {

struct TierStats {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;     // in use, counted against capacity
  std::uint64_t capacity = 0;  // bytes; eviction keeps below it
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t puts = 0;
  std::uint64_t dropped_puts = 0;
  std::uint64_t evictions = 0;  // for space
  std::uint64_t corrupt = 0;    // entries found corrupt and evicted
  std::uint64_t errors = 0;     // operations that ended in kUnreachable or kFull
  std::uint64_t refused = 0;    // entries that came from outside and were not taken in
  std::uint64_t set_aside = 0;  // stores that were found damaged and replaced by an empty one
  std::uint64_t wal_bytes = 0;
  bool read_only = false;  // the disk is full: lookups work, puts are refused for now
};

// Called once, with the outcome, on any thread (the caller's own included), and never under a lock. It must not block
// and must not call back into a blocking operation of the same tier.
using PutDone = std::move_only_function<void(std::expected<void, Error>)>;

// How long one request has waited for what hosts share. Whoever waits for it adds to that, and waits no longer than what is left of its timeout:
// so a request that asks several times waits no longer than one that asks once. Of one thread at a time.
struct Waited {
  SteadyTime::duration time{0};
  // On whose behalf, for a tier that asks with credentials of theirs. Empty: nobody's, and such a tier is not asked.
  std::string asker = {};
};

// A place that stores entries. All members may be called from any thread.
//
// Corrupt, absent and unreachable are three things:
//   absent       an empty optional
//   corrupt      kCorrupt; the tier has evicted the entry (or will, before it can be read again) and counted it
//   unreachable  kUnreachable; nothing was deleted, for an I/O error says nothing about what is stored
class Tier {
 public:
  virtual ~Tier() = default;

  virtual std::string_view name() const = 0;

  // True when Get may wait for a disk or a network. Threads that must not wait ask only the other tiers.
  virtual bool blocking() const = 0;

  // False while the tier's storage could not be opened yet, or an outside tier's servers are left alone; callers then do not ask it for
  // anything.
  virtual bool available() const { return true; }

  // True when others than this process write it. What is read there is taken in (TieredCache::Options) before anybody sees it, and what is put
  // there may be lost. Such a tier decides by itself when it is left alone and tried again.
  virtual bool outside() const { return false; }

  // True when nothing can be put there or erased: Put and Erase fail with kInvalid. What such a tier gives it has taken in itself, unless it is
  // an outside one.
  virtual bool read_only() const { return false; }

  virtual std::expected<std::optional<Entry>, Error> Get(const Digest& key) = 0;

  // As Get, for a request that may have waited before. An outside tier says that nothing is there once no time is left.
  virtual std::expected<std::optional<Entry>, Error> GetWithin(const Digest& key, Waited&) { return Get(key); }

  // What an outside tier has under that key was not taken in: nobody here can use it, and the next Put replaces it, also where one leaves alone
  // what is there already.
  virtual void Refused(const Digest&) {}

  // It was used, by way of a nearer tier: a tier that evicts what was not used for longest counts that, too.
  virtual void Touch(const Digest&) {}

  // Stores the entry under its own key, in place of what was there. Returns at once; an entry that was accepted may
  // become visible only when `done` is called. After that it survives the end of this process, however it ends.
  virtual void Put(Entry entry, PutDone done = {}) = 0;

  // Whether there was such an entry.
  virtual std::expected<bool, Error> Erase(const Digest& key) = 0;

  // The process is about to end: what still waits to be written to a tier that does not take it soon is lost.
  virtual void EndSoon() {}

  virtual TierStats Stats() const = 0;

  // How often the tier lost everything that a Put had acknowledged: a store was found damaged and replaced by an empty one.
  virtual std::uint64_t losses() const { return 0; }
};

// Waits for the outcome.
std::expected<void, Error> PutAndWait(Tier& tier, Entry entry);

}  // namespace kiln::cache
