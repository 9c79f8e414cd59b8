// SPDX-License-Identifier: Apache-2.0
//
// grpc.health.v1.Health: whether kilnd takes calls, for balancers. gRPC brings such a service, but it reads whole messages of anybody; this one
// begins at the headers like all other methods, and answers those whom the gate knows.
//
// Threads. Any; who watches is told on the thread that changes the state.
#pragma once

#include <memory>
#include <set>
#include <string_view>

#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>

#include "cache/mutex.h"
#include "server/door/arriving_call.h"
#include "server/door/doorway.h"

namespace kiln::server {

// Shared by the services of all doors.
class HealthState {
 public:
  class Watcher {
   public:
    virtual void Tell(bool serving) = 0;

   protected:
    ~Watcher() = default;
  };

  void Set(bool serving);
  bool serving() const;
  void Add(Watcher& watcher);  // told at once how it is, and then whenever it changes
  void Remove(Watcher& watcher);

 private:
  mutable cache::Mutex mutex_;
  bool serving_ KILN_GUARDED_BY(mutex_) = true;
  std::set<Watcher*> watchers_ KILN_GUARDED_BY(mutex_);  // under which they are told
};

class HealthService final : public grpc::Service {
 public:
  HealthService(const Doorway& doorway, HealthState& state);

 private:
  using Exchange = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  Exchange* Begin(grpc::CallbackServerContext& context, bool watch);
  void Check(ArrivingCall& call, const grpc::ByteBuffer& request);
  void Watch(ArrivingCall& call, const grpc::ByteBuffer& request);

  const Doorway& doorway_;
  HealthState& state_;
};

}  // namespace kiln::server
