// SPDX-License-Identifier: Apache-2.0
#include "server/door/received_bytes.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace kiln::server {
namespace {

// The table covers every possible descriptor; its pages take memory only when used.
constexpr std::size_t kDescriptors = std::size_t{1} << 20;
std::array<std::atomic<std::uint64_t>, kDescriptors> counts;

std::atomic<std::uint64_t>& CountOf(int fd) { return counts[static_cast<std::size_t>(fd) % kDescriptors]; }

}  // namespace

std::uint64_t BytesReceived(int fd) { return fd < 0 ? 0 : CountOf(fd).load(std::memory_order_relaxed); }

}  // namespace kiln::server

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
extern "C" ssize_t __interceptor_recvmsg(int fd, msghdr* message, int flags);  // of the sanitizer, which sees what is written there
#endif

// In place of the C library's.
extern "C" __attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  const ssize_t got = __interceptor_recvmsg(fd, message, flags);
#else
  const ssize_t got = ::syscall(SYS_recvmsg, fd, message, flags);
#endif
  if (got > 0 && fd >= 0) kiln::server::CountOf(fd).fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
  return got;
}
