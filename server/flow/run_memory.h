// SPDX-License-Identifier: Apache-2.0
//
// The bytes of one run's tensors, in a file without a name that kilnd and the device worker share. Its size is fixed and sealed before a
// worker sees it, so that no worker makes more of it than was reserved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "clients/common/unique_fd.h"
#include "server/queue/tenant_budget.h"

namespace kiln::server {

// How much the runs under way may hold at one time: calls, each of which has a descriptor, and bytes of memory. Thread-safe.
class RunBudget {
 public:
  struct Limits {
    std::uint64_t bytes = 0;
    std::size_t calls = 1;
  };
  explicit RunBudget(Limits limits) : calls_(limits.calls, TenantBudget::Part::kOfTheWhole), bytes_(limits.bytes, TenantBudget::Part::kOfTheWhole) {}

  // What one call has; the budget, which outlives it, gets it back.
  class Hold {
   public:
    // More bytes for the same call.
    std::expected<void, std::string> Grow(std::uint64_t bytes);

   private:
    friend RunBudget;
    Hold(const RunBudget& budget, TenantBudget::Charge call, TenantBudget::Charge bytes)
        : budget_(&budget), call_(std::move(call)), bytes_(std::move(bytes)) {}
    const RunBudget* budget_;
    TenantBudget::Charge call_;
    TenantBudget::Charge bytes_;
  };

  // The error says what is used up.
  std::expected<Hold, std::string> Begin(const std::string& tenant, std::uint64_t bytes);

 private:
  std::string NoBytes(TenantBudget::Full full, const std::string& tenant) const;

  TenantBudget calls_;
  TenantBudget bytes_;
};

class RunMemory {
 public:
  static constexpr std::uint64_t kPage = 4096;  // tensors begin at multiples

  // `hold` covers `bytes` and ends with this object. The error says what the system refused.
  static std::expected<std::shared_ptr<RunMemory>, std::string> Create(std::uint64_t bytes, RunBudget::Hold hold);
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // False where it does not fit or there is no memory.
  bool Write(std::uint64_t position, std::string_view data);
  bool Read(std::uint64_t position, char* data, std::uint64_t bytes) const;

  // Makes room for the outputs, and fixes the size. Once. The error says what the budget or the system refused.
  std::expected<void, std::string> Seal(std::uint64_t more);

 private:
  RunMemory(UniqueFd fd, std::uint64_t bytes, RunBudget::Hold hold) : fd_(std::move(fd)), bytes_(bytes), hold_(std::move(hold)) {}

  const UniqueFd fd_;
  std::uint64_t bytes_;
  RunBudget::Hold hold_;
};

}  // namespace kiln::server
