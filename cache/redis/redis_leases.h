// SPDX-License-Identifier: Apache-2.0
//
// Leases in a Redis server or cluster: a name that expires, set where it is not there, with a fencing number that grows.
//
// Threads. One of our own, the listener. It renews what this process holds, each second, so that an owner that dies is replaced when its lease
// has expired. It listens to the channels of the keys that somebody waits for. Messages may be lost, so it also looks when a lease must have
// expired, and once after each subscription. It wakes those who wait, under no lock.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cache/leases.h"
#include "cache/mutex.h"
#include "cache/redis/cluster.h"
#include "cache/redis/lease_table.h"
#include "cache/redis/redis_tier.h"

namespace kiln::cache::redis {

class RedisLeases final : public Leases {
 public:
  RedisLeases(std::shared_ptr<Cluster> cluster, std::shared_ptr<LeaseTable> table, std::shared_ptr<RedisTier> tier);
  ~RedisLeases() override;

  Taken Take(const Digest& key, bool even_if_there, Waited& waited) override;
  void Release(const Digest& key, const std::string& token) override;
  std::uint64_t NewWait() override { return ++last_wait_; }
  void Await(std::uint64_t wait, const Digest& key, std::chrono::milliseconds left, SteadyTime until, std::move_only_function<void()> woken) override;
  bool Leave(std::uint64_t wait) override;
  void Close() override;
  LeaseStats Stats() const override { return {taken_, awaited_, none_}; }

 private:
  struct Wait {
    Digest key;
    std::string channel;
    unsigned home;      // where the lease is (homes.h)
    SteadyTime expiry;  // of what is known of the lease
    SteadyTime due;     // when it is looked for
    SteadyTime until;   // woken then, whatever is with the lease
    std::move_only_function<void()> woken;
  };
  using Woken = std::vector<std::move_only_function<void()>>;

  Taken TakeAt(const Digest& key, unsigned home, bool even_if_there, Waited& waited);
  std::optional<Taken> TakenElsewhere(const Digest& key, bool even_if_there, Waited& waited);
  Taken Judge(const Digest& key, unsigned home, std::string token, const Cluster::Answer& answer);
  void Alarm();

  // The listener's.
  void Listen();
  void PollUntil(SteadyTime until);
  SteadyTime NextDue(SteadyTime renewal) const;
  void Renew();
  void Subscribe();
  bool SendSubscriptions(const std::set<std::string>& wanted);
  void ReadMessages();
  void Heed(const Reply& message);
  std::vector<Command> LooksFor(const Wait& wait) const;
  bool IsToWait(Wait& wait, std::span<const Cluster::Answer> said) const;
  void LookAtDue();
  void Unsubscribed();
  Woken TakeOut(const std::function<bool(const Wait&)>& which) KILN_EXCLUDES(mutex_);

  const std::shared_ptr<Cluster> cluster_;
  const std::shared_ptr<LeaseTable> table_;
  const std::shared_ptr<RedisTier> tier_;
  const std::string process_;  // begins every token of it
  const int alarm_;            // an eventfd
  std::atomic<std::uint64_t> last_wait_ = 0, last_token_ = 0, taken_ = 0, awaited_ = 0, none_ = 0;
  mutable Mutex mutex_;
  std::map<std::uint64_t, Wait> waits_ KILN_GUARDED_BY(mutex_);
  bool closed_ KILN_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<Connection> subscription_;  // of the listener, as are the next
  std::set<std::string> subscribed_;          // its channels
  bool asked_ = false;                        // whether it is still there, and it has not answered
  SteadyTime next_dial_{};
  std::thread listener_;  // last: it uses the others
};

}  // namespace kiln::cache::redis
