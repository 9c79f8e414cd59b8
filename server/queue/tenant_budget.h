// SPDX-License-Identifier: Apache-2.0
//
// Memory that tenants share: the bytes of the requests that are under way. One tenant cannot fill it for all.
// A tenant that holds something may take more only while a fifth of what is free and its own together stays free. A tenant that holds nothing
// gets room as long as anything is left, even if its one piece is larger than that.
//
// All members may be called from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "cache/mutex.h"

namespace kiln::server {

class TenantBudget {
 public:
  explicit TenantBudget(std::size_t capacity) : capacity_(capacity) {}
  TenantBudget(const TenantBudget&) = delete;
  TenantBudget& operator=(const TenantBudget&) = delete;

  // A reservation of bytes for a tenant, given back when this object ends. The budget must outlive it.
  class Charge {
   public:
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

   private:
    friend class TenantBudget;
    Charge(TenantBudget& budget, std::string tenant, std::size_t bytes) : budget_(&budget), tenant_(std::move(tenant)), bytes_(bytes) {}

    TenantBudget* budget_;
    std::string tenant_;
    std::size_t bytes_;
  };

  // Nothing where there is no room.
  std::optional<Charge> Take(const std::string& tenant, std::size_t bytes) {
    bytes = std::max<std::size_t>(bytes, 1);
    cache::MutexLock lock(mutex_);
    if (!HasRoomFor(tenant, bytes)) return std::nullopt;
    held_[tenant] += bytes;
    used_ += bytes;
    return Charge(*this, tenant, bytes);
  }

  std::size_t used() const {
    cache::MutexLock lock(mutex_);
    return used_;
  }

 private:
  static constexpr std::size_t kOwnPart = 4;  // times what is left, as in Admission

  bool HasRoomFor(const std::string& tenant, std::size_t bytes) const KILN_REQUIRES(mutex_) {
    if (used_ >= capacity_) return false;
    const auto at = held_.find(tenant);
    if (at == held_.end()) return true;
    return used_ + bytes <= capacity_ && at->second + bytes <= kOwnPart * (capacity_ - used_ - bytes);
  }

  void Give(const std::string& tenant, std::size_t bytes) {
    cache::MutexLock lock(mutex_);
    const auto at = held_.find(tenant);
    at->second -= bytes;
    used_ -= bytes;
    if (at->second == 0) held_.erase(at);
  }

  const std::size_t capacity_;
  mutable cache::Mutex mutex_;
  std::map<std::string, std::size_t> held_ KILN_GUARDED_BY(mutex_);  // by those who hold something
  std::size_t used_ KILN_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln::server
