// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/redis_leases.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <utility>

#include "cache/redis/homes.h"
#include "cache/redis/replies.h"
#include "cache/redis/scripts.h"

namespace kiln::cache::redis {
namespace {

constexpr std::chrono::milliseconds kLease{2'500};  // an owner that dies is replaced within 3 s
constexpr std::chrono::milliseconds kRenewal{1'000};
constexpr std::chrono::milliseconds kAfterwards{20};  // a server's clock is none of ours
constexpr std::chrono::milliseconds kBetweenDials{250};

std::string ProcessName() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

RedisLeases::RedisLeases(std::shared_ptr<Cluster> cluster, std::shared_ptr<LeaseTable> table, std::shared_ptr<RedisTier> tier)
    : cluster_(std::move(cluster)),
      table_(std::move(table)),
      tier_(std::move(tier)),
      process_(ProcessName()),
      alarm_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      listener_([this] { Listen(); }) {}

RedisLeases::~RedisLeases() {
  Close();
  stopping_ = true;
  Alarm();
  listener_.join();
  ::close(alarm_);
}

void RedisLeases::Alarm() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(alarm_, &one, sizeof one);  // where it is full it has been raised
}

Leases::Taken RedisLeases::Take(const Digest& key, bool even_if_there, Waited& waited) {
  if (!cluster_->available() || waited.time >= cluster_->timeout()) {
    ++none_;
    return {};
  }
  const unsigned home = HomeOf(key, *cluster_);
  std::optional<Taken> elsewhere = home == 0 && cluster_->Unsettled() ? TakenElsewhere(key, even_if_there, waited) : std::nullopt;
  Taken taken = elsewhere ? std::move(*elsewhere) : TakeAt(key, home, even_if_there, waited);
  // A server that turns out to be gone is in use no more.
  const unsigned next = taken.end == End::kNone ? HomeOf(key, *cluster_) : home;
  if (next != home && waited.time < cluster_->timeout()) taken = TakeAt(key, next, even_if_there, waited);
  if (even_if_there && taken.end == End::kThere) taken.end = End::kNone;  // it was not asked whether
  if (taken.end == End::kMine) ++taken_;
  if (taken.end == End::kNone) ++none_;
  return taken;
}

Leases::Taken RedisLeases::TakeAt(const Digest& key, unsigned home, bool even_if_there, Waited& waited) {
  const Names names(key, home);
  std::string token = fmt::format("{}:{}", process_, ++last_token_);
  const Command command{names.slot, Format({"EVAL", scripts::kTake, "3", names.entry, names.lease, names.fence, token, std::to_string(kLease.count()),
                                            even_if_there ? "1" : "0"})};
  return Judge(key, home, std::move(token), cluster_->Ask(command, waited));
}

// Whoever began while the key's server was gone, or has not heard that it is back, has its lease and its result in the other home.
std::optional<Leases::Taken> RedisLeases::TakenElsewhere(const Digest& key, bool even_if_there, Waited& waited) {
  const unsigned other = OtherHome(key, *cluster_);
  if (other == 0) return std::nullopt;
  const Names names(key, other);
  const auto said = cluster_->Ask({names.slot, Format({"EVAL", scripts::kLook, "2", names.entry, names.lease})}, waited);
  const LeaseAnswer found = said ? LeaseIn(*said, kLease) : LeaseAnswer{};
  if (found.end == End::kOthers) return Taken{.end = End::kOthers, .token = {}, .left = found.left};
  if (found.end == End::kThere && !even_if_there) return Taken{.end = End::kThere};
  return std::nullopt;
}

Leases::Taken RedisLeases::Judge(const Digest& key, unsigned home, std::string token, const Cluster::Answer& answer) {
  if (!answer) return {};
  const LeaseAnswer said = LeaseIn(*answer, kLease);
  if (said.end != End::kMine) return {.end = said.end, .token = {}, .left = said.left};
  table_->Add(key, {token, said.fence, home});
  return {.end = End::kMine, .token = std::move(token)};
}

void RedisLeases::Release(const Digest& key, const std::string& token) {
  if (auto lease = table_->Remove(key, token)) tier_->Release(key, std::move(*lease));
}

void RedisLeases::Await(std::uint64_t wait, const Digest& key, std::chrono::milliseconds left, SteadyTime until,
                        std::move_only_function<void()> woken) {
  ++awaited_;
  {
    MutexLock lock(mutex_);
    // Once closed it is due at once.
    const SteadyTime expiry = std::min(cluster_->clock().SteadyNow() + left + kAfterwards, until);
    const SteadyTime due = closed_ ? SteadyTime() : expiry;
    waits_.emplace(wait, Wait{key, Names(key).channel, HomeOf(key, *cluster_), expiry, due, until, std::move(woken)});
  }
  Alarm();
}

bool RedisLeases::Leave(std::uint64_t wait) {
  std::optional<Wait> left;
  MutexLock lock(mutex_);
  const auto at = waits_.find(wait);
  if (at == waits_.end()) return false;
  left = std::move(at->second);  // destroyed under no lock
  waits_.erase(at);
  lock.Unlock();
  return true;
}

void RedisLeases::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  Alarm();
}

RedisLeases::Woken RedisLeases::TakeOut(const std::function<bool(const Wait&)>& which) {
  Woken woken;
  MutexLock lock(mutex_);
  for (auto at = waits_.begin(); at != waits_.end();) {
    if (which(at->second)) {
      woken.push_back(std::move(at->second.woken));
      at = waits_.erase(at);
    } else {
      ++at;
    }
  }
  return woken;
}

void RedisLeases::Listen() {
  SteadyTime renewal = cluster_->clock().SteadyNow() + kRenewal;
  while (!stopping_) {
    Subscribe();
    PollUntil(NextDue(renewal));
    ReadMessages();
    LookAtDue();
    if (cluster_->clock().SteadyNow() < renewal) continue;
    renewal = cluster_->clock().SteadyNow() + kRenewal;
    Renew();
  }
  for (auto& woken : TakeOut([](const Wait&) { return true; })) woken();
}

SteadyTime RedisLeases::NextDue(SteadyTime renewal) const {
  SteadyTime next = renewal;
  MutexLock lock(mutex_);
  for (const auto& [number, wait] : waits_) next = std::min(next, closed_ ? SteadyTime() : wait.due);
  if (!waits_.empty() && !subscription_) next = std::min(next, next_dial_);
  return next;
}

void RedisLeases::PollUntil(SteadyTime until) {
  const auto left = std::max(SteadyTime::duration(0), until - cluster_->clock().SteadyNow());
  std::array<pollfd, 2> watched = {pollfd{alarm_, POLLIN, 0}, pollfd{subscription_ ? subscription_->fd() : -1, POLLIN, 0}};
  ::poll(watched.data(), watched.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  std::uint64_t raised = 0;
  [[maybe_unused]] const ssize_t ignored = ::read(alarm_, &raised, sizeof raised);  // nothing where it was not raised
}

void RedisLeases::Renew() {
  const auto held = table_->All();
  std::vector<Command> commands;
  for (const auto& [key, lease] : held) {
    const Names names(key, lease.home);
    commands.push_back({names.slot, Format({"EVAL", scripts::kRenew, "1", names.lease, lease.token, std::to_string(kLease.count())})});
  }
  if (!commands.empty()) cluster_->AskAll(commands, cluster_->timeout());  // one that is lost may be another's by now: its fence decides
  if (!subscription_) return;
  if (asked_) return Unsubscribed();
  asked_ = true;
  if (!subscription_->Send(Format({"PING"}), cluster_->clock().SteadyNow() + cluster_->timeout())) Unsubscribed();
}

// The channels of those who wait, and no others.
void RedisLeases::Subscribe() {
  std::set<std::string> wanted;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, wait] : waits_) wanted.insert(wait.channel);
  }
  if (wanted == subscribed_) return;
  if (!subscription_) {
    const SteadyTime now = cluster_->clock().SteadyNow();
    if (wanted.empty() || now < next_dial_) return;
    next_dial_ = now + kBetweenDials;
    auto connection = cluster_->Dial(now + cluster_->timeout());
    if (!connection) return;
    subscription_ = std::move(*connection);
    asked_ = false;
  }
  if (!SendSubscriptions(wanted)) Unsubscribed();
}

