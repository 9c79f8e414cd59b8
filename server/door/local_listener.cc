// SPDX-License-Identifier: Apache-2.0
#include "server/door/local_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_posix.h>

#include "server/access/local_peer.h"

namespace kiln::server {
namespace {

constexpr std::chrono::milliseconds kPauseWithoutDescriptors{50};

std::string CannotListen(const std::filesystem::path& path, int error) {
  return fmt::format("cannot listen on {}: {}; is its directory writable? Choose another socket with --listen unix:PATH", path.string(),
                     std::strerror(error));
}

bool IsOwn(int fd) {
  const auto who = LocalPeer(fd);
  return who && (who->uid == 0 || who->uid == ::geteuid());
}

}  // namespace

std::expected<UniqueFd, std::string> LocalListener::Bind(const std::filesystem::path& path, unsigned mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The mode is set before anybody can connect: between bind and listen a connection is refused.
  if (!listening || ::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::chmod(path.c_str(), mode) != 0 ||
      ::listen(listening.get(), SOMAXCONN) != 0) {
    return std::unexpected(CannotListen(path, errno));
  }
  return listening;
}

LocalListener::LocalListener(UniqueFd listening, grpc::Server& own, grpc::Server& others)
    : listening_(std::move(listening)), stop_(::eventfd(0, EFD_CLOEXEC)), own_(own), others_(others), thread_([this] { Run(); }) {}

LocalListener::~LocalListener() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void LocalListener::Run() {
  std::array<pollfd, 2> fds = {pollfd{listening_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
  for (;;) {
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (fds[0].revents != 0 && !AcceptOne()) {
      // No descriptor is free: leave the connection in the backlog until one is.
      ::poll(&fds[1], 1, static_cast<int>(kPauseWithoutDescriptors.count()));
    }
  }
}

bool LocalListener::AcceptOne() {
  const int fd = ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) grpc::AddInsecureChannelFromFd(IsOwn(fd) ? &own_ : &others_, fd);
  return fd >= 0 || (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS);
}

}  // namespace kiln::server
