// SPDX-License-Identifier: Apache-2.0
#include "clients/common/endpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace kiln {
namespace {

namespace fs = std::filesystem;

bool SomebodyListens(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::expected<Endpoint, std::string> ParseUnix(std::string_view path) {
  if (path.starts_with("//")) path.remove_prefix(2);  // unix:///path
  if (std::string why = TooLongForASocket(path); !why.empty()) return std::unexpected(std::move(why));
  if (!path.starts_with('/')) return std::unexpected(fmt::format("the socket path {} is not absolute", path));
  return Endpoint{fmt::format("unix:{}", path), fs::path(path)};
}

}  // namespace

std::string TooLongForASocket(std::string_view path) {
  constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kLongest) return {};
  return fmt::format(
      "the socket path {} has {} bytes and Unix sockets take at most {}; choose a shorter one: kilnd --listen=unix:PATH, "
      "KILN_ADDRESS=unix:PATH for its clients",
      path, path.size(), kLongest);
}

std::expected<Endpoint, std::string> ParseEndpoint(std::string_view text) {
  if (text.starts_with("unix:")) return ParseUnix(text.substr(5));
  const std::size_t colon = text.rfind(':');
  unsigned port = 0;
  const std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (colon == 0 || error != std::errc() || end != digits.data() + digits.size() || port > 65535) {
    return std::unexpected(fmt::format("{} is no address; use unix:PATH or HOST:PORT", text));
  }
  return Endpoint{std::string(text), std::nullopt};
}

std::string DefaultListen(const char* runtime_dir, unsigned uid) {
  if (runtime_dir != nullptr && *runtime_dir == '/') return fmt::format("unix:{}/kiln.sock", runtime_dir);
  if (uid == 0) return "unix:/run/kiln/kiln.sock";
  return fmt::format("unix:/tmp/kiln-{}/kiln.sock", uid);
}

std::string DistrustOf(const fs::path& folder, unsigned uid) {
  ::mkdir(folder.c_str(), 0700);
  struct stat status{};
  if (::lstat(folder.c_str(), &status) != 0) return fmt::format("{} cannot be made: {}", folder.string(), std::strerror(errno));
  const char* why = !S_ISDIR(status.st_mode)                      ? "is no folder"
                    : status.st_uid != uid                        ? "belongs to another user"
                    : (status.st_mode & (S_IWGRP | S_IWOTH)) != 0 ? "can be written by others"
                                                                  : nullptr;
  if (why == nullptr) return {};
  return fmt::format("{} {}: the process that listens there may not be your kilnd. Remove the folder, or name a socket with KILN_ADDRESS",
                     folder.string(), why);
}

std::expected<UniqueFd, std::string> Claim(const Endpoint& endpoint) {
  if (!endpoint.socket) return UniqueFd();
  const fs::path& path = *endpoint.socket;
  std::error_code error;
  if (!fs::exists(path.parent_path(), error)) {
    fs::create_directories(path.parent_path(), error);
    fs::permissions(path.parent_path(), fs::perms::owner_all, error);
  }
  struct stat directory{};
  if (::lstat(path.parent_path().c_str(), &directory) == 0 && path.string().starts_with("/tmp/kiln-") && directory.st_uid != ::geteuid()) {
    return std::unexpected(fmt::format("{} belongs to another user; choose another place with --listen", path.parent_path().string()));
  }
  const std::string lock_path = path.string() + ".lock";
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) {
    return std::unexpected(fmt::format("cannot write {}: {}; choose another place with --listen unix:PATH", lock_path, std::strerror(errno)));
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || SomebodyListens(path)) {
    return std::unexpected(fmt::format("another kilnd serves on {}; stop it, or choose another socket with --listen", path.string()));
  }
  if (fs::exists(path, error) && !fs::is_socket(path, error)) {
    return std::unexpected(fmt::format("{} exists and is no socket; remove it, or choose another place with --listen", path.string()));
  }
  fs::remove(path, error);
  return lock;
}

}  // namespace kiln
