// SPDX-License-Identifier: Apache-2.0
//
// Who runs where. Callers that take the processors of kilnd measure themselves: in a cluster they sit on other hosts. So what makes load
// keeps to some of this host's processors, and whoever answers it, kilnd with its workers or the peer, to others.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace kiln::bench {

struct Split {
  cpu_set_t workers;
  cpu_set_t kilnd;  // and the peer
  cpu_set_t callers;

  // Of the processors that this process may use: the workers and kilnd share the first half, or all where there is one alone.
  static Split Halves();
  // "0-3:4,5:6-15": of the workers, of kilnd, of the callers. Nothing where that is not what `text` says.
  static std::optional<Split> Parse(std::string_view text);
  std::string Text() const;  // "workers on 0, kilnd on 0, callers on 1"
};

std::string Text(const cpu_set_t& processors);  // "0-3,8"

// For as long as it lives, the calling thread and what it starts run there.
class OnProcessors {
 public:
  explicit OnProcessors(const cpu_set_t& processors);
  ~OnProcessors();
  OnProcessors(const OnProcessors&) = delete;
  OnProcessors& operator=(const OnProcessors&) = delete;

 private:
  cpu_set_t before_;
};

// Every thread of a process, not what it has started.
void Move(pid_t process, const cpu_set_t& processors);

}  // namespace kiln::bench
