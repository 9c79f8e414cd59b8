// SPDX-License-Identifier: Apache-2.0
//
// One flight per key: whoever asks for a key while it is being made waits for that making.
//
// Roles. The first to join a key *starts* its flight; everybody who joins, the first included, is a *waiter*. The starter receives the
// Flight, a handle that must reach Finish: dropping it ends the flight as kDropped, so that no error path can leave a waiter hanging. A
// waiter may leave. When the last one has left, nobody wants the result: the flight's stop token fires and the key is free again, so that a
// later Join starts a new flight instead of joining one that was told to stop. Nobody receives what a stopped flight still delivers.
//
// Threads. SingleFlight owns none. One mutex guards the table; no waiter and no stop callback runs under it. Waiters
// run on the thread that finishes, drops or expires the flight, one after the other, so they should only hand over;
// they may call Join and Leave. A waiter runs at most once, and never after Leave returned true; where Leave returned
// false it has run, is running, or is about to. It may run before Join has returned to the thread that joined.
//
// Order. Make a result visible to lookups before Finish; otherwise a caller between the two would start the work again.
//
// Lifetime. Flights and tickets may outlive the SingleFlight. Its destructor gives kDropped to those who still wait
// and stops their flights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/mutex.h"

namespace kiln::cache {

enum class FlightEnd : std::uint8_t {
  kFinished,  // There is a result. Failures are results too: everybody gets the same.
  kDeadline,  // The waiter's own deadline passed; the flight goes on for the others.
  kDropped,   // The flight was given up without a result.
};

template <class Result>
class SingleFlight {
  struct State;
  struct Table;

 public:
  // The result is set exactly when the end is kFinished, and is shared by all waiters.
  using Waiter = std::move_only_function<void(FlightEnd, const std::shared_ptr<const Result>&)>;

  // The starter's end of a flight.
  class Flight {
   public:
    Flight(Flight&&) noexcept = default;
    Flight& operator=(Flight&&) = delete;
    ~Flight() {
      if (state_) Table::End(*table_, *state_, FlightEnd::kDropped, nullptr);
    }

    const Digest& key() const { return state_->key; }

    // Fires when the last waiter has left.
    std::stop_token stop_token() const { return state_->stop.get_token(); }

    // Gives the result to every waiter. Once only; the handle is empty afterwards.
    void Finish(Result result) {
      const auto state = std::exchange(state_, nullptr);
      Table::End(*table_, *state, FlightEnd::kFinished, std::make_shared<const Result>(std::move(result)));
    }

   private:
    friend class SingleFlight;
    Flight(std::shared_ptr<Table> table, std::shared_ptr<State> state) : table_(std::move(table)), state_(std::move(state)) {}

    std::shared_ptr<Table> table_;
    std::shared_ptr<State> state_;
  };

  // Names one waiter. Dropping it changes nothing.
  class Ticket {
   public:
    Ticket() = default;

   private:
    friend class SingleFlight;
    Ticket(std::weak_ptr<State> state, std::uint64_t waiter) : state_(std::move(state)), waiter_(waiter) {}

    std::weak_ptr<State> state_;
    std::uint64_t waiter_ = 0;
  };

  struct Joined {
    Ticket ticket;
    std::optional<Flight> flight;  // set for the starter, who must bring it to its end
  };

  SingleFlight() : table_(std::make_shared<Table>()) {}
  ~SingleFlight() { table_->Close(); }
  SingleFlight(const SingleFlight&) = delete;
  SingleFlight& operator=(const SingleFlight&) = delete;

  // A deadline takes effect in Expire.
  Joined Join(const Digest& key, Waiter waiter, std::optional<SteadyTime> deadline = std::nullopt) {
    MutexLock lock(table_->mutex);
    auto [at, starts] = table_->flights.try_emplace(key);
    if (starts) at->second = std::make_shared<State>(key);
    const std::shared_ptr<State> state = at->second;
    Joined joined{table_->Add(state, std::move(waiter), deadline), std::nullopt};
    if (starts) joined.flight.emplace(Flight(table_, state));
    return joined;
  }

  bool Has(const Digest& key) const {
    MutexLock lock(table_->mutex);
    return table_->flights.contains(key);
  }

  // Joins the key's flight where there is one; otherwise nothing happens and the waiter is left as it is.
  std::optional<Ticket> JoinExisting(const Digest& key, Waiter& waiter) {
    MutexLock lock(table_->mutex);
    const auto at = table_->flights.find(key);
    if (at == table_->flights.end()) return std::nullopt;
    return table_->Add(at->second, std::move(waiter), std::nullopt);
  }

