// SPDX-License-Identifier: Apache-2.0
//
// Cluster's own thread: it learns which server holds which slot, and probes those that are left alone.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/redis/cluster.h"
#include "cache/try.h"

namespace kiln::cache::redis {
namespace {

constexpr std::chrono::milliseconds kBetweenRefreshes{100};  // however often a server says that another one holds a slot
constexpr std::chrono::milliseconds kWhileOneIsDown{500};    // its replica may take over at any time
constexpr std::chrono::seconds kOtherwise{30};
constexpr int kMorePatience = 4;          // than a request has
constexpr std::size_t kMostFailures = 8;  // some seconds

}  // namespace

Cluster::Cluster(Options options, const Clock& clock)
    : options_(std::move(options)), dialer_{clock, options_.tls, options_.credentials, options_.max_reply} {
  for (const HostPort& at : options_.servers) NodeAt(at, false);
  keeper_ = std::thread([this] { Keep(); });
}

Cluster::~Cluster() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  keeper_.join();
}

bool Cluster::AwaitAvailable(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  return became_available_.WaitFor(mutex_, patience, [this] { return available(); });
}

void Cluster::Wake(bool refresh) {
  {
    MutexLock lock(mutex_);
    refresh_ = refresh_ || refresh;
    woken_ = true;
  }
  wake_.NotifyOne();
}

void Cluster::CountUsable() {
  const std::vector<NodePtr> nodes = Nodes();
  const auto usable = static_cast<std::size_t>(std::ranges::count_if(nodes, [](const NodePtr& node) { return node->usable(); }));
  MutexLock lock(mutex_);
  usable_ = map_ ? usable : 0;
  if (usable_ > 0) became_available_.NotifyAll();
}

void Cluster::Keep() {
  for (;;) {
    ProbeDue();
    if (RefreshDue(dialer_.clock.SteadyNow())) {
      Refresh();
      ProbeDue();
    }
    CountUsable();
    const auto patience = NextDue() - dialer_.clock.SteadyNow();
    MutexLock lock(mutex_);
    if (!stopping_ && patience > SteadyTime::duration(0)) {
      wake_.WaitFor(mutex_, std::chrono::ceil<std::chrono::microseconds>(patience), [&]() KILN_REQUIRES(mutex_) { return stopping_ || woken_; });
    }
    if (stopping_) return;
    woken_ = false;
  }
}

// Those that have failed least come first: they answer, most likely, and the others take time.
void Cluster::ProbeDue() {
  std::vector<NodePtr> due = Nodes();
  const SteadyTime now = dialer_.clock.SteadyNow();
  std::erase_if(due, [&](const NodePtr& node) { return node->probe_due().value_or(SteadyTime::max()) > now; });
  std::ranges::stable_sort(due, {}, [](const NodePtr& node) { return node->failures(); });
  for (const NodePtr& node : due) {
    const auto probed = node->Probe(options_.timeout);
    CountUsable();
    if (probed && told_.contains(node->at())) NoteChange();
    Tell(node->at(), probed ? std::string() : probed.error().message);
    MutexLock lock(mutex_);
    if (stopping_) return;
  }
}

// Each trouble once; an empty one: it answers.
void Cluster::Tell(const HostPort& at, const std::string& trouble) {
  const auto told = told_.find(at);
  if (told == told_.end() ? trouble.empty() : told->second == trouble) return;
  if (trouble.empty()) told_.erase(at);
  else told_[at] = trouble;
  if (options_.on_event) options_.on_event(trouble.empty(), trouble.empty() ? at.ToText() + " answers again" : trouble);
}

bool Cluster::RefreshDue(SteadyTime now) const {
  MutexLock lock(mutex_);
  if (stopping_) return false;
  if (!map_) return true;
  if (refresh_) return now - refreshed_ >= kBetweenRefreshes;
  return now - refreshed_ >= (usable_ < nodes_.size() ? std::chrono::milliseconds(kWhileOneIsDown) : std::chrono::milliseconds(kOtherwise));
}

