// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/redis_tier.h"

#include <utility>

#include "cache/outside/packed_entry.h"
#include "cache/redis/homes.h"
#include "cache/redis/names.h"
#include "cache/redis/scripts.h"
#include "cache/try.h"

namespace kiln::cache::redis {

RedisTier::RedisTier(Options options, std::shared_ptr<Cluster> cluster, std::shared_ptr<LeaseTable> leases)
    : options_(std::move(options)), cluster_(std::move(cluster)), leases_(std::move(leases)), writes_(options_.queue, *cluster_, *leases_) {}

// What was put while the key's own server was gone is elsewhere, until its writers have put it here, too.
std::expected<std::optional<Entry>, Error> RedisTier::Read(const Digest& key, Waited& waited) {
  auto found = ReadAt(key, 0, waited);
  if ((found && *found) || waited.time >= cluster_->timeout()) return found;
  if (cluster_->InUse(Names(key).slot) && !cluster_->Unsettled()) return found;
  const unsigned other = OtherHome(key, *cluster_);
  if (other == 0) return found;
  auto elsewhere = ReadAt(key, other, waited);
  return elsewhere && *elsewhere ? std::move(elsewhere) : std::move(found);
}

std::expected<std::optional<Entry>, Error> RedisTier::ReadAt(const Digest& key, unsigned home, Waited& waited) {
  const Names names(key, home);
  const Command command{names.slot, Format({"HMGET", names.entry, "h", "b"}), true};
  const auto answer = cluster_->Ask(command, waited);
  if (!answer && answer.error().message.contains("WRONGTYPE")) {
    writes_.Evict(key, home, {});
    return Fail(ErrorCode::kCorrupt, "entry of the cluster store: under its name is something else");
  }
  if (!answer) return std::unexpected(answer.error());
  if (!answer->is_array() || answer->items.size() != 2) return Fail(ErrorCode::kUnreachable, "the cluster store answers HMGET with something else");
  const Reply& head = answer->items[0];
  const Reply& body = answer->items[1];
  if (!head.is_text() && !body.is_text()) return std::nullopt;
  auto entry = EntryFrom(key, head.text, body.text, options_.max_entry);
  if (!entry) {
    writes_.Evict(key, home, head.text);
    return std::unexpected(std::move(entry.error()));
  }
  writes_.Touch(key, home);
  return std::move(*entry);
}

std::expected<std::optional<Entry>, Error> RedisTier::Get(const Digest& key) {
  Waited waited;
  return GetWithin(key, waited);
}

std::expected<std::optional<Entry>, Error> RedisTier::GetWithin(const Digest& key, Waited& waited) {
  if (waited.time >= cluster_->timeout()) return std::nullopt;
  auto found = Read(key, waited);
  if (found && *found) ++reads_.hits;
  else ++reads_.misses;
  if (!found) ++(found.error().code == ErrorCode::kCorrupt ? reads_.corrupt : reads_.errors);
  return found;
}

void RedisTier::Put(Entry entry, PutDone done) {
  if (entry.sealed().size() <= options_.max_entry) return writes_.Put(std::move(entry), std::move(done));
  if (done) done({});
}

// Where it is, and where it may have been left while its own server was gone: there it would be found the next time that server goes.
std::expected<bool, Error> RedisTier::Erase(const Digest& key) {
  const unsigned home = HomeOf(key, *cluster_), other = OtherHome(key, *cluster_);
  auto erased = EraseAt(key, home);
  if (other == 0 || other == home) return erased;
  auto elsewhere = EraseAt(key, other);
  if (!erased || !elsewhere) return erased ? std::move(elsewhere) : std::move(erased);
  return *erased || *elsewhere;
}

std::expected<bool, Error> RedisTier::EraseAt(const Digest& key, unsigned home) {
  const Names names(key, home);
  const Command command{names.slot, Format({"EVAL", scripts::kEvict, "1", names.entry, ""})};
  KILN_ASSIGN_OR_RETURN(const Reply reply, cluster_->Ask(command, cluster_->clock().SteadyNow() + cluster_->timeout()));
  return reply.integer > 0;
}

TierStats RedisTier::Stats() const { return StatsOf(reads_, writes_.counters()); }

}  // namespace kiln::cache::redis
