// SPDX-License-Identifier: Apache-2.0
//
// What waits for workers, and whose turn it is. Every tenant has a line for each class. Fair shares choose the tenant (fair_share.h), and the
// first of its lines that is not empty is served, first come first served. Classes belong to tiers. A tier is served only while nothing waits
// in the tiers before it, and has fair-share accounts of its own: what waits there for long must not affect its tenant's place elsewhere.
//
// A bounded queue is never full for everybody: a tenant may add to a line only while that is shorter than kOwnPart times the free places, so
// that a flood leaves places for others.
//
// Not synchronised; its owner's mutex guards it. It destroys no item, but hands all of them out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/clock.h"
#include "server/queue/fair_share.h"

namespace kiln::server {

// An item that has begun. It ends with FairQueue::Finish.
struct FairTurn {
  std::string tenant;
  std::size_t tier = 0;
  FairShare::Turn number = 0;
  FairShare::Time began{};
};

template <class Item>
class FairQueue {
 public:
  struct Options {
    double first_estimate_ms = 1;          // as FairShare's
    std::size_t capacity = SIZE_MAX;       // for HasRoomFor
    std::vector<std::size_t> tiers = {0};  // of each class; none is less than the one before it
  };
  struct Taken {
    Item item;
    std::optional<FairTurn> turn;  // none: it was not wanted
  };

  FairQueue(const Options& options, const cache::Clock& clock)
      : capacity_(options.capacity), tiers_(options.tiers), clock_(clock), shares_(tiers_.back() + 1, FairShare(options.first_estimate_ms)) {}

  std::size_t size() const { return size_; }

  bool HasRoomFor(const std::string& tenant, std::size_t cls) const {
    if (size_ >= capacity_) return false;
    const auto at = tenants_.find(tenant);
    return at == tenants_.end() || at->second[cls].size() / kOwnPart < capacity_ - size_;
  }

  // Adds the item whether or not there is room for it, and returns the time.
  FairShare::Time Push(const std::string& tenant, std::size_t cls, Item&& item) {
    const FairShare::Time now = clock_.SteadyNow();
    SharesOf(cls).Enter(tenant, now);
    tenants_.try_emplace(tenant, tiers_.size()).first->second[cls].push_back(std::move(item));
    ++size_;
    return now;
  }

  // Whose item is the next. Something waits.
  const std::string& NextTenant() const { return Next(clock_.SteadyNow())->first; }

  // Takes the next item out. If `wanted(item)`, it begins. Something waits.
  template <class Wanted>
  Taken Take(const Wanted& wanted) {
    const FairShare::Time now = clock_.SteadyNow();
    const auto at = tenants_.find(Next(now)->first);
    FairTurn turn{.tenant = at->first, .began = now};
    const std::size_t cls = FirstOf(at->second);
    turn.tier = tiers_[cls];
    Taken taken{Extract(at, cls, at->second[cls].begin()), std::nullopt};
    if (wanted(std::as_const(taken.item))) {
      turn.number = SharesOf(cls).Begin(turn.tenant, now);
      taken.turn = std::move(turn);
    } else {
      SharesOf(cls).Leave(turn.tenant);
    }
    return taken;
  }

  void Finish(const FairTurn& turn, double took_ms) { shares_[turn.tier].Finish(turn.tenant, turn.number, took_ms); }

  // Takes out the tenant's item for which `is_it(item)`. Nothing where none waits.
  template <class IsIt>
  std::optional<Item> Remove(const std::string& tenant, const IsIt& is_it) {
    const auto at = tenants_.find(tenant);
    if (at == tenants_.end()) return std::nullopt;
    for (std::size_t cls = 0; cls < tiers_.size(); ++cls) {
      const auto found = std::ranges::find_if(at->second[cls], is_it);
      if (found == at->second[cls].end()) continue;
      SharesOf(cls).Leave(tenant);
      return Extract(at, cls, found);
    }
    return std::nullopt;
  }

  // Moves the first item of a later class for which `is_it(item)` to the end of its tenant's line `to`.
  template <class IsIt>
  void Promote(std::size_t to, const IsIt& is_it) {
    for (auto& [tenant, lines] : tenants_) {
      for (std::size_t from = to + 1; from < tiers_.size(); ++from) {
        const auto found = std::ranges::find_if(lines[from], is_it);
        if (found == lines[from].end()) continue;
        // The order matters: a tenant with nothing left in an account loses the time that it is owed there.
        SharesOf(to).Enter(tenant, clock_.SteadyNow());
        SharesOf(from).Leave(tenant);
        lines[to].push_back(std::move(*found));
        lines[from].erase(found);
        return;
      }
    }
  }

  // Takes out all that waits.
  std::vector<Item> Clear() {
    std::vector<Item> rest;
    while (size_ > 0) rest.push_back(Take([](const Item&) { return false; }).item);
    return rest;
  }

 private:
  static constexpr std::size_t kOwnPart = 4;
  using Line = std::deque<Item>;
  using Lines = std::vector<Line>;  // by class
  using Tenants = std::map<std::string, Lines>;

  FairShare& SharesOf(std::size_t cls) { return shares_[tiers_[cls]]; }

  // The first class that waits.
  static std::size_t FirstOf(const Lines& lines) {
    return static_cast<std::size_t>(std::ranges::find_if(lines, [](const Line& line) { return !line.empty(); }) - lines.begin());
  }

  typename Tenants::const_iterator Next(FairShare::Time now) const {
    return std::ranges::min_element(tenants_, {}, [&](const auto& tenant) {
      const std::size_t tier = tiers_[FirstOf(tenant.second)];
      return std::pair(tier, shares_[tier].TimeOf(tenant.first, now));
    });
  }

  Item Extract(typename Tenants::iterator tenant, std::size_t cls, typename Line::iterator at) {
    Item item = std::move(*at);
    tenant->second[cls].erase(at);
    --size_;
    if (FirstOf(tenant->second) == tiers_.size()) tenants_.erase(tenant);
    return item;
  }

  const std::size_t capacity_;
  const std::vector<std::size_t> tiers_;
  const cache::Clock& clock_;
  std::vector<FairShare> shares_;  // by tier
  Tenants tenants_;                // with something that waits; by name: ties are decided the same way everywhere
  std::size_t size_ = 0;
};

}  // namespace kiln::server
