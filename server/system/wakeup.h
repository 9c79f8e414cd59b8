// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "clients/common/unique_fd.h"

namespace kiln::server {

// Ends a wait of a Channel's from another thread.
class Wakeup {
 public:
  Wakeup() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void Set() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  }
  void Clear() {
    std::uint64_t old = 0;
    [[maybe_unused]] const ssize_t drained = ::read(fd_.get(), &old, sizeof old);
  }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace kiln::server
