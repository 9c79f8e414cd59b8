// SPDX-License-Identifier: Apache-2.0
//
// Who runs where. Callers that take the processors of kilnd measure themselves: in a cluster they sit on other hosts. So what makes load
// keeps to one half of this host's processors, and whoever answers it, kilnd with its workers or the peer, to the other half.
#pragma once

#include <sched.h>

#include <string>

namespace kiln::bench {

// Of the processors that this process may use; where there is one alone, both halves are that one.
struct Halves {
  cpu_set_t servers;
  cpu_set_t callers;

  static Halves Of(const cpu_set_t& all);
  static Halves OfThisProcess();
  std::string Text() const;  // "kilnd on processor 0, callers on processor 1"
};

std::string Text(const cpu_set_t& processors);  // "processor 0,1"

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

}  // namespace kiln::bench
