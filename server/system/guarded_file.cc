// SPDX-License-Identifier: Apache-2.0
#include "server/system/guarded_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "clients/common/unique_fd.h"

namespace kiln::server {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

// False with errno, which is 0 where the file ends too soon.
bool ReadAll(int file, std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    errno = 0;
    const ssize_t got = ::pread(file, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

std::expected<std::optional<std::string>, std::string> ReadGuarded(const std::filesystem::path& path) {
  const auto fail = [&](std::string_view why) { return std::unexpected(fmt::format("cannot read {}: {}", path.string(), why)); };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) return std::nullopt;
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) return fail(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail("it is no file");
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return std::unexpected(fmt::format("{} can be written by others, who could give themselves any right; chmod 600 it", path.string()));
  }
  if (static_cast<std::size_t>(status.st_size) > kMaxBytes) return fail(fmt::format("it has more than {} bytes", kMaxBytes));
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  if (!ReadAll(file.get(), text)) return fail(errno == 0 ? "it became shorter meanwhile" : std::strerror(errno));
  return text;
}

}  // namespace kiln::server
