// SPDX-License-Identifier: Apache-2.0
//
// What gRPC has to say, as lines of kilnd's log (`event=grpc`) with its level, instead of lines of its own form on stderr. Strangers can make it
// say the same over and over, so that each of its places has a few lines a second, like a peer of the audit log's.
//
// Threads. gRPC's, any of them; after the end of this they write to stderr again. There is one in a process at one time.
#pragma once

#include "cache/clock.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

class GrpcLines {
 public:
  GrpcLines(const Telemetry& telemetry, const cache::Clock& clock);
  ~GrpcLines();
  GrpcLines(const GrpcLines&) = delete;
  GrpcLines& operator=(const GrpcLines&) = delete;
};

}  // namespace kiln::server
