// SPDX-License-Identifier: Apache-2.0
#include "server/door/message_room.h"

#include <algorithm>
#include <utility>

#include "server/queue/refusals.h"

namespace kiln::server {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{5};
constexpr int kLooksWithoutAnybody = 200;
constexpr std::size_t kOwnPart = 4;  // times what is left, as in TenantBudget

}  // namespace

MessageRoom::MessageRoom(Options options) : options_(std::move(options)) {
  if (options_.looks) thread_ = std::thread([this] { Run(); });
}

MessageRoom::~MessageRoom() {
  {
    cache::RecursiveMutexLock lock(mutex_);
    stopping_ = true;
  }
  entered_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void MessageRoom::Waiter::Wait(Refuse refuse) {
  if (room_ == nullptr) return;
  const std::uint64_t received = room_->options_.received(connection_);
  cache::RecursiveMutexLock lock(room_->mutex_);
  Connection& connection = room_->connections_[connection_];
  waits_ = true;
  refuse_ = std::move(refuse);
  began_ = received;
  at_ = connection.waiting.insert(connection.waiting.end(), this);
  ++room_->waiting_;
  if (std::exchange(room_->sleeps_, false)) room_->entered_.NotifyAll();
}

bool MessageRoom::Waiter::Came() {
  if (room_ == nullptr) return true;
  cache::RecursiveMutexLock lock(room_->mutex_);
  if (waits_) room_->Leave(*this);
  return !refused_;
}

void MessageRoom::Leave(Waiter& waiter) {
  Connection& connection = connections_[waiter.connection_];
  connection.waiting.erase(waiter.at_);
  if (connection.waiting.empty()) connection.empty_at = options_.received(waiter.connection_);
  waiter.waits_ = false;
  waiter.refuse_ = nullptr;
  --waiting_;
}

// Two bounds apply, and the smaller holds: the bytes received since no call waited; and those received since the oldest call entered, plus
// what each call may have received before it entered.
std::size_t MessageRoom::HeldBy(int number, const Connection& connection) const {
  if (connection.waiting.empty()) return 0;
  const std::uint64_t now = options_.received(number);
  const std::size_t calls = connection.waiting.size();
  const std::uint64_t since_empty = now - std::min(now, connection.empty_at);
  const std::uint64_t since_oldest = now - std::min(now, connection.waiting.front()->began_) + calls * kFirstWindow;
  return std::min(since_empty, since_oldest) + calls * kOfACall;
}

std::map<std::string, std::size_t> MessageRoom::Measure() {
  std::map<std::string, std::size_t> tenants;
  for (auto& [number, connection] : connections_) {
    connection.held = HeldBy(number, connection);
    if (connection.held > 0) tenants[connection.waiting.front()->tenant_] += connection.held;
  }
  return tenants;
}

void MessageRoom::Look() {
  cache::RecursiveMutexLock lock(mutex_);
  while (waiting_ > 0) {
    const auto tenants = Measure();
    std::size_t total = 0;
    for (const auto& [tenant, held] : tenants) total += held;
    const auto most = std::ranges::max_element(tenants, {}, [](const auto& one) { return one.second; });
    const bool fits = total < options_.capacity && most->second <= kOwnPart * (options_.capacity - total);
    if (fits || !EndOneOf(most->first)) return;
  }
}

bool MessageRoom::EndOneOf(const std::string& tenant) {
  Connection* largest = nullptr;
  for (auto& [number, connection] : connections_) {
    const bool theirs = !connection.waiting.empty() && connection.waiting.front()->tenant_ == tenant;
    if (theirs && (largest == nullptr || connection.held > largest->held)) largest = &connection;
  }
  if (largest == nullptr) return false;
  Waiter& oldest = *largest->waiting.front();
  const Refuse refuse = std::move(oldest.refuse_);
  Leave(oldest);
  oldest.refused_ = true;
  refuse(Refusal(tenant));
  return true;
}

Failure MessageRoom::Refusal(const std::string& tenant) const { return NoMemoryForMessages(tenant, options_.capacity); }

std::size_t MessageRoom::held() const {
  cache::RecursiveMutexLock lock(mutex_);
  std::size_t total = 0;
  for (const auto& [number, connection] : connections_) total += HeldBy(number, connection);
  return total;
}

void MessageRoom::Run() {
  int idle = 0;
  for (;;) {
    {
      cache::RecursiveMutexLock lock(mutex_);
      idle = waiting_ > 0 ? 0 : idle + 1;
      sleeps_ = idle > kLooksWithoutAnybody;
      if (sleeps_) {
        entered_.Wait(mutex_, [this]() KILN_REQUIRES(mutex_) { return stopping_ || !sleeps_; });
        idle = 0;
      } else {
        entered_.WaitFor(mutex_, kBetweenLooks, [this]() KILN_REQUIRES(mutex_) { return stopping_; });
      }
      if (stopping_) return;
    }
    Look();
  }
}

}  // namespace kiln::server
