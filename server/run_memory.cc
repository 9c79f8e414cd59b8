// SPDX-License-Identifier: Apache-2.0
#include "server/run_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace kiln::server {

bool RunBudget::TryTake(std::uint64_t bytes) {
  if ((used_ += bytes) <= capacity_) return true;
  used_ -= bytes;
  return false;
}

std::expected<std::shared_ptr<RunMemory>, std::string> RunMemory::Create(std::uint64_t bytes, RunBudget& budget,
                                                                         std::uint64_t taken) {
  UniqueFd fd(::memfd_create("kiln-run", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 &&
                    ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
  if (!made) return std::unexpected(fmt::format("no memory for the tensors: {}", std::strerror(errno)));
  return std::shared_ptr<RunMemory>(new RunMemory(std::move(fd), bytes, budget, taken));
}

RunMemory::~RunMemory() { budget_.Give(taken_); }

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

void RunMemory::NoteGrowth(std::uint64_t bytes) {
  budget_.Take(bytes);
  taken_ += bytes;
}

}  // namespace kiln::server
