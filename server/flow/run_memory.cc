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

std::string NoMemory() { return fmt::format("no memory for the tensors: {}", std::strerror(errno)); }

}  // namespace

std::expected<void, std::string> RunBudget::Hold::Grow(std::uint64_t bytes) {
  if (auto grown = bytes_.Grow(bytes); !grown) return std::unexpected(budget_->NoBytes(grown.error(), bytes_.tenant()));
  return {};
}

std::expected<RunBudget::Hold, std::string> RunBudget::Begin(const std::string& tenant, std::uint64_t bytes) {
  auto call = calls_.Take(tenant, 1);
  if (!call && call.error() == TenantBudget::Full::kForAll) {
    return std::unexpected(fmt::format("{} runs are under way, as many as this kilnd has at one time (--run-calls)", calls_.capacity()));
  }
  if (!call) {
    return std::unexpected(fmt::format("the tenant {} has {} runs under way, as many as one tenant may have at one time (four fifths of --run-calls)",
                                       tenant, calls_.part_of_the_whole()));
  }
  auto held = bytes_.Take(tenant, bytes);
  if (!held) return std::unexpected(NoBytes(held.error(), tenant));
  return Hold(*this, std::move(*call), std::move(*held));
}

std::string RunBudget::NoBytes(TenantBudget::Full full, const std::string& tenant) const {
  if (full == TenantBudget::Full::kForAll) {
    return fmt::format("other runs hold most of the {} bytes that this kilnd has for tensors (--run-data-total)", bytes_.capacity());
  }
  return fmt::format("other runs of the tenant {} hold most of the {} bytes that one tenant may have for tensors (four fifths of --run-data-total)",
                     tenant, bytes_.part_of_the_whole());
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
