// SPDX-License-Identifier: Apache-2.0
//
// kiln.v1.Kiln. Handlers run on gRPC's few threads: they look in memory, hand over, and return.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include "cache/clock.h"
#include "kiln/v1/service.pb.h"
#include "server/access/gate.h"
#include "server/access/quotas.h"
#include "server/config/request_limits.h"
#include "server/door/arriving_call.h"
#include "server/door/call.h"
#include "server/door/doorway.h"
#include "server/flow/compile_flow.h"
#include "server/flow/maintenance.h"
#include "server/flow/parts_stream.h"
#include "server/flow/rank_memory.h"
#include "server/flow/run_flow.h"
#include "server/flow/store_keeper.h"
#include "server/pool/worker_pool.h"
#include "server/queue/admission.h"
#include "server/queue/tenant_budget.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/self_description.h"
#include "server/tune/space_flow.h"
#include "server/tune/tune_flow.h"

namespace kiln::server {

// All methods take and return bytes: nothing is parsed before the caller is known and the memory that it takes (message_reader.h).
// Streaming methods begin at the headers; unary ones do if the doorway has a MessageRoom.
class KilnService final : public grpc::Service {
 public:
  struct Parts {
    CompileFlow& flow;
    RunFlow& runs;
    TuneFlow& tunings;
    const RankMemory& rankings;
    SpaceFlow& spaces;
    DevicePool& devices;
    Executor& executor;
    Executor& heavy;
    Maintenance& maintenance;
    StoreKeeper& store_keeper;
    cache::TieredCache& cache;
    Admission& admission;
    const WorkerPool& workers;
    Metrics& metrics;
    Quotas& quotas;
    SelfDescription& description;
    const cache::Clock& clock;
    bool accept_put;
    RequestLimits limits;
    std::size_t message_bytes;
    std::size_t manifest_memory_bytes;
    TenantBudget& manifests;
  };
  // Both outlive it.
  KilnService(const Parts& parts, const Doorway& doorway);

 private:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Exchange = grpc::ServerBidiReactor<Bytes, Bytes>;
  using UnaryHandler = void (KilnService::*)(Call& call, Caller caller, const Bytes& request);
  using StreamHandler = void (KilnService::*)(ArrivingCall& call, Caller caller, const Bytes& request);

  // `path` as a request names it, for good.
  void AddUnary(const char* path, UnaryHandler handler);
  void AddStream(const char* path, StreamHandler handler);
  template <class Handler>
  Exchange* Begin(Context& context, std::string_view method, Handler handler);
  // Whether the message is not too large; notes its size. Else the call is answered.
  bool Takes(Call& call, const Bytes& request) const;

  void Compile(Call& call, Caller caller, const Bytes& request);
  void Lookup(Call& call, Caller caller, const Bytes& request);
  void Fetch(Call& call, Caller caller, const Bytes& request);
  void Put(Call& call, Caller caller, const Bytes& request);
  void Stats(Call& call, Caller caller, const Bytes& request);
  void Capabilities(Call& call, Caller caller, const Bytes& request);
  void CacheVerify(Call& call, Caller caller, const Bytes& request);
  void CacheGc(Call& call, Caller caller, const Bytes& request);
  void CompileStream(ArrivingCall& call, Caller caller, const Bytes& request);
  void EnsureKernels(ArrivingCall& call, Caller caller, const Bytes& request);
  void Rank(ArrivingCall& call, Caller caller, const Bytes& request);
  void Watch(ArrivingCall& call, Caller caller, const Bytes& request);
  void CacheList(ArrivingCall& call, Caller caller, const Bytes& request);
  void CacheHot(ArrivingCall& call, Caller caller, const Bytes& request);
  void CacheExport(ArrivingCall& call, Caller caller, const Bytes& request);
  grpc::ServerReadReactor<Bytes>* CacheImport(Context& context, Bytes& response);
  Exchange* Run(Context& context);
  Exchange* Tune(Context& context);

  PartsStream::Parts PartsOf(ArrivingCall& call) const;
  void PutNow(const Caller& caller, const Bytes& request, CompileFlow::PutEnd done);
  void Describe(v1::StatsReply& reply) const;

  Confirmation ConfirmationOf(const Caller& caller, std::string_view method) const;

  template <class Reply>
  void Maintain(Call& call, std::function<std::expected<Reply, Failure>()> task);

  const Parts parts_;
  const Doorway& doorway_;
  int methods_ = 0;
  const cache::SteadyTime started_ = parts_.clock.SteadyNow();
};

}  // namespace kiln::server
