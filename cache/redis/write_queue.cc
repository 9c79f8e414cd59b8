// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/write_queue.h"

#include <algorithm>
#include <utility>

#include "cache/outside/packed_entry.h"
#include "cache/redis/homes.h"
#include "cache/redis/scripts.h"

namespace kiln::cache::redis {
namespace {

// Of one batch, whose answers are awaited before the next.
constexpr std::size_t kMostItems = 256;
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 20;

constexpr std::uint64_t kItemBytes = 256;  // of memory, beside what it holds
constexpr std::uint64_t kMostForHome = std::uint64_t{32} << 20;

template <class... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overload(Cases...) -> Overload<Cases...>;

}  // namespace

WriteQueue::WriteQueue(Options options, Cluster& cluster, const LeaseTable& leases)
    : options_(std::move(options)), cluster_(cluster), leases_(leases), line_(options_.max_bytes), writer_([this] { Run(); }) {}

WriteQueue::~WriteQueue() {
  line_.Close();
  writer_.join();
}

std::uint64_t WriteQueue::WeightOf(const PutItem& put) { return kItemBytes + put.entry.sealed().size(); }

std::uint64_t WriteQueue::Weight(const Item& item) {
  if (const auto* put = std::get_if<PutItem>(&item)) return WeightOf(*put);
  if (const auto* evict = std::get_if<EvictItem>(&item)) return kItemBytes + evict->head.size();
  return kItemBytes;
}

void WriteQueue::Put(Entry entry, PutDone done) {
  HeldLease lease = leases_.Find(entry.key()).value_or(HeldLease());
  Item item = PutItem{std::move(entry), std::move(lease), std::move(done)};
  if (Add(item)) return;
  ++counters_.dropped;
  if (PutDone& told = std::get<PutItem>(item).done) told(Fail(ErrorCode::kOverloaded, "too many writes wait for the cluster store"));
}

void WriteQueue::Touch(const Digest& key, unsigned home) {
  Item item = TouchItem{key, home};
  Add(item);
}

void WriteQueue::Evict(const Digest& key, unsigned home, std::string head) {
  Item item = EvictItem{key, home, std::move(head)};
  Add(item);
}

void WriteQueue::Release(const Digest& key, HeldLease lease) {
  Item item = ReleaseItem{key, std::move(lease)};
  Add(item);
}

void WriteQueue::Run() {
  for (auto batch = line_.Take(kMostItems, kMostBytes); !batch.empty(); batch = line_.Take(kMostItems, kMostBytes)) Write(std::move(batch));
}

// Those whom the end of a lease wakes look for what was put under it, and its refusal has a name in another slot: so leases end last.
void WriteQueue::Write(std::vector<Item> batch) {
  BringHome();
  const auto ends = std::ranges::stable_partition(batch, [](const Item& item) { return !std::holds_alternative<ReleaseItem>(item); });
  WriteTogether({batch.begin(), ends.begin()});
  WriteTogether({ends.begin(), ends.end()});
}

void WriteQueue::WriteTogether(std::span<Item> items) {
  if (items.empty()) return;
  std::vector<Command> commands;
  for (const Item& item : items) commands.push_back(CommandFor(item));
  std::vector<Cluster::Answer> answers = cluster_.AskAll(commands, options_.patience);
  PutElsewhere(items, answers);
  for (std::size_t i = 0; i < items.size(); ++i) Note(items[i], answers[i]);
}

// Those puts that met a server that is gone. Their leases are gone with it, so whoever waits for them is told besides.
void WriteQueue::PutElsewhere(std::span<Item> items, std::vector<Cluster::Answer>& answers) {
  std::vector<std::size_t> which;
  std::vector<Command> commands;
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto* const put = std::get_if<PutItem>(&items[i]);
    if (put == nullptr) continue;
    const Digest key = put->entry.key();
    if (!answers[i] && answers[i].error().code == ErrorCode::kUnreachable && put->lease.home == 0) {
      put->lease = {.token = {}, .fence = put->lease.fence, .home = HomeOf(key, cluster_)};
      if (put->lease.home == 0) continue;  // there is none
      const Names names(key, put->lease.home);
      which.push_back(i);
      commands.push_back(CommandFor(items[i]));
      commands.push_back({names.slot, Format({"PUBLISH", names.channel, "done"})});
    } else if (answers[i] && put->lease.home != 0) {
      KeepForHome({put->entry, put->lease, {}});
    }
  }
  if (commands.empty()) return;
  std::vector<Cluster::Answer> said = cluster_.AskAll(commands, options_.patience);
  for (std::size_t i = 0; i < which.size(); ++i) {
    answers[which[i]] = std::move(said[2 * i]);
    const auto& put = std::get<PutItem>(items[which[i]]);
    if (answers[which[i]]) KeepForHome({put.entry, put.lease, {}});
  }
}

