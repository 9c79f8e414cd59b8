// SPDX-License-Identifier: Apache-2.0
#include "server/system/guarded_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <linux/magic.h>

namespace kiln::server {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

std::string_view KindOf(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISDIR(mode)) return "a folder";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

std::string NotRegular(mode_t mode) { return fmt::format("it is {}; a regular file is needed", KindOf(mode)); }

std::string WhyNoLog(const struct stat& status, const struct statfs& system) {
  const mode_t mode = status.st_mode;
  const bool piped = S_ISFIFO(mode) && system.f_type == PIPEFS_MAGIC;
  return S_ISREG(mode) || S_ISCHR(mode) || piped ? "" : fmt::format("it is {}; a regular file or a terminal is needed", KindOf(mode));
}

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

struct Opened {
  UniqueFd file;
  struct stat status{};
};

// Empty where there is no such file.
std::expected<std::optional<Opened>, std::string> Open(const std::filesystem::path& path) {
  const auto fail = [&](std::string_view why) { return std::unexpected(fmt::format("cannot read {}: {}", path.string(), why)); };
  Opened opened{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  if (!opened.file && errno == ENOENT) return std::nullopt;
  if (!opened.file || ::fstat(opened.file.get(), &opened.status) != 0) return fail(std::strerror(errno));
  if (!S_ISREG(opened.status.st_mode)) return fail(NotRegular(opened.status.st_mode));
  return opened;
}

std::expected<std::string, std::string> Read(const Opened& opened, const std::filesystem::path& path) {
  const auto fail = [&](std::string_view why) { return std::unexpected(fmt::format("cannot read {}: {}", path.string(), why)); };
  if (static_cast<std::size_t>(opened.status.st_size) > kMaxBytes) return fail(fmt::format("it has more than {} bytes", kMaxBytes));
  std::string text(static_cast<std::size_t>(opened.status.st_size), '\0');
  if (!ReadAll(opened.file.get(), text)) return fail(errno == 0 ? "it became shorter meanwhile" : std::strerror(errno));
  return text;
}

}  // namespace

std::expected<std::string, std::string> ReadOrdinary(const std::filesystem::path& path) {
  const auto opened = Open(path);
  if (!opened) return std::unexpected(opened.error());
  if (!*opened) return std::unexpected(fmt::format("cannot read {}: {}", path.string(), std::strerror(ENOENT)));
  return Read(**opened, path);
}

std::expected<std::optional<std::string>, std::string> ReadGuarded(const std::filesystem::path& path) {
  const auto opened = Open(path);
  if (!opened) return std::unexpected(opened.error());
  if (!*opened) return std::nullopt;
  if (((*opened)->status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return std::unexpected(fmt::format("{} can be written by others, who could give themselves any right; chmod 600 it", path.string()));
  }
  return Read(**opened, path);
}

std::string WhyNoLog(const std::filesystem::path& path) {
  struct stat status{};
  struct statfs system{};
  if (::stat(path.c_str(), &status) != 0 || ::statfs(path.c_str(), &system) != 0) return "";
  return WhyNoLog(status, system);
}

std::string WhyNotRenamed(const std::filesystem::path& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode) ? "" : NotRegular(status.st_mode);
}

std::expected<UniqueFd, std::string> OpenLog(const std::filesystem::path& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
  if (!file) {
    const int error = errno;  // of a FIFO, ENXIO: nobody reads it
    const std::string why = error == ENXIO ? WhyNoLog(path) : "";
    return std::unexpected(why.empty() ? std::strerror(error) : why);
  }
  struct stat status{};
  struct statfs system{};
  if (::fstat(file.get(), &status) != 0 || ::fstatfs(file.get(), &system) != 0) return std::unexpected(std::strerror(errno));
  if (std::string why = WhyNoLog(status, system); !why.empty()) return std::unexpected(std::move(why));
  if (::fcntl(file.get(), F_SETFL, O_APPEND) != 0) return std::unexpected(std::strerror(errno));  // lines wait for whoever reads a pipe
  return file;
}

}  // namespace kiln::server
