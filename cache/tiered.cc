// SPDX-License-Identifier: Apache-2.0
#include "cache/tiered.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <utility>

namespace kiln::cache {
namespace {

const Error& Disabled() {
  static const Error error{ErrorCode::kUnreachable, "the tier is disabled after an error"};
  return error;
}

}  // namespace

struct TieredCache::Slot {
  explicit Slot(std::shared_ptr<Tier> tier) : tier(std::move(tier)), outside(this->tier->outside()), read_only(this->tier->read_only()) {}

  const std::shared_ptr<Tier> tier;
  const bool outside;
  const bool read_only;
  std::atomic<std::uint64_t> refused{0};

  // Steady time in ticks until which the tier is left alone; 0 while it works. The thread that moves an expired time forward is the one
  // that tries the tier again.
  std::atomic<SteadyTime::rep> disabled_until{0};
};

// Shared by the callbacks of one Put.
struct TieredCache::PendingPut {
  Mutex mutex;
  std::size_t waiting KILN_GUARDED_BY(mutex) = 0;
  bool kept KILN_GUARDED_BY(mutex) = false;
  std::expected<void, Error> failure KILN_GUARDED_BY(mutex) = Fail(ErrorCode::kUnreachable, "the cache has no tier");
  PutDone done;

  void Finish(std::expected<void, Error> outcome, bool counts) KILN_EXCLUDES(mutex) {
    std::expected<void, Error> result;
    {
      MutexLock lock(mutex);
      if (!outcome) failure = std::move(outcome);
      else if (counts) kept = true;
      if (--waiting != 0) return;
      if (!kept) result = std::move(failure);
    }
    if (done) done(std::move(result));
  }
};

TieredCache::TieredCache(std::vector<std::shared_ptr<Tier>> tiers, const Clock& clock, Options options)
    : clock_(clock), options_(std::move(options)) {
  for (auto& tier : tiers) slots_.push_back(std::make_unique<Slot>(std::move(tier)));
  while (nonblocking_ < slots_.size() && !slots_[nonblocking_]->tier->blocking()) ++nonblocking_;
  while (own_ < slots_.size() && !slots_[own_]->outside) ++own_;
}

TieredCache::~TieredCache() {
  for (const auto& slot : slots_) slot->tier->EndSoon();
  MutexLock lock(mutex_);
  while (unanswered_ > 0) answered_.Wait(mutex_);
}

bool TieredCache::MayUse(Slot& slot) {
  if (!slot.tier->available()) return false;
  auto until = slot.disabled_until.load(std::memory_order_relaxed);
  if (until == 0) return true;
  const SteadyTime now = clock_.SteadyNow();
  if (now.time_since_epoch().count() < until) return false;
  const SteadyTime next = now + options_.disable_for;
  return slot.disabled_until.compare_exchange_strong(until, next.time_since_epoch().count());
}

// kUnreachable disables, any answer that the tier itself gave enables again.
void TieredCache::Note(Slot& slot, const std::expected<void, Error>& outcome) {
  if (slot.outside) {
    // It says by itself when it is available.
  } else if (!outcome && outcome.error().code == ErrorCode::kUnreachable) {
    slot.disabled_until = (clock_.SteadyNow() + options_.disable_for).time_since_epoch().count();
  } else if (slot.disabled_until.load(std::memory_order_relaxed) != 0) {
    slot.disabled_until = 0;
  }
  // By the tier itself, once; an outside one tells of all but its entries.
  const bool told = !outcome && (outcome.error().code == ErrorCode::kFull || (slot.outside && outcome.error().code != ErrorCode::kCorrupt));
  if (!outcome && !told && options_.on_error) options_.on_error(slot.tier->name(), outcome.error());
}

std::optional<TieredCache::Hit> TieredCache::Get(const Digest& key) {
  Waited waited;
  return Get(key, waited);
}

std::optional<TieredCache::Hit> TieredCache::Get(const Digest& key, Waited& waited) { return GetThrough(key, slots_.size(), waited); }

std::optional<TieredCache::Hit> TieredCache::GetOwn(const Digest& key) {
  Waited waited;
  return GetThrough(key, own_, waited);
}

std::optional<TieredCache::Hit> TieredCache::GetWithoutBlocking(const Digest& key) {
  Waited waited;
  return GetThrough(key, nonblocking_, waited);
}

bool TieredCache::Accepts(const Slot& slot, const Entry& entry) const { return !options_.accept || !slot.tier->blocking() || options_.accept(entry); }

std::optional<Entry> TieredCache::Accepted(Slot& slot, Entry entry) {
  if (slot.outside) {
    auto taken = options_.take_in ? options_.take_in(slot.tier->name(), entry) : std::nullopt;
    if (taken) return taken;
    ++slot.refused;
    slot.tier->Refused(entry.key());
    return std::nullopt;
  }
  if (slot.read_only || Accepts(slot, entry)) return entry;
  if (auto erased = slot.tier->Erase(entry.key()); !erased) Note(slot, std::unexpected(std::move(erased.error())));
  return std::nullopt;
}

std::uint64_t TieredCache::losses() const {
  std::uint64_t sum = 0;
  for (const auto& slot : slots_) sum += slot->tier->losses();
  return sum;
}

std::optional<TieredCache::Hit> TieredCache::GetThrough(const Digest& key, std::size_t levels, Waited& waited) {
  const std::uint64_t losses = this->losses();
  for (std::size_t level = 0; level < levels; ++level) {
    Slot& slot = *slots_[level];
    if (!MayUse(slot)) continue;
    auto found = slot.tier->GetWithin(key, waited);
    if (!found) {
      Note(slot, std::unexpected(std::move(found.error())));
      continue;
    }
    Note(slot, {});
    if (!*found) continue;
    const Entry as_found = **found;
    auto entry = Accepted(slot, std::move(**found));
    if (!entry) continue;
    if (slot.outside) {
      // With the seal of who made it: other hosts may trust that one and not this host.
      for (std::size_t nearer = own_; nearer < level; ++nearer) {
        if (!slots_[nearer]->read_only && MayUse(*slots_[nearer])) PutInto(*slots_[nearer], as_found, {});
      }
      Keep(*entry, 0, {});
      return Hit{std::move(*entry), level, slot.tier->name(), false, true, false};
    }
    for (std::size_t nearer = 0; nearer < std::min(level, nonblocking_); ++nearer) {
      if (MayUse(*slots_[nearer])) PutInto(*slots_[nearer], *entry, {});
    }
    if (level < nonblocking_) Touch(key);
    if (slot.tier->blocking()) unsettled_.Found(key, losses);
    const bool durable = slot.tier->blocking() || (nonblocking_ < slots_.size() && unsettled_.IsSettled(key, losses));
    return Hit{std::move(*entry), level, slot.tier->name(), durable, false, slot.read_only};
  }
  return std::nullopt;
}

// In this host's own tiers that a hit in memory leaves unasked.
void TieredCache::Touch(const Digest& key) {
  for (std::size_t level = nonblocking_; level < own_; ++level) {
    if (slots_[level]->tier->available()) slots_[level]->tier->Touch(key);
  }
}

void TieredCache::PutInto(Slot& slot, Entry entry, PutDone done) {
  {
    MutexLock lock(mutex_);
    ++unanswered_;
  }
  slot.tier->Put(std::move(entry), [this, &slot, done = std::move(done)](std::expected<void, Error> outcome) mutable {
    Note(slot, outcome);
    if (done) done(std::move(outcome));
    // Notified under the lock: once it is free the destructor may be through.
    MutexLock lock(mutex_);
    if (--unanswered_ == 0) answered_.NotifyAll();
  });
}

void TieredCache::Put(Entry entry, PutDone done) {
  PutOutside(entry);
  Keep(entry, 0, std::move(done));
}

bool TieredCache::PutFar(Entry entry) {
  if (nonblocking_ >= own_) return false;
  PutOutside(entry);
  Keep(entry, nonblocking_, {});
  return true;
}

void TieredCache::EraseOutside(const Digest& key) {
  for (const auto& slot : std::span(slots_).subspan(own_)) {
    if (slot->read_only || !MayUse(*slot)) continue;
    auto erased = slot->tier->Erase(key);
    Note(*slot, erased ? std::expected<void, Error>() : std::unexpected(std::move(erased.error())));
  }
}

void TieredCache::PutOutside(const Entry& entry) {
  if (options_.shares && !options_.shares()) return;
  for (const auto& slot : std::span(slots_).subspan(own_)) {
    if (!slot->read_only && MayUse(*slot)) PutInto(*slot, entry, {});
  }
}

// In this host's own tiers from one on.
void TieredCache::Keep(const Entry& entry, std::size_t from, PutDone done) {
  const std::span own(slots_.data() + from, own_ - from);
  const Digest key = entry.key();
  unsettled_.Begin(key);
  auto pending = std::make_shared<PendingPut>();
  pending->done = [this, key, done = std::move(done)](std::expected<void, Error> outcome) mutable {
    unsettled_.End(key, outcome, losses());
    if (done) done(std::move(outcome));
  };
  std::vector<Slot*> used;
  bool any_blocking = false, all_used = true;
  for (const auto& slot : own) {
    if (slot->read_only) continue;
    any_blocking = any_blocking || slot->tier->blocking();
    if (MayUse(*slot)) used.push_back(slot.get());
    else all_used = false;
  }
  {
    MutexLock lock(pending->mutex);
    pending->waiting = used.size() + 1;  // one for this function, so that nobody finishes before all are asked
    if (!all_used) pending->failure = std::unexpected(Disabled());
  }
  for (Slot* slot : used) {
    const bool counts = slot->tier->blocking() || !any_blocking;
    PutInto(*slot, entry, [pending, counts](std::expected<void, Error> outcome) { pending->Finish(std::move(outcome), counts); });
  }
  pending->Finish({}, false);
}

void TieredCache::MakeDurable(const Digest& key, PutDone done) {
  if (unsettled_.Await(key, done)) return;
  auto hit = GetOwn(key);
  if (!hit) return done(Fail(ErrorCode::kInvalid, "the entry is in no tier of this host any more"));
  if (hit->durable) return done({});
  Keep(hit->entry, 0, std::move(done));
}

std::expected<bool, Error> TieredCache::Erase(const Digest& key) {
  bool had = false;
  std::optional<Error> failure;
  for (const auto& slot : std::span(slots_.data(), own_)) {
    if (slot->read_only) continue;
    if (!MayUse(*slot)) {
      failure = Disabled();
      continue;
    }
    auto erased = slot->tier->Erase(key);
    if (erased) {
      Note(*slot, {});
      had = had || *erased;
    } else {
      failure = erased.error();
      Note(*slot, std::unexpected(std::move(erased.error())));
    }
  }
  if (failure) return std::unexpected(std::move(*failure));
  return had;
}

std::vector<TieredCache::TierReport> TieredCache::Report() const {
  std::vector<TierReport> reports;
  for (const auto& slot : slots_) {
    reports.push_back({slot->tier->name(), slot->tier->available() && slot->disabled_until.load() == 0, slot->tier->Stats()});
    reports.back().stats.refused += slot->refused;
  }
  return reports;
}

}  // namespace kiln::cache
