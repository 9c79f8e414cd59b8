// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {

using ExpiringCall = std::function<grpc::Status(grpc::ClientContext&)>;

// A call whose deadline ends while it is where the test wants it: `there(before)` tells so, by what has changed since the Stats before the
// call. It is tried again with more time on a machine that takes too long for that, once `free`. The daemon is done with it as well then, unless it
// is `held`. Deadlines are gRPC's, on both sides, and so run in real time. A call that is to read nothing until its deadline calls Finish at once:
// that waits for the call's end and reads nothing.
inline void ExpectExpires(
    Daemon& daemon, const std::string& method, const ExpiringCall& call, const std::function<bool(const v1::StatsReply& before)>& there,
    bool held = false, const std::function<bool()>& free = [] { return true; }) {
  const auto over = [&] { return daemon.LinesWith({"event=request ", "method=\"" + method + "\""}); };
  for (milliseconds patience(400); patience < std::chrono::minutes(2); patience *= 2) {
    ASSERT_TRUE(daemon.Eventually(free)) << method << " leaves something behind";
    const v1::StatsReply before = daemon.Stats();
    const std::size_t over_before = over();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    auto end = std::async(std::launch::async, [&] { return call(context); });
    bool arrived = false;
    while (end.wait_for(milliseconds(5)) != std::future_status::ready) arrived = arrived || there(before);
    arrived = arrived || there(before);
    const grpc::Status status = end.get();
    if (status.ok()) continue;  // it went through
    ASSERT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method << ": " << status.error_message();
    const bool done = held || daemon.Eventually([&] {
      daemon.Stats();  // gRPC's client sends a call's end while another is under way, else up to five seconds later
      return over() > over_before;
    });
    if (!arrived) continue;
    EXPECT_TRUE(done) << method << " goes on for nobody";
    return;
  }
  ADD_FAILURE() << method << " never came there";
}

}  // namespace kiln::server::testing
