// SPDX-License-Identifier: Apache-2.0
#include "server/flow/run_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace kiln::server {
namespace {

// Of one tenant.
std::uint64_t PartOf(std::uint64_t whole) { return whole - whole / 5; }

std::string NoMemory() { return fmt::format("no memory for the tensors: {}", std::strerror(errno)); }

}  // namespace

RunBudget::Hold::~Hold() {
  if (budget_ != nullptr) budget_->Give(tenant_, bytes_);
}

std::expected<void, std::string> RunBudget::Hold::Grow(std::uint64_t bytes) {
  cache::MutexLock lock(budget_->mutex_);
  auto taken = budget_->TakeBytes(tenant_, bytes, bytes_);
  if (taken) bytes_ += bytes;
  return taken;
}

std::expected<RunBudget::Hold, std::string> RunBudget::Begin(const std::string& tenant, std::uint64_t bytes) {
  {
    cache::MutexLock lock(mutex_);
    if (auto taken = TakeCall(tenant); !taken) return std::unexpected(std::move(taken.error()));
  }
  Hold hold(*this, tenant);
  if (auto grown = hold.Grow(bytes); !grown) return std::unexpected(std::move(grown.error()));
  return hold;
}

std::expected<void, std::string> RunBudget::TakeCall(const std::string& tenant) {
  if (all_.calls >= limits_.calls)
    return std::unexpected(
        fmt::format("{} runs are under way, as many as this kilnd has at one time "
                    "(--run-calls)",
                    limits_.calls));
  const std::size_t own = std::max<std::size_t>(1, PartOf(limits_.calls));
  Use& use = uses_[tenant];
  if (use.calls >= own)
    return std::unexpected(
        fmt::format("the tenant {} has {} runs under way, as many as one tenant may have at one "
                    "time (four fifths of --run-calls)",
                    tenant, own));
  ++all_.calls;
  ++use.calls;
  return {};
}

std::expected<void, std::string> RunBudget::TakeBytes(const std::string& tenant, std::uint64_t bytes, std::uint64_t held) {
  const auto fits = [&](const Use& use, std::uint64_t limit) { return use.bytes == held || (use.bytes <= limit && bytes <= limit - use.bytes); };
  Use& use = uses_.at(tenant);
  if (!fits(all_, limits_.bytes)) {
    return std::unexpected(fmt::format("other runs hold most of the {} bytes that this kilnd has for tensors (--run-data-total)", limits_.bytes));
  }
  if (!fits(use, PartOf(limits_.bytes))) {
    return std::unexpected(
        fmt::format("other runs of the tenant {} hold most of the {} bytes that one tenant may have for tensors (four "
                    "fifths of --run-data-total)",
                    tenant, PartOf(limits_.bytes)));
  }
  all_.bytes += bytes;
  use.bytes += bytes;
  return {};
}

void RunBudget::Give(const std::string& tenant, std::uint64_t bytes) {
  cache::MutexLock lock(mutex_);
  const auto at = uses_.find(tenant);
  for (Use* use : {&all_, &at->second}) {
    use->bytes -= bytes;
    --use->calls;
  }
  if (at->second.calls == 0) uses_.erase(at);
}

std::expected<std::shared_ptr<RunMemory>, std::string> RunMemory::Create(std::uint64_t bytes, RunBudget::Hold hold) {
  UniqueFd fd(::memfd_create("kiln-run", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return std::unexpected(NoMemory());
  return std::shared_ptr<RunMemory>(new RunMemory(std::move(fd), bytes, std::move(hold)));
}

std::expected<void, std::string> RunMemory::Seal(std::uint64_t more) {
  if (auto grown = hold_.Grow(more); !grown) return grown;
  bytes_ += more;
  const bool sealed =
      ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) == 0 && ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
  if (!sealed) return std::unexpected(NoMemory());
  return {};
}

bool RunMemory::Write(std::uint64_t position, std::string_view data) {
  if (position > bytes_ || data.size() > bytes_ - position) return false;
  while (!data.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(position));
    if (written <= 0 && errno != EINTR) return false;
    data.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    position += static_cast<std::uint64_t>(std::max<ssize_t>(written, 0));
  }
  return true;
}

bool RunMemory::Read(std::uint64_t position, char* data, std::uint64_t bytes) const {
  if (position > bytes_ || bytes > bytes_ - position) return false;
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_.get(), data, bytes, static_cast<off_t>(position));
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    const auto count = static_cast<std::uint64_t>(std::max<ssize_t>(got, 0));
    data += count;
    position += count;
    bytes -= count;
  }
  return true;
}

}  // namespace kiln::server
