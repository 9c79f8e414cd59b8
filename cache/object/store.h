// SPDX-License-Identifier: Apache-2.0
//
// An object store as its users see it: objects under keys, and whether it is left alone.
//
// Threads. Any thread asks, waits no longer than its deadline, and has a connection for itself meanwhile. One thread of our own, the keeper, reads
// the credentials, has the host's name resolved and probes a store that is left alone: so no request waits for these. A name is resolved on a thread
// of its own: nothing ends the system's resolver, which takes long where no name server answers, so the end leaves that thread behind.
//
// A store that cannot be connected to is left alone at once. One that answers late, or with an error of its own, is left alone after the third
// such answer in a row: of many requests to a store that is well, one is late now and then.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/error.h"
#include "cache/mutex.h"
#include "cache/object/address.h"
#include "cache/object/http.h"
#include "cache/outside/breaker.h"
#include "cache/tier.h"

namespace kiln::cache::object {

class Store {
 public:
  struct Options {
    Address address;
    std::shared_ptr<const Roots> roots;  // for https
    // Asked again and again, so that they may change; nothing: none are needed. Empty: the same.
    std::function<std::expected<std::optional<Credentials>, std::string>()> credentials;
    // The addresses of a host. Called on a thread that may outlive the store: it refers to nothing that ends.
    std::function<std::expected<std::vector<std::string>, Error>(const std::string& host)> resolve = AddressesOf;
    std::chrono::milliseconds timeout{50};            // within which a store that is in use answers a request
    std::chrono::milliseconds write_timeout{10'000};  // and takes what is put
    std::uint64_t most = 0;                           // bytes of an object that is read
    // Told, once each, that the store is left alone, or takes nothing while it is read ("left-alone", "takes-no-puts"), and why; and that this is
    // over ("ok", "takes-puts").
    std::function<void(std::string_view state, std::string_view what)> on_event;
  };

  Store(Options options, const Clock& clock);
  ~Store();

  bool available() const { return breaker_.usable(); }
  // Waits until it is, no longer than that.
  bool AwaitAvailable(std::chrono::milliseconds patience);

  struct Object {
    std::string bytes;
    bool whole = false;  // it ends where the store said that it would
  };
  // Nothing where there is none. kInvalid for one that is larger than this host takes; it stays where it is. kUnreachable at once for a store that
  // is left alone.
  std::expected<std::optional<Object>, Error> Read(const Digest& key, Waited& waited);

  // Where there is nothing yet, or in any case. What is there already is as good: that is no error.
  std::expected<void, Error> Write(const Digest& key, std::string_view bytes, bool even_if_there);

  // Whether there was one. kInvalid where the store lets nobody remove anything.
  std::expected<bool, Error> Remove(const Digest& key);

  // The end is near: no request takes longer than until then.
  void EndBy(SteadyTime latest) { http_.EndBy(latest); }

  const Clock& clock() const { return clock_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

 private:
  static constexpr int kFailuresInARow = 3;
  enum Matter : std::uint8_t { kStore, kPuts };
  using RoutePtr = std::shared_ptr<const Route>;

  RoutePtr route() const;
  // What the store answers. A failure of the store is returned as an Error and counted. `blamed`: it had the time that it may take.
  std::expected<Response, Error> Ask(const Request& request, SteadyTime deadline, bool blamed);
  std::expected<bool, Error> IsThere(const Digest& key, SteadyTime deadline);
  // The store's refusal as an error.
  Error RefusalIn(const Response& response) const;
  // That the condition of a put is nothing that the store knows. There are many other reasons for a 400.
  bool IsAboutCondition(const Response& response) const;
  void NoteFailure(bool at_once, SteadyTime began);
  std::expected<void, Error> Put(const Request& request);
  std::expected<void, Error> PutWhereAbsent(const Digest& key, std::string_view bytes);
  // Each trouble once; an empty one: it is over.
  void Tell(Matter matter, const std::string& trouble);

  // The keeper's.
  void Keep();
  std::expected<void, Error> LookUp();
  std::expected<std::vector<std::string>, Error> Resolve();
  std::expected<void, Error> Probe();
  void Revive(const std::expected<void, Error>& looked);
  SteadyTime NextLook() const;
  bool stopping() const;

  const Options options_;
  const Clock& clock_;
  Http http_;
  Breaker breaker_{false, kFailuresInARow};
  std::atomic<bool> conditional_ = true;  // it is asked to put only where there is nothing
  mutable Mutex mutex_;
  CondVar wake_, became_available_;
  RoutePtr route_ KILN_GUARDED_BY(mutex_);
  bool woken_ KILN_GUARDED_BY(mutex_) = false;
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  Mutex telling_;
  std::array<std::string, 2> told_ KILN_GUARDED_BY(telling_);  // by their matter
  SteadyTime looked_up_{};                                     // of the keeper
  std::thread keeper_;                                         // last: it uses the others
};

}  // namespace kiln::cache::object
