// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/write_queue.h"

#include <algorithm>
#include <utility>

#include "cache/outside/packed_entry.h"
#include "cache/redis/names.h"
#include "cache/redis/scripts.h"

namespace kiln::cache::redis {
namespace {

// Of one batch, whose answers are awaited before the next.
constexpr std::size_t kMostItems = 256;
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 20;

constexpr std::uint64_t kItemBytes = 256;  // of memory, beside what it holds

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

std::uint64_t WriteQueue::Weight(const Item& item) {
  if (const auto* put = std::get_if<PutItem>(&item)) return kItemBytes + put->entry.sealed().size();
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

void WriteQueue::Touch(const Digest& key) {
  Item item = TouchItem{key};
  Add(item);
}

void WriteQueue::Evict(const Digest& key, std::string head) {
  Item item = EvictItem{key, std::move(head)};
  Add(item);
}

void WriteQueue::Release(const Digest& key, std::string token) {
  Item item = ReleaseItem{key, std::move(token)};
  Add(item);
}

void WriteQueue::Run() {
  for (auto batch = line_.Take(kMostItems, kMostBytes); !batch.empty(); batch = line_.Take(kMostItems, kMostBytes)) Write(std::move(batch));
}

// Those whom the end of a lease wakes look for what was put under it, and its refusal has a name in another slot: so leases end last.
void WriteQueue::Write(std::vector<Item> batch) {
  const auto ends = std::ranges::stable_partition(batch, [](const Item& item) { return !std::holds_alternative<ReleaseItem>(item); });
  WriteTogether({batch.begin(), ends.begin()});
  WriteTogether({ends.begin(), ends.end()});
}

void WriteQueue::WriteTogether(std::span<Item> items) {
  if (items.empty()) return;
  std::vector<Command> commands;
  for (const Item& item : items) commands.push_back(CommandFor(item));
  const std::vector<Cluster::Answer> answers = cluster_.AskAll(commands, options_.patience);
  for (std::size_t i = 0; i < items.size(); ++i) Note(items[i], answers[i]);
}

Command WriteQueue::CommandFor(const Item& item) const {
  const std::string expiry = std::to_string(options_.expiry.count());
  return std::visit(Overload{[&](const PutItem& put) {
                               const Names names(put.entry.key());
                               return Command{names.slot, Format({"EVAL", scripts::kPut, "2", names.entry, names.lease, put.entry.head(),
                                                                  Compress(put.entry.body()), expiry, std::to_string(put.lease.fence),
                                                                  put.lease.token, names.channel})};
                             },
                             [&](const TouchItem& touch) {
                               const Names names(touch.key);
                               return Command{names.slot, Format({"PEXPIRE", names.entry, expiry})};
                             },
                             [](const EvictItem& evict) {
                               const Names names(evict.key);
                               return Command{names.slot, Format({"EVAL", scripts::kEvict, "1", names.entry, evict.head})};
                             },
                             [](const ReleaseItem& release) {
                               const Names names(release.key);
                               return Command{names.slot, Format({"EVAL", scripts::kRelease, "1", names.lease, release.token, names.channel})};
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
