// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace kiln::server::testing {

// So many threads, each with one call after the other, until it is told to stop.
class Callers {
 public:
  using Body = std::function<void(unsigned caller, unsigned call)>;
  Callers(unsigned count, Body body) {
    for (unsigned caller = 0; caller < count; ++caller) {
      threads_.emplace_back([this, caller, body] {
        for (unsigned call = 0; !stop_; ++call) body(caller, call);
      });
    }
  }
  ~Callers() { Stop(); }
  void Stop() {
    stop_ = true;
    threads_.clear();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace kiln::server::testing
