// SPDX-License-Identifier: Apache-2.0
//
// Writes to the cluster store, behind the replies that they belong to.
//
// Threads. One of our own, the writer: it takes what waits, in order, compresses it, and sends it to the servers in pipelines. Any thread adds
// to the queue and returns at once; where the queue is full, the write is lost, which costs a later miss. So does whatever a server does not
// take, and what waits when the process ends and the store does not answer.
//
// What cannot be put since the server of its slot is gone is put into the key's other home (homes.h). The writer keeps it, and puts it where
// it belongs with the next writes after that server, or its replica, is back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "cache/outside/counters.h"
#include "cache/outside/waiting_line.h"
#include "cache/redis/cluster.h"
#include "cache/redis/lease_table.h"
#include "cache/tier.h"

namespace kiln::cache::redis {

class WriteQueue {
 public:
  struct Options {
    std::chrono::milliseconds expiry{};                 // of an entry that nobody uses
    std::uint64_t max_bytes = std::uint64_t{64} << 20;  // that wait; one that is larger waits alone
    std::chrono::milliseconds patience{1'000};          // with one server and one pipeline
  };
  WriteQueue(Options options, Cluster& cluster, const LeaseTable& leases);
  // What waits is written as long as the store takes it.
  ~WriteQueue();

  // Under the lease that this process holds on the key, which then ends, or else only where there is nothing yet.
  void Put(Entry entry, PutDone done);
  // It was used: it expires that much later.
  void Touch(const Digest& key, unsigned home);
  // Removes it if it is still the one with that head; an empty head: whatever is there.
  void Evict(const Digest& key, unsigned home, std::string head);
  // Ends a lease of this process, after the puts that were given before.
  void Release(const Digest& key, HeldLease lease);

  const WriteCounters& counters() const { return counters_; }

 private:
  struct PutItem {
    Entry entry;
    HeldLease lease;  // without a token: none
    PutDone done;
  };
  struct TouchItem {
    Digest key;
    unsigned home;
  };
  struct EvictItem {
    Digest key;
    unsigned home;
    std::string head;
  };
  struct ReleaseItem {
    Digest key;
    HeldLease lease;
  };
  using Item = std::variant<PutItem, TouchItem, EvictItem, ReleaseItem>;

  static std::uint64_t WeightOf(const PutItem& put);
  static std::uint64_t Weight(const Item& item);
  bool Add(Item& item) { return line_.Add(item, Weight(item)); }
  void Run();
  void Write(std::vector<Item> batch);
  void WriteTogether(std::span<Item> items);
  void PutElsewhere(std::span<Item> items, std::vector<Cluster::Answer>& answers);
  void KeepForHome(PutItem put);
  void BringHome();
  Command CommandFor(const PutItem& put) const;
  Command CommandFor(const Item& item) const;
  void Note(Item& item, const Cluster::Answer& answer);

  const Options options_;
  Cluster& cluster_;
  const LeaseTable& leases_;
  WriteCounters counters_;
  WaitingLine<Item> line_;
  std::deque<PutItem> for_home_;  // the writer's: what is elsewhere, since the server of its slot was gone
  std::uint64_t for_home_bytes_ = 0;
  std::thread writer_;  // last: it uses the others
};

}  // namespace kiln::cache::redis