bool RedisLeases::SendSubscriptions(const std::set<std::string>& wanted) {
  std::string bytes;
  for (const std::string& channel : wanted) {
    if (!subscribed_.contains(channel)) bytes += Format({"SUBSCRIBE", channel});
  }
  for (const std::string& channel : subscribed_) {
    if (!wanted.contains(channel)) bytes += Format({"UNSUBSCRIBE", channel});
  }
  subscribed_ = wanted;
  return subscription_->Send(bytes, cluster_->clock().SteadyNow() + cluster_->timeout()).has_value();
}

void RedisLeases::ReadMessages() {
  while (subscription_) {
    auto message = subscription_->ReceiveIfThere();
    if (!message) return Unsubscribed();
    if (!*message) return;
    Heed(**message);
  }
}

void RedisLeases::Heed(const Reply& message) {
  asked_ = false;
  if (message.is_error()) return Unsubscribed();  // the user may not subscribe: it is looked when a lease must have expired
  if (!message.is_array() || message.items.size() < 3) return;
  const std::string& kind = message.items[0].text;
  const std::string& channel = message.items[1].text;
  if (kind == "message") {
    for (auto& woken : TakeOut([&](const Wait& wait) { return wait.channel == channel; })) woken();
  }
  if (kind != "subscribe") return;
  MutexLock lock(mutex_);  // what was told before is not told again
  for (auto& [number, wait] : waits_) {
    if (wait.channel == channel) wait.due = SteadyTime();
  }
}

