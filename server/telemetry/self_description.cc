// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/self_description.h"

#include <utility>

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kDriversPatience{30};  // with many GPUs; one that hangs takes longer

}  // namespace

SelfDescription::SelfDescription(v1::CapabilitiesReply fixed, Sources sources) : sources_(std::move(sources)), known_(std::move(fixed)) {
  sources_.devices(known_, std::chrono::seconds(0));
  thread_ = std::thread([this] { Run(); });
}

SelfDescription::~SelfDescription() {
  {
    cache::MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

v1::CapabilitiesReply SelfDescription::Known() {
  cache::MutexLock lock(mutex_);
  asked_ = true;
  changed_.NotifyAll();
  return known_;
}

void SelfDescription::Ask(Done done) {
  cache::MutexLock lock(mutex_);
  waiting_.push_back(std::move(done));
  changed_.NotifyAll();
}

void SelfDescription::Run() {
  cache::MutexLock lock(mutex_);
  while (!stopping_) {
    changed_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return stopping_ || asked_ || !waiting_.empty(); });
    std::vector<Done> told = std::exchange(waiting_, {});
    lock.Unlock();
    const bool whole = Look();
    lock.Lock();
    asked_ = false;
    // A caller that joined an asking under way has waited for only part of the time.
    if (whole || stopping_) {
      for (Done& done : std::exchange(waiting_, {})) told.push_back(std::move(done));
    }
    const v1::CapabilitiesReply reply = known_;
    lock.Unlock();
    for (const Done& done : told) done(reply);
    lock.Lock();
  }
}

// What each source says holds from then on, whatever the next one takes. False: not all devices are known yet.
bool SelfDescription::Look() {
  const auto learn = [this](auto change) {
    cache::MutexLock lock(mutex_);
    change(known_);
  };
  // Before the passes: whoever is told of these is told of the ptxas, or that there is none.
  const std::string ptxas = sources_.ptxas();
  learn([&](v1::CapabilitiesReply& reply) { reply.set_ptxas(ptxas); });
  const bool has_passes = [&] {
    cache::MutexLock lock(mutex_);
    return known_.passes_size() > 0;
  }();
  if (!has_passes) {
    const std::vector<std::string> passes = sources_.passes();
    learn([&](v1::CapabilitiesReply& reply) { reply.mutable_passes()->Assign(passes.begin(), passes.end()); });
  }
  v1::CapabilitiesReply devices;
  const bool whole = sources_.devices(devices, kDriversPatience);
  learn([&](v1::CapabilitiesReply& reply) {
    reply.mutable_devices()->Swap(devices.mutable_devices());
    reply.mutable_gpu_problems()->Swap(devices.mutable_gpu_problems());
  });
  return whole;
}

}  // namespace kiln::server
