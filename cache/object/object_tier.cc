// SPDX-License-Identifier: Apache-2.0
#include "cache/object/object_tier.h"

#include <utility>

#include "cache/outside/packed_entry.h"
#include "cache/try.h"

namespace kiln::cache::object {
namespace {

constexpr std::chrono::seconds kToTheEnd{2};  // for what still waits to be written

Store::Options Bounded(Store::Options options, std::uint64_t max_entry) {
  options.most = MostPacked(max_entry);
  return options;
}

}  // namespace

ObjectTier::ObjectTier(Options options, const Clock& clock)
    : max_entry_(options.max_entry), store_(Bounded(std::move(options.store), options.max_entry), clock), writes_(options.queue, store_) {}

std::expected<std::optional<Entry>, Error> ObjectTier::Read(const Digest& key, Waited& waited) {
  KILN_ASSIGN_OR_RETURN(const std::optional<Store::Object> object, store_.Read(key, waited));
  if (!object) return std::nullopt;
  auto entry = Unpack(key, object->bytes, max_entry_);
  if (entry) return std::move(*entry);
  if (entry.error().code != ErrorCode::kCorrupt) return std::unexpected(std::move(entry.error()));
  // A connection that ended says nothing of what is stored.
  if (!object->whole) return Fail(ErrorCode::kUnreachable, "the object store did not say where an object ends: " + entry.error().message);
  writes_.Evict(key);
  return std::unexpected(std::move(entry.error()));
}

std::expected<std::optional<Entry>, Error> ObjectTier::Get(const Digest& key) {
  Waited waited;
  return GetWithin(key, waited);
}

std::expected<std::optional<Entry>, Error> ObjectTier::GetWithin(const Digest& key, Waited& waited) {
  if (waited.time >= store_.timeout()) return std::nullopt;
  auto found = Read(key, waited);
  if (found && *found) ++reads_.hits;
  else ++reads_.misses;
  if (!found && found.error().code == ErrorCode::kCorrupt) ++reads_.corrupt;
  else if (!found && found.error().code != ErrorCode::kInvalid) ++reads_.errors;
  return found;
}

void ObjectTier::Put(Entry entry, PutDone done) {
  if (entry.sealed().size() <= max_entry_) return writes_.Put(std::move(entry), std::move(done));
  if (done) done({});
}

std::expected<bool, Error> ObjectTier::Erase(const Digest& key) { return store_.Remove(key); }

void ObjectTier::EndSoon() { store_.EndBy(store_.clock().SteadyNow() + kToTheEnd); }

TierStats ObjectTier::Stats() const { return StatsOf(reads_, writes_.counters()); }

}  // namespace kiln::cache::object
