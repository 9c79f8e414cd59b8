// SPDX-License-Identifier: Apache-2.0
//
// What kilnd says of itself to Capabilities. Each new client asks before its first artifact, for the signing key.
//
// Threads. One, which asks for what may take long: the passes from the compile worker, the version from ptxas, the devices from their
// drivers. What it learnt last is answered from memory, on any thread; who wants to know of the devices joins the asking that is under
// way, however many do, and is told by that thread, or joins the next where that one ends before the drivers have answered.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cache/mutex.h"
#include "kiln/v1/service.pb.h"

namespace kiln::server {

class SelfDescription {
 public:
  struct Sources {
    std::function<std::vector<std::string>()> passes;
    std::function<std::string()> ptxas;
    // Replaces the reply's devices, and why there are no GPUs, by those that are known after so long at most. False: there may be more.
    std::function<bool(v1::CapabilitiesReply&, std::chrono::seconds)> devices;
  };
  using Done = std::function<void(const v1::CapabilitiesReply&)>;

  // `fixed`: what needs no asking.
  SelfDescription(v1::CapabilitiesReply fixed, Sources sources);
  ~SelfDescription();  // tells who still waits

  // As far as it is known. Does not wait.
  v1::CapabilitiesReply Known();

  // Once all has been asked for again. `done` must not block.
  void Ask(Done done);

 private:
  void Run();
  bool Look();

  const Sources sources_;
  cache::Mutex mutex_;
  cache::CondVar changed_;
  v1::CapabilitiesReply known_ KILN_GUARDED_BY(mutex_);
  std::vector<Done> waiting_ KILN_GUARDED_BY(mutex_);
  bool asked_ KILN_GUARDED_BY(mutex_) = true;  // by nobody yet: so that the first to come need not wait
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kiln::server
