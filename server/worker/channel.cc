// SPDX-License-Identifier: Apache-2.0
#include "server/worker/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kiln::server {
namespace {

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

ssize_t SendSome(int fd, std::string_view bytes, int descriptor) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptor)> space{};
  if (descriptor >= 0) {
    message.msg_control = space.data();
    message.msg_controllen = space.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

}  // namespace

Channel::Channel(UniqueFd fd, Descriptors descriptors) : fd_(std::move(fd)), descriptors_(descriptors) {
  ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

Channel::End Channel::WaitFor(short events, const Wait& wait) const {
  for (;;) {
    std::array<pollfd, 2> fds = {pollfd{fd_.get(), events, 0}, pollfd{wait.wake_fd, POLLIN, 0}};
    const int ready = ::poll(fds.data(), fds.size(), wait.until ? wait.until->PollTimeout() : -1);
    if (ready < 0 && errno != EINTR) return End::kClosed;
    if (fds[1].revents != 0) return End::kWoken;
    if (fds[0].revents != 0) return End::kOk;
    if (wait.until && wait.until->IsOver()) return End::kDeadline;
  }
}

Channel::End Channel::Send(const google::protobuf::MessageLite& message, const Wait& wait, int descriptor) {
  const std::string frame = Frame(message);
  if (frame.size() - kHeader > kMaxMessage) return End::kInvalid;
  std::string_view rest = frame;
  while (!rest.empty()) {
    const ssize_t sent = SendSome(fd_.get(), rest, descriptor);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
      descriptor = -1;
    } else if (errno == EAGAIN) {
      if (const End end = WaitFor(POLLOUT, wait); end != End::kOk) return end;
    } else if (errno != EINTR) {
      return End::kClosed;
    }
  }
  return End::kOk;
}

ssize_t Channel::Read(char* data, std::size_t size) {
  if (descriptors_ == Descriptors::kRefuse) return ::recv(fd_.get(), data, size, 0);
  iovec bytes{data, size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    descriptor_ = UniqueFd(descriptor);
  }
  return got;
}

Channel::End Channel::Fill(std::size_t size, const Wait& wait) {
  std::array<char, 65536> chunk;
  while (in_.size() < size) {
    const ssize_t got = Read(chunk.data(), chunk.size());
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