// The store may be gone. Who still waits looks for itself, and waits again if it is there.
void RedisLeases::Unsubscribed() {
  subscription_.reset();
  subscribed_.clear();
  asked_ = false;
  MutexLock lock(mutex_);
  for (auto& [number, wait] : waits_) wait.due = SteadyTime();
}

// How long a lease is there still, at each of the places where it may be.
std::vector<Command> RedisLeases::LooksFor(const Wait& wait) const {
  const auto look = [](const Names& names) { return Command{names.slot, Format({"PTTL", names.lease})}; };
  std::vector<Command> looks = {look(Names(wait.key, wait.home))};
  const unsigned other = wait.home == 0 && cluster_->Unsettled() ? OtherHome(wait.key, *cluster_) : 0;
  if (other != 0) looks.push_back(look(Names(wait.key, other)));
  return looks;
}

void RedisLeases::LookAtDue() {
  std::vector<std::pair<std::uint64_t, std::size_t>> due;  // and how many commands each has
  std::vector<Command> commands;
  bool closed = false;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    const SteadyTime now = cluster_->clock().SteadyNow();
    for (const auto& [number, wait] : waits_) {
      if (!closed && wait.due > now) continue;
      std::vector<Command> looks = closed ? std::vector<Command>() : LooksFor(wait);
      due.emplace_back(number, looks.size());
      std::ranges::move(looks, std::back_inserter(commands));
    }
  }
  if (due.empty()) return;
  const auto answers = cluster_->AskAll(commands, cluster_->timeout());
  Woken woken;
  {
    MutexLock lock(mutex_);
    std::span<const Cluster::Answer> rest = answers;
    for (const auto& [number, count] : due) {
      const auto said = rest.first(count);
      rest = rest.subspan(count);
      if (const auto at = waits_.find(number); at != waits_.end() && !IsToWait(at->second, said)) {
        woken.push_back(std::move(at->second.woken));
        waits_.erase(at);
      }
    }
  }
  for (auto& one : woken) one();
}

// By the answers to what LooksFor asks; and until when. No answers: everybody is woken.
bool RedisLeases::IsToWait(Wait& wait, std::span<const Cluster::Answer> said) const {
  std::optional<std::chrono::milliseconds> left;
  for (const Cluster::Answer& answer : said) {
    if (answer) left = std::max(left, LeaseLeftIn(*answer, kLease));
  }
  const SteadyTime now = cluster_->clock().SteadyNow();
  if (left && now < wait.until) {
    wait.due = wait.expiry = std::min(now + *left + kAfterwards, wait.until);
    return true;
  }
  // Where its server is gone, its owner is not, as far as is known: it puts elsewhere, and tells.
  const bool gone = !said.empty() && !said.front() && HomeOf(wait.key, *cluster_) != wait.home;
  if (!gone || now >= wait.expiry) return false;
  wait.due = wait.expiry;
  return true;
}

}  // namespace kiln::cache::redis
