// SPDX-License-Identifier: Apache-2.0
//
// Who makes a result, among the hosts that share a store: whoever holds the lease on its key. The others wait until it is there.
//
// A lease is a promise of the moment and no lock. Its owner may be replaced: when it dies, after a time; when it only stalls, too. Then two
// make the same result, and the store keeps that of the newer lease. A store without leases, or one that does not answer, means that hosts
// make it twice at worst.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "cache/clock.h"
#include "cache/digest.h"
#include "cache/tier.h"

namespace kiln::cache {

struct LeaseStats {
  std::uint64_t taken = 0;    // by this process
  std::uint64_t awaited = 0;  // another's
  std::uint64_t none = 0;     // the store gave none: made without
};

// All members may be called from any thread.
class Leases {
 public:
  enum class End : std::uint8_t {
    kMine,    // make it; `token` ends the lease
    kThere,   // the store has it
    kOthers,  // another host makes it, for `left` at least
    kNone,    // no lease is to be had: make it all the same
  };
  struct Taken {
    End end = End::kNone;
    std::string token;
    std::chrono::milliseconds left{0};
  };

  virtual ~Leases() = default;

  // Waits for the store no longer than a request may. `even_if_there`: what the store has is of no use; then the answer is never kThere.
  virtual Taken Take(const Digest& key, bool even_if_there, Waited& waited) = 0;

  // Ends a lease, once what was put before has arrived.
  virtual void Release(const Digest& key, const std::string& token) = 0;

  // A name for one wait.
  virtual std::uint64_t NewWait() = 0;

  // Calls `woken` once, when the other's lease has ended, or may have, and at `until` at the latest; on a thread of its own and under no lock;
  // perhaps before it has returned. After Close at once.
  virtual void Await(std::uint64_t wait, const Digest& key, std::chrono::milliseconds left, SteadyTime until,
                     std::move_only_function<void()> woken) = 0;

  // True: it was waiting, and is not called.
  virtual bool Leave(std::uint64_t wait) = 0;

  // Wakes everybody, now and from now on.
  virtual void Close() = 0;

  virtual LeaseStats Stats() const = 0;
};

// A lease that ends with its handle.
class Lease {
 public:
  Lease(Leases& leases, const Digest& key, std::string token) : leases_(&leases), key_(key), token_(std::move(token)) {}
  Lease(Lease&& other) noexcept : leases_(std::exchange(other.leases_, nullptr)), key_(other.key_), token_(std::move(other.token_)) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    if (leases_ != nullptr) leases_->Release(key_, token_);
  }

 private:
  Leases* leases_;
  Digest key_;
  std::string token_;
};

}  // namespace kiln::cache
