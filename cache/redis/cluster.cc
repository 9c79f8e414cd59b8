// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/redis/replies.h"
#include "cache/try.h"

namespace kiln::cache::redis {
namespace {

constexpr int kMostRedirections = 3;
constexpr std::chrono::seconds kUnsettled{30};

std::unexpected<Error> NoServer(unsigned slot) { return Fail(ErrorCode::kUnreachable, fmt::format("no server for slot {} is in use", slot)); }

// What a server's error means to who asked.
ErrorCode CodeOf(const Reply& error) {
  for (const std::string_view full : {"OOM", "MISCONF", "NOREPLICAS"}) {
    if (error.IsError(full)) return ErrorCode::kFull;
  }
  for (const std::string_view refused : {"NOAUTH", "WRONGPASS", "NOPERM"}) {
    if (error.IsError(refused)) return ErrorCode::kRefused;
  }
  for (const std::string_view now : {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "MOVED", "ASK"}) {
    if (error.IsError(now)) return ErrorCode::kUnreachable;
  }
  return ErrorCode::kInvalid;
}

}  // namespace

Cluster::MapPtr Cluster::map() const {
  MutexLock lock(mutex_);
  return map_;
}

const Cluster::Shard* Cluster::ShardOf(const Map& map, unsigned slot) const {
  const std::size_t shard = map.shard_of[slot % kSlots];
  return shard < map.shards.size() ? &map.shards[shard] : nullptr;
}

bool Cluster::InUse(unsigned slot) const {
  const MapPtr map = this->map();
  const Shard* const shard = map ? ShardOf(*map, slot) : nullptr;
  return shard != nullptr && shard->master->usable();
}

bool Cluster::SameServer(unsigned slot, unsigned other) const {
  const MapPtr map = this->map();
  return !map || ShardOf(*map, slot) == ShardOf(*map, other);
}

bool Cluster::Unsettled() const {
  const SteadyTime::rep changed = changed_;
  return changed != 0 && dialer_.clock.SteadyNow() - SteadyTime(SteadyTime::duration(changed)) < kUnsettled;
}

Cluster::NodePtr Cluster::NodeAt(const HostPort& at, bool usable) {
  MutexLock lock(mutex_);
  NodePtr& node = nodes_[at];
  if (!node) node = std::make_shared<Node>(at, dialer_, usable);
  return node;
}

Cluster::NodePtr Cluster::NodeSentTo(const HostPort& at) {
  {
    MutexLock lock(mutex_);
    if (!nodes_.contains(at) && nodes_.size() >= 2 * kMostServers) return nullptr;
  }
  NodePtr node = NodeAt(at);
  return node->usable() ? node : nullptr;
}

std::vector<Cluster::NodePtr> Cluster::Nodes() const {
  std::vector<NodePtr> all;
  MutexLock lock(mutex_);
  for (const auto& [at, node] : nodes_) all.push_back(node);
  return all;
}

// Who waited in vain for one server would wait in vain for all where the whole store stands still. So those that were not heard of since are
// left alone, too, until the keeper has asked them, which takes those that live a moment.
void Cluster::NoteFailure(Node& node, SteadyTime since) {
  if (!node.LeaveAlone()) return;
  NoteChange();
  const bool waited = dialer_.clock.SteadyNow() - since >= options_.timeout / 4;
  for (const NodePtr& other : waited ? Nodes() : std::vector<NodePtr>()) other->Doubt(since);
  CountUsable();
  Wake(true);
}

Cluster::Answer Cluster::AskNode(Node& node, std::string_view bytes, bool asking, SteadyTime deadline, bool in_a_hurry) {
  const SteadyTime began = dialer_.clock.SteadyNow();
  const auto ask = [&]() -> Answer {
    KILN_ASSIGN_OR_RETURN(auto connection, node.Take(deadline));
    if (asking) {
      KILN_RETURN_IF_ERROR(connection->Send(Format({"ASKING"}) + std::string(bytes), deadline));
      KILN_RETURN_IF_ERROR(connection->Receive(deadline));
    } else {
      KILN_RETURN_IF_ERROR(connection->Send(bytes, deadline));
    }
    KILN_ASSIGN_OR_RETURN(Reply reply, connection->Receive(deadline));
    node.GiveBack(std::move(connection));
    return reply;
  };
  Answer answer = ask();
  if (answer) return answer;
  answer.error().message = fmt::format("{}: {}", node.at().ToText(), answer.error().message);
  if (!in_a_hurry || dialer_.clock.SteadyNow() < deadline) NoteFailure(node, began);
  return answer;
}

Cluster::Answer Cluster::Follow(const Node& from, Reply redirection, std::string_view bytes, SteadyTime deadline, bool in_a_hurry) {
  NodePtr at;
  for (int i = 0; i < kMostRedirections; ++i) {
    const auto target = RedirectionIn(redirection, at ? at->at() : from.at());
    if (!target) return Fail(ErrorCode::kUnreachable, fmt::format("a server says \"{}\"", redirection.text));
    if (!target->asking) Wake(true);
    at = NodeSentTo(target->to);
    if (!at) return Fail(ErrorCode::kUnreachable, fmt::format("a server sends us to {}, which is left alone", target->to.ToText()));
    Answer answer = AskNode(*at, bytes, target->asking, deadline, in_a_hurry);
    if (!answer || !IsRedirection(*answer)) return Judge(*at, std::move(answer));
    redirection = std::move(*answer);
  }
  return Fail(ErrorCode::kUnreachable, fmt::format("the servers send us in circles: \"{}\"", redirection.text));
}

Cluster::Answer Cluster::Judge(Node& node, Answer answer) {
  if (!answer || !answer->is_error()) return answer;
  if (answer->IsError("READONLY") || answer->IsError("CLUSTERDOWN")) Wake(true);
  return Fail(CodeOf(*answer), fmt::format("{}: {}", node.at().ToText(), answer->text));
}

Cluster::Answer Cluster::JudgeOrFollow(Node& node, Answer answer, std::string_view bytes, SteadyTime deadline, bool in_a_hurry) {
  if (answer && IsRedirection(*answer)) return Follow(node, std::move(*answer), bytes, deadline, in_a_hurry);
  return Judge(node, std::move(answer));
}

Cluster::Answer Cluster::Ask(const Command& command, SteadyTime deadline) {
  const MapPtr map = this->map();
  const Shard* const shard = map ? ShardOf(*map, command.slot) : nullptr;
  std::vector<NodePtr> candidates;
  if (shard != nullptr && shard->master->usable()) candidates.push_back(shard->master);
  if (shard != nullptr && command.reads)
    std::ranges::copy_if(shard->replicas, std::back_inserter(candidates), [](const auto& n) { return n->usable(); });
  // Whoever has waited before leaves a server less time than it may take: it is not blamed, and there is none for a replica.
  const bool in_a_hurry = deadline - dialer_.clock.SteadyNow() < options_.timeout * 3 / 4;
  Answer answer = NoServer(command.slot);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (i > 0 && !candidates[i]->usable()) continue;
    const SteadyTime now = dialer_.clock.SteadyNow();
    if (i > 0 && now >= deadline) break;
    const bool is_last = in_a_hurry || i + 1 == candidates.size();
    const SteadyTime until = is_last ? deadline : now + (deadline - now) / 2;  // time is left for a replica
    answer = JudgeOrFollow(*candidates[i], AskNode(*candidates[i], command.bytes, false, until, in_a_hurry), command.bytes, until, in_a_hurry);
    if (answer || answer.error().code != ErrorCode::kUnreachable) break;
  }
  return answer;
}

