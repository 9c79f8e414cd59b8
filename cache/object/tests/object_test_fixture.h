// SPDX-License-Identifier: Apache-2.0
//
// For tests only: a tier on such a server.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/object/object_tier.h"
#include "cache/object/tests/object_test_server.h"
#include "cache/outside/packed_entry.h"
#include "cache/testing.h"

namespace kiln::cache::object::testing {

class RealClock final : public Clock {
 public:
  WallTime WallNow() const override { return std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now()); }
  SteadyTime SteadyNow() const override { return std::chrono::steady_clock::now(); }
};

inline bool Eventually(const std::function<bool()>& holds, std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  const RealClock clock;
  for (const SteadyTime until = clock.SteadyNow() + patience; clock.SteadyNow() < until;) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // between looks
  }
  return holds();
}

class ObjectTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kTimeout{100};
  static constexpr std::chrono::milliseconds kSlack{80};  // of a machine that does other things

  void Serve(TestServer::Options options) {
    server_.reset();
    server_ = std::make_unique<TestServer>(std::move(options));
  }
  ObjectTier::Options Options() {
    ObjectTier::Options options;
    options.store.address = {false, server_->at(), "/bucket/prefix", {}};
    options.store.timeout = kTimeout;
    options.store.on_event = [this](std::string_view state, std::string_view what) {
      MutexLock lock(mutex_);
      events_.emplace_back(state, what);
    };
    return options;
  }
  void Open(ObjectTier::Options options) {
    tier_.reset();
    tier_ = std::make_unique<ObjectTier>(std::move(options), clock_);
  }
  void Connect() { Connect(Options()); }
  void Connect(ObjectTier::Options options) {
    Open(std::move(options));
    ASSERT_TRUE(tier_->AwaitAvailable(std::chrono::seconds(10))) << Said();
  }
  void ConnectTo(TestServer::Options options) {
    tier_.reset();
    Serve(std::move(options));
    Connect();
  }
  static std::string PathOf(const Digest& key) { return "/bucket/prefix/" + key.ToHex(); }
  std::chrono::milliseconds Since(SteadyTime began) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.SteadyNow() - began);
  }
  // All that the store has told, a line each.
  std::string Said() {
    MutexLock lock(mutex_);
    std::string said;
    for (const auto& [state, what] : events_) said += state + ": " + what + "\n";
    return said;
  }
  bool SaysEventually(const std::string& what) {
    return Eventually([&] { return Said().contains(what); });
  }
  // Why nothing was found; nothing where something was, or was absent.
  std::optional<ErrorCode> WhyNot(const Digest& key) {
    const auto found = tier_->Get(key);
    return found ? std::nullopt : std::optional(found.error().code);
  }

  const RealClock clock_;
  Mutex mutex_;
  std::vector<std::pair<std::string, std::string>> events_ KILN_GUARDED_BY(mutex_);
  std::unique_ptr<TestServer> server_ = std::make_unique<TestServer>();
  std::unique_ptr<ObjectTier> tier_;
};

}  // namespace kiln::cache::object::testing
