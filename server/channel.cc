// SPDX-License-Identifier: Apache-2.0
#include "server/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <string_view>

namespace kiln::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeader = 4;

std::string Frame(const google::protobuf::MessageLite& message) {
  const std::size_t size = message.ByteSizeLong();
  std::string frame;
  frame.reserve(kHeader + size);
  for (std::size_t i = 0; i < kHeader; ++i) frame.push_back(static_cast<char>(size >> (8 * i)));
  message.AppendToString(&frame);
  return frame;
}

std::size_t LengthIn(std::string_view bytes) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < kHeader; ++i) length |= std::size_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
  return length;
}

// Rounded up, so that a wait never ends before its deadline.
int PollTimeout(const std::optional<Clock::time_point>& until) {
  if (!until) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

}  // namespace

Channel::Channel(UniqueFd fd) : fd_(std::move(fd)) {
  ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

Channel::End Channel::WaitFor(short events, const Wait& wait) const {
  for (;;) {
    std::array<pollfd, 2> fds = {pollfd{fd_.get(), events, 0}, pollfd{wait.wake_fd, POLLIN, 0}};
    const int ready = ::poll(fds.data(), fds.size(), PollTimeout(wait.until));
    if (ready < 0 && errno != EINTR) return End::kClosed;
    if (fds[1].revents != 0) return End::kWoken;
    if (fds[0].revents != 0) return End::kOk;
    if (wait.until && Clock::now() >= *wait.until) return End::kDeadline;
  }
}

Channel::End Channel::Send(const google::protobuf::MessageLite& message, const Wait& wait) {
  const std::string frame = Frame(message);
  if (frame.size() - kHeader > kMaxMessage) return End::kInvalid;
  std::string_view rest = frame;
  while (!rest.empty()) {
    const ssize_t sent = ::send(fd_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (const End end = WaitFor(POLLOUT, wait); end != End::kOk) return end;
    } else if (errno != EINTR) {
      return End::kClosed;
    }
  }
  return End::kOk;
}

Channel::End Channel::Fill(std::size_t size, const Wait& wait) {
  std::array<char, 65536> chunk;
  while (in_.size() < size) {
    const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), 0);
    if (got > 0) {
      in_.append(chunk.data(), static_cast<std::size_t>(got));
    } else if (got == 0) {
      return End::kClosed;
    } else if (errno == EAGAIN) {
      if (const End end = WaitFor(POLLIN, wait); end != End::kOk) return end;
    } else if (errno != EINTR) {
      return End::kClosed;
    }
  }
  return End::kOk;
}

Channel::End Channel::Receive(google::protobuf::MessageLite& message, const Wait& wait) {
  if (const End end = Fill(kHeader, wait); end != End::kOk) return end;
  const std::size_t length = LengthIn(in_);
  if (length > kMaxMessage) return End::kInvalid;
  if (const End end = Fill(kHeader + length, wait); end != End::kOk) return end;
  const bool parsed = message.ParseFromArray(in_.data() + kHeader, static_cast<int>(length));
  in_.erase(0, kHeader + length);
  return parsed ? End::kOk : End::kInvalid;
}

bool Channel::PeerGone() const {
  pollfd peer{fd_.get(), POLLRDHUP, 0};
  return ::poll(&peer, 1, 0) > 0 && (peer.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace kiln::server