  // True when the waiter was still waiting; it will not be called.
  bool Leave(const Ticket& ticket) {
    const std::shared_ptr<State> state = ticket.state_.lock();
    return state && table_->Remove(state, ticket.waiter_).has_value();
  }

  // Ends the wait of every waiter whose deadline is not after `now`, with kDeadline. Returns how many that were.
  std::size_t Expire(SteadyTime now) {
    std::size_t expired = 0;
    while (auto due = table_->FirstDue(now)) {
      if (std::optional<Waiter> waiter = table_->Remove(due->first, due->second)) {
        (*waiter)(FlightEnd::kDeadline, nullptr);
        ++expired;
      }
    }
    return expired;
  }

  // When to call Expire next.
  std::optional<SteadyTime> NextDeadline() const {
    MutexLock lock(table_->mutex);
    if (table_->deadlines.empty()) return std::nullopt;
    return table_->deadlines.begin()->first;
  }

  std::size_t flights() const {
    MutexLock lock(table_->mutex);
    return table_->flights.size();
  }

 private:
  using Deadlines = std::multimap<SteadyTime, std::pair<std::shared_ptr<State>, std::uint64_t>>;

  struct Seat {
    Waiter waiter;
    std::optional<typename Deadlines::iterator> deadline;
  };

  struct State {
    explicit State(const Digest& key) : key(key) {}

    const Digest key;
    std::stop_source stop;
    std::map<std::uint64_t, Seat> waiters;  // in the order they joined; guarded by the table's mutex
  };

  struct Table {
    Mutex mutex;
    std::unordered_map<Digest, std::shared_ptr<State>> flights KILN_GUARDED_BY(mutex);
    Deadlines deadlines KILN_GUARDED_BY(mutex);
    std::uint64_t last_waiter KILN_GUARDED_BY(mutex) = 0;

    Ticket Add(const std::shared_ptr<State>& state, Waiter waiter, std::optional<SteadyTime> deadline) KILN_REQUIRES(mutex) {
      const std::uint64_t id = ++last_waiter;
      Seat& seat = state->waiters[id];
      seat.waiter = std::move(waiter);
      if (deadline) seat.deadline = deadlines.emplace(*deadline, std::pair(state, id));
      return Ticket(state, id);
    }

    // A flight whose waiters have all left is no longer in the table, but another of the same key may be.
    void Forget(const State& state) KILN_REQUIRES(mutex) {
      const auto at = flights.find(state.key);
      if (at != flights.end() && at->second.get() == &state) flights.erase(at);
    }

    // Takes one waiter out of its flight, and stops the flight if that was the last.
    std::optional<Waiter> Remove(const std::shared_ptr<State>& state, std::uint64_t id) KILN_EXCLUDES(mutex) {
      std::optional<Waiter> waiter;
      bool last = false;
      {
        MutexLock lock(mutex);
        const auto at = state->waiters.find(id);
        if (at == state->waiters.end()) return std::nullopt;
        if (at->second.deadline) deadlines.erase(*at->second.deadline);
        waiter.emplace(std::move(at->second.waiter));
        state->waiters.erase(at);
        last = state->waiters.empty();
        if (last) Forget(*state);
      }
      if (last) state->stop.request_stop();
      return waiter;
    }

    std::optional<std::pair<std::shared_ptr<State>, std::uint64_t>> FirstDue(SteadyTime now) KILN_EXCLUDES(mutex) {
      MutexLock lock(mutex);
      if (deadlines.empty() || deadlines.begin()->first > now) return std::nullopt;
      return deadlines.begin()->second;
    }

    static void End(Table& table, State& state, FlightEnd end, const std::shared_ptr<const Result>& result) {
      std::map<std::uint64_t, Seat> waiters;
      {
        MutexLock lock(table.mutex);
        table.Forget(state);
        waiters = table.Empty(state);
      }
      for (auto& [id, seat] : waiters) seat.waiter(end, result);
    }

    std::map<std::uint64_t, Seat> Empty(State& state) KILN_REQUIRES(mutex) {
      for (auto& [id, seat] : state.waiters) {
        if (seat.deadline) deadlines.erase(*seat.deadline);
      }
      return std::exchange(state.waiters, {});
    }

    void Close() KILN_EXCLUDES(mutex) {
      std::vector<std::shared_ptr<State>> open;
      {
        MutexLock lock(mutex);
        for (auto& [key, state] : flights) open.push_back(state);
      }
      for (const auto& state : open) {
        End(*this, *state, FlightEnd::kDropped, nullptr);
        state->stop.request_stop();
      }
    }
  };

  const std::shared_ptr<Table> table_;
};

}  // namespace kiln::cache
