// SPDX-License-Identifier: Apache-2.0
//
// The servers of a Redis Cluster, or one server by itself, as one: each command goes to the server that holds its slot.
//
// Threads. Any thread asks, waits no longer than its deadline, and uses a connection for itself meanwhile. One thread of our own, the keeper,
// learns which server holds which slot, and probes those that are left alone; it alone resolves names, and waits longer than a request may.
//
// A command may be carried out although its asker hears of a failure. So commands must be such that it does no harm to give them twice.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/clock.h"
#include "cache/error.h"
#include "cache/mutex.h"
#include "cache/redis/address.h"
#include "cache/redis/connection.h"
#include "cache/redis/node.h"
#include "cache/redis/protocol.h"
#include "cache/redis/replies.h"
#include "cache/tier.h"

namespace kiln::cache::redis {

struct Command {
  unsigned slot = 0;
  std::string bytes;   // as Format makes them; exactly one
  bool reads = false;  // a replica may answer, which may have missed the newest
};

class Cluster {
 public:
  struct Options {
    std::vector<HostPort> servers;
    std::shared_ptr<const Tls> tls;
    std::function<std::expected<std::optional<Credentials>, std::string>()> credentials;
    std::chrono::milliseconds timeout{50};  // within which a server that is in use answers
    std::size_t max_reply = std::size_t{64} << 20;
    // Told, by the keeper, of servers that are left alone and of those that answer again, and why.
    std::function<void(bool good, std::string_view what)> on_event;
  };
  using Answer = std::expected<Reply, Error>;

  Cluster(Options options, const Clock& clock);
  ~Cluster();

  // Whether at least one server is in use.
  bool available() const { return usable_ > 0; }

  // Whether the server of that slot is.
  bool InUse(unsigned slot) const;
  bool SameServer(unsigned slot, unsigned other) const;

  // Whether a server has gone or come back of late, so that not all who use the store may know of it.
  bool Unsettled() const;

  // Waits until one is, no longer than that.
  bool AwaitAvailable(std::chrono::milliseconds patience);

  // kUnreachable for a server that is left alone, at once. An answer that is an error of the server's comes as an error of ours: kFull,
  // kRefused, kUnreachable, else kInvalid.
  Answer Ask(const Command& command, SteadyTime deadline);
  // Within what is left of the timeout.
  Answer Ask(const Command& command, Waited& waited);

  // Each command's answer, in their order. Those for one server go to it together; the deadline is for each server by itself.
  std::vector<Answer> AskAll(std::span<const Command> commands, std::chrono::milliseconds patience);

  // A connection to any of the servers, for whoever listens.
  std::expected<std::unique_ptr<Connection>, Error> Dial(SteadyTime deadline);

  // How many servers are known.
  std::size_t servers() const { return Nodes().size(); }

  const Clock& clock() const { return dialer_.clock; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

 private:
  using NodePtr = std::shared_ptr<Node>;
  struct Shard {
    NodePtr master;
    std::vector<NodePtr> replicas;
  };
  struct Map {
    std::array<std::uint16_t, kSlots> shard_of{};  // beyond the shards: nobody's
    std::vector<Shard> shards;
  };
  using MapPtr = std::shared_ptr<const Map>;

  MapPtr map() const;
  const Shard* ShardOf(const Map& map, unsigned slot) const;
  NodePtr NodeAt(const HostPort& at, bool usable = true);
  // Null where it is left alone, or servers have named too many others.
  NodePtr NodeSentTo(const HostPort& at);
  std::vector<NodePtr> Nodes() const;

  // `in_a_hurry`: a server that does not answer until then may be well.
  Answer AskNode(Node& node, std::string_view bytes, bool asking, SteadyTime deadline, bool in_a_hurry);
  Answer Follow(const Node& from, Reply redirection, std::string_view bytes, SteadyTime deadline, bool in_a_hurry);
  Answer Judge(Node& node, Answer answer);
  Answer JudgeOrFollow(Node& node, Answer answer, std::string_view bytes, SteadyTime deadline, bool in_a_hurry);
  void AskTogether(Node& node, std::span<const Command> commands, std::span<const std::size_t> which, SteadyTime deadline,
                   std::vector<Answer>& answers);
  void NoteFailure(Node& node, SteadyTime since);

  void Wake(bool refresh);
  void CountUsable();
  void NoteChange() { changed_ = dialer_.clock.SteadyNow().time_since_epoch().count(); }

  // The keeper's (cluster_keeper.cc).
  void Keep();
  void ProbeDue();
  void Tell(const HostPort& at, const std::string& trouble);
  void Refresh();
  bool RefreshDue(SteadyTime now) const;
  std::expected<Map, Error> Learn(Node& node);
  std::expected<Map, Error> ReadSlots(const Reply& reply, const Node& from);
  Shard ShardWith(const Slots& slots);
  void Adopt(Map map);
  SteadyTime NextDue() const;

  const Options options_;
  const Dialer dialer_;
  mutable Mutex mutex_;
  CondVar wake_, became_available_;
  MapPtr map_ KILN_GUARDED_BY(mutex_);
  std::map<HostPort, NodePtr> nodes_ KILN_GUARDED_BY(mutex_);
  bool refresh_ KILN_GUARDED_BY(mutex_) = true;
  bool woken_ KILN_GUARDED_BY(mutex_) = false;
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  std::atomic<std::size_t> usable_ = 0;       // servers; none before the map is there
  std::atomic<SteadyTime::rep> changed_ = 0;  // when a server was left alone, came back, or took over; 0: never
  SteadyTime refreshed_{};                    // of the keeper, as is the next
  std::map<HostPort, std::string> told_;      // why they are left alone
  std::thread keeper_;                        // last: it uses the others
};

}  // namespace kiln::cache::redis