void WriteQueue::KeepForHome(PutItem put) {
  put.lease = {.token = {}, .fence = put.lease.fence, .home = 0};
  for_home_bytes_ += WeightOf(put);
  for_home_.push_back(std::move(put));
  while (for_home_bytes_ > kMostForHome) {
    for_home_bytes_ -= WeightOf(for_home_.front());
    for_home_.pop_front();
  }
}

// A server that is back may not write yet: then it is tried again.
void WriteQueue::BringHome() {
  const auto there = std::ranges::stable_partition(for_home_, [&](const PutItem& put) { return !cluster_.InUse(Names(put.entry.key()).slot); });
  if (there.empty()) return;
  std::vector<PutItem> puts(std::make_move_iterator(there.begin()), std::make_move_iterator(there.end()));
  for_home_.erase(there.begin(), there.end());
  std::vector<Command> commands;
  for (const PutItem& put : puts) {
    for_home_bytes_ -= WeightOf(put);
    commands.push_back(CommandFor(put));
  }
  const std::vector<Cluster::Answer> answers = cluster_.AskAll(commands, options_.patience);
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (!answers[i] && answers[i].error().code == ErrorCode::kUnreachable) KeepForHome(std::move(puts[i]));
  }
}

Command WriteQueue::CommandFor(const PutItem& put) const {
  const Names names(put.entry.key(), put.lease.home);
  return {names.slot, Format({"EVAL", scripts::kPut, "2", names.entry, names.lease, put.entry.head(), Compress(put.entry.body()),
                              std::to_string(options_.expiry.count()), std::to_string(put.lease.fence), put.lease.token, names.channel})};
}

Command WriteQueue::CommandFor(const Item& item) const {
  const std::string expiry = std::to_string(options_.expiry.count());
  return std::visit(Overload{[&](const PutItem& put) { return CommandFor(put); },
                             [&](const TouchItem& touch) {
                               const Names names(touch.key, touch.home);
                               return Command{names.slot, Format({"PEXPIRE", names.entry, expiry})};
                             },
                             [](const EvictItem& evict) {
                               const Names names(evict.key, evict.home);
                               return Command{names.slot, Format({"EVAL", scripts::kEvict, "1", names.entry, evict.head})};
                             },
                             [](const ReleaseItem& release) {
                               const Names names(release.key, release.lease.home);
                               return Command{names.slot, Format({"EVAL", scripts::kRelease, "1", names.lease, release.lease.token, names.channel})};
                             }},
                    item);
}

void WriteQueue::Note(Item& item, const Cluster::Answer& answer) {
  auto* const put = std::get_if<PutItem>(&item);
  if (!answer) ++counters_.errors;
  if (put == nullptr) return;
  if (answer) ++counters_.puts;
  else ++counters_.dropped;
  counters_.full = !answer && answer.error().code == ErrorCode::kFull;
  if (!put->done) return;
  if (answer) put->done({});
  else put->done(std::unexpected(answer.error()));
}

}  // namespace kiln::cache::redis