SteadyTime Cluster::NextDue() const {
  SteadyTime next = dialer_.clock.SteadyNow() + kOtherwise;
  for (const NodePtr& node : Nodes()) next = std::min(next, node->probe_due().value_or(next));
  MutexLock lock(mutex_);
  if (refresh_) next = std::min(next, refreshed_ + kBetweenRefreshes);
  return std::min(next, refreshed_ + (usable_ < nodes_.size() ? std::chrono::milliseconds(kWhileOneIsDown) : std::chrono::milliseconds(kOtherwise)));
}

void Cluster::Refresh() {
  for (const NodePtr& node : Nodes()) {
    if (!node->usable()) continue;
    const SteadyTime began = dialer_.clock.SteadyNow();
    auto map = Learn(*node);
    Tell(node->at(), map ? std::string() : fmt::format("{}: {}", node->at().ToText(), map.error().message));
    if (map) {
      Adopt(std::move(*map));
      break;
    }
    if (map.error().code == ErrorCode::kUnreachable) NoteFailure(*node, began);
  }
  refreshed_ = dialer_.clock.SteadyNow();
  MutexLock lock(mutex_);
  refresh_ = false;
}

std::expected<Cluster::Map, Error> Cluster::Learn(Node& node) {
  const SteadyTime deadline = dialer_.clock.SteadyNow() + options_.timeout * kMorePatience;
  KILN_ASSIGN_OR_RETURN(auto connection, node.Take(deadline));
  KILN_RETURN_IF_ERROR(connection->Send(Format({"CLUSTER", "SLOTS"}), deadline));
  KILN_ASSIGN_OR_RETURN(const Reply reply, connection->Receive(deadline));
  node.GiveBack(std::move(connection));
  return ReadSlots(reply, node);
}

Cluster::Shard Cluster::ShardWith(const Slots& slots) {
  Shard shard{NodeAt(slots.master), {}};
  for (const HostPort& replica : slots.replicas) shard.replicas.push_back(NodeAt(replica));
  return shard;
}

std::expected<Cluster::Map, Error> Cluster::ReadSlots(const Reply& reply, const Node& from) {
  Map map;
  if (reply.is_error()) {  // a server by itself: it holds everything
    if (!reply.text.contains("cluster support disabled")) return Fail(ErrorCode::kInvalid, reply.text);
    map.shards.push_back({NodeAt(from.at()), {}});
    return map;
  }
  map.shard_of.fill(UINT16_MAX);
  std::map<HostPort, std::uint16_t> known;
  for (const Slots& slots : SlotsIn(reply, from.at())) {
    const auto [at, is_new] = known.try_emplace(slots.master, static_cast<std::uint16_t>(map.shards.size()));
    if (is_new) map.shards.push_back(ShardWith(slots));
    std::fill(map.shard_of.begin() + slots.first, map.shard_of.begin() + slots.last + 1, at->second);
  }
  if (map.shards.empty()) return Fail(ErrorCode::kInvalid, "the cluster holds no slots yet");
  return map;
}

// Servers that are neither in the map nor named by the options are forgotten: those that are left alone, once they have not answered for long,
// since others may still send us there.
void Cluster::Adopt(Map map) {
  std::set<HostPort> kept(options_.servers.begin(), options_.servers.end());
  for (const Shard& shard : map.shards) {
    kept.insert(shard.master->at());
    for (const NodePtr& replica : shard.replicas) kept.insert(replica->at());
  }
  const auto same_master = [](const Shard& before, const Shard& now) { return before.master == now.master; };
  MutexLock lock(mutex_);
  if (map_ && !std::ranges::equal(map_->shards, map.shards, same_master)) NoteChange();
  map_ = std::make_shared<const Map>(std::move(map));
  std::erase_if(nodes_, [&](const auto& known) {
    const auto& [at, node] = known;
    return !kept.contains(at) && (node->usable() || node->failures() > kMostFailures);
  });
}

}  // namespace kiln::cache::redis