Cluster::Answer Cluster::Ask(const Command& command, Waited& waited) {
  const SteadyTime began = dialer_.clock.SteadyNow();
  Answer answer = Ask(command, began + std::max(SteadyTime::duration(0), options_.timeout - waited.time));
  waited.time += dialer_.clock.SteadyNow() - began;
  return answer;
}

void Cluster::AskTogether(Node& node, std::span<const Command> commands, std::span<const std::size_t> which, SteadyTime deadline,
                          std::vector<Answer>& answers) {
  const SteadyTime began = dialer_.clock.SteadyNow();
  std::size_t answered = 0;
  const auto ask = [&]() -> std::expected<void, Error> {
    KILN_ASSIGN_OR_RETURN(auto connection, node.Take(deadline));
    std::string bytes;
    for (const std::size_t i : which) bytes += commands[i].bytes;
    KILN_RETURN_IF_ERROR(connection->Send(bytes, deadline));
    for (; answered < which.size(); ++answered) {
      KILN_ASSIGN_OR_RETURN(answers[which[answered]], connection->Receive(deadline));
    }
    node.GiveBack(std::move(connection));
    return {};
  };
  if (const auto asked = ask(); !asked) {
    const Error error{asked.error().code, fmt::format("{}: {}", node.at().ToText(), asked.error().message)};
    for (; answered < which.size(); ++answered) answers[which[answered]] = std::unexpected(error);
    NoteFailure(node, began);
  }
  for (const std::size_t i : which) answers[i] = JudgeOrFollow(node, std::move(answers[i]), commands[i].bytes, deadline, false);
}

std::vector<Cluster::Answer> Cluster::AskAll(std::span<const Command> commands, std::chrono::milliseconds patience) {
  std::vector<Answer> answers;
  std::map<Node*, std::vector<std::size_t>> by_node;
  const MapPtr map = this->map();
  for (std::size_t i = 0; i < commands.size(); ++i) {
    answers.push_back(NoServer(commands[i].slot));
    const Shard* const shard = map ? ShardOf(*map, commands[i].slot) : nullptr;
    if (shard != nullptr && shard->master->usable()) by_node[shard->master.get()].push_back(i);
  }
  for (const auto& [node, which] : by_node) AskTogether(*node, commands, which, dialer_.clock.SteadyNow() + patience, answers);
  return answers;
}

std::expected<std::unique_ptr<Connection>, Error> Cluster::Dial(SteadyTime deadline) {
  for (const NodePtr& node : Nodes()) {
    if (!node->usable()) continue;
    const SteadyTime began = dialer_.clock.SteadyNow();
    auto connection = node->Take(deadline);
    if (connection) return connection;
    NoteFailure(*node, began);
  }
  return Fail(ErrorCode::kUnreachable, "no server is in use");
}

}  // namespace kiln::cache::redis
