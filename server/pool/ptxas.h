// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cache/clock.h"
#include "cache/mutex.h"

namespace kiln::server {

// The ptxas that makes cubins. Asked for its version when somebody first needs to know, again when the file has been replaced, and while it
// has none to tell, at most once a second: workers may start one that kilnd could not. One that does not end in time has none.
//
// Threads. Any. One thread asks, and the others wait for it, because the version of an earlier file is no answer. If the file is the same
// and had no version before, they do not wait and take it that it still has none.
class Ptxas {
 public:
  Ptxas(std::filesystem::path path, const cache::Clock& clock, std::chrono::milliseconds patience = std::chrono::seconds(10))
      : path_(std::move(path)), clock_(clock), patience_(patience) {}

  // The line that names the build ("Build cuda_12.8.r12.8/compiler.35404655_0"); empty where there is no working ptxas.
  std::string Version();

 private:
  using Identity = std::array<std::int64_t, 5>;  // of the file: its inode, size and times
  Identity Look() const;

  const std::filesystem::path path_;
  const cache::Clock& clock_;
  const std::chrono::milliseconds patience_;
  cache::Mutex mutex_;
  cache::CondVar answered_;
  std::optional<Identity> asked_ KILN_GUARDED_BY(mutex_);
  bool asking_ KILN_GUARDED_BY(mutex_) = false;
  cache::SteadyTime last_try_ KILN_GUARDED_BY(mutex_){};  // the end of it
  std::string version_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::server
