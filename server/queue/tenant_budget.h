// SPDX-License-Identifier: Apache-2.0
//
// What tenants share and give back: bytes of memory, places, calls. One tenant cannot fill it for all. There are two rules:
//
// kOfTheRest: a tenant that holds something may take more only while a fifth of what is free and its own together stays free. A tenant that
// holds nothing gets room as long as anything is left, even if its one piece is larger than that.
// kOfTheWhole: a tenant may hold four fifths of the whole. Its only piece may exceed that part, and the only piece of all may exceed the
// whole: the caller bounds what one piece may have.
//
// All members may be called from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "cache/mutex.h"

namespace kiln::server {

class TenantBudget {
 public:
  enum class Part { kOfTheRest, kOfTheWhole };
  enum class Full { kForAll, kForTenant };

  explicit TenantBudget(std::size_t capacity, Part part = Part::kOfTheRest) : capacity_(capacity), part_(part) {}
  TenantBudget(const TenantBudget&) = delete;
  TenantBudget& operator=(const TenantBudget&) = delete;

  // A reservation for a tenant, given back when this object ends: one piece. The budget must outlive it.
  class Charge {
   public:
    Charge() = default;  // of nothing
    Charge(Charge&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), tenant_(std::move(other.tenant_)), bytes_(other.bytes_) {}
    Charge& operator=(Charge&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(tenant_, other.tenant_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Charge() {
      if (budget_ != nullptr) budget_->Give(tenant_, bytes_);
    }

    const std::string& tenant() const { return tenant_; }

    // More for the same piece.
    std::expected<void, Full> Grow(std::size_t bytes) {
      auto added = budget_->Add(tenant_, bytes, bytes_);
      if (added) bytes_ += bytes;
      return added;
    }

   private:
    friend class TenantBudget;
    Charge(TenantBudget& budget, std::string tenant, std::size_t bytes) : budget_(&budget), tenant_(std::move(tenant)), bytes_(bytes) {}

    TenantBudget* budget_ = nullptr;
    std::string tenant_;
    std::size_t bytes_ = 0;
  };

  std::expected<Charge, Full> Take(const std::string& tenant, std::size_t bytes) {
    bytes = std::max<std::size_t>(bytes, 1);
    if (auto added = Add(tenant, bytes, 0); !added) return std::unexpected(added.error());
    return Charge(*this, tenant, bytes);
  }

  std::size_t capacity() const { return capacity_; }
  std::size_t part_of_the_whole() const { return capacity_ - capacity_ / 5; }

  std::size_t used() const {
    cache::MutexLock lock(mutex_);
    return used_;
  }

 private:
  static constexpr std::size_t kOwnPart = 4;  // times what is left, as in FairQueue

  std::expected<void, Full> Add(const std::string& tenant, std::size_t bytes, std::size_t piece) {
    cache::MutexLock lock(mutex_);
    const auto at = held_.find(tenant);
    if (const auto full = WhatIsFull(at == held_.end() ? 0 : at->second, piece, bytes)) return std::unexpected(*full);
    held_[tenant] += bytes;
    used_ += bytes;
    return {};
  }

  // Before a piece gets more, whose tenant holds `held` in all.
  std::optional<Full> WhatIsFull(std::size_t held, std::size_t piece, std::size_t more) const KILN_REQUIRES(mutex_) {
    const std::size_t left = capacity_ - std::min(used_, capacity_);
    const bool only = held == piece;  // the tenant's only piece
    const bool may_exceed = part_ == Part::kOfTheRest ? only && left > 0 : used_ == piece;
    if (more > left && !may_exceed) return Full::kForAll;
    if (only) return std::nullopt;
    const std::size_t part = part_ == Part::kOfTheRest ? kOwnPart * (left - more) : part_of_the_whole();
    if (held > part || more > part - held) return Full::kForTenant;
    return std::nullopt;
  }

  void Give(const std::string& tenant, std::size_t bytes) {
    cache::MutexLock lock(mutex_);
    const auto at = held_.find(tenant);
    at->second -= bytes;
    used_ -= bytes;
    if (at->second == 0) held_.erase(at);
  }

  const std::size_t capacity_;
  const Part part_;
  mutable cache::Mutex mutex_;
  std::map<std::string, std::size_t> held_ KILN_GUARDED_BY(mutex_);  // by those who hold something
  std::size_t used_ KILN_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln::server
