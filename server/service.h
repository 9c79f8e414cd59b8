// SPDX-License-Identifier: Apache-2.0
//
// kiln.v1.Kiln. Handlers run on gRPC's few threads: they look in memory, hand over, and return.
#pragma once

#include <chrono>
#include <functional>

#include <grpcpp/grpcpp.h>

#include "cache/clock.h"
#include "kiln/v1/service.grpc.pb.h"
#include "server/admission.h"
#include "server/compile_flow.h"
#include "server/gate.h"
#include "server/maintenance.h"
#include "server/metrics.h"
#include "server/quotas.h"
#include "server/request_limits.h"
#include "server/run_flow.h"
#include "server/self_description.h"
#include "server/store_keeper.h"
#include "server/tenant_budget.h"
#include "server/worker_pool.h"

namespace kiln::server {

// All take and give bytes: nothing is parsed before it is known who calls and what that takes (message_reader.h).
using KilnMethods = v1::Kiln::WithRawCallbackMethod_Compile<v1::Kiln::WithRawCallbackMethod_CompileStream<
    v1::Kiln::WithRawCallbackMethod_Lookup<v1::Kiln::WithRawCallbackMethod_Put<v1::Kiln::WithRawCallbackMethod_Stats<
        v1::Kiln::WithRawCallbackMethod_Capabilities<v1::Kiln::WithRawCallbackMethod_CacheList<
            v1::Kiln::WithRawCallbackMethod_CacheVerify<v1::Kiln::WithRawCallbackMethod_CacheGc<
                v1::Kiln::WithRawCallbackMethod_CacheExport<v1::Kiln::WithRawCallbackMethod_CacheImport<
                    v1::Kiln::WithRawCallbackMethod_EnsureKernels<v1::Kiln::WithRawCallbackMethod_Run<
                        v1::Kiln::Service>>>>>>>>>>>>>;

class KilnService final : public KilnMethods {
 public:
  struct Parts {
    CompileFlow& flow;
    RunFlow& runs;
    DevicePool& devices;
    Executor& executor;
    Executor& heavy;
    Maintenance& maintenance;
    StoreKeeper& store_keeper;
    cache::TieredCache& cache;
    Admission& admission;
    const WorkerPool& workers;
    Metrics& metrics;
    const Gate& gate;
    Quotas& quotas;
    SelfDescription& description;
    const cache::Clock& clock;
    bool accept_put;
    RequestLimits limits;
    std::size_t message_bytes;
    std::size_t manifest_memory_bytes;
  };
  explicit KilnService(Parts parts);

 private:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;
  using Stream = grpc::ServerWriteReactor<Bytes>;

  Unary* Compile(Context*, const Bytes*, Bytes*) override;
  Stream* CompileStream(Context*, const Bytes*) override;
  Unary* Lookup(Context*, const Bytes*, Bytes*) override;
  Stream* EnsureKernels(Context*, const Bytes*) override;
  Unary* Put(Context*, const Bytes*, Bytes*) override;
  Unary* Stats(Context*, const Bytes*, Bytes*) override;
  Unary* Capabilities(Context*, const Bytes*, Bytes*) override;
  Stream* CacheList(Context*, const Bytes*) override;
  Unary* CacheVerify(Context*, const Bytes*, Bytes*) override;
  Unary* CacheGc(Context*, const Bytes*, Bytes*) override;
  Stream* CacheExport(Context*, const Bytes*) override;
  grpc::ServerReadReactor<Bytes>* CacheImport(Context*, Bytes*) override;
  grpc::ServerBidiReactor<Bytes, Bytes>* Run(Context*) override;

  // Who calls, if they may, with a message that is not too large (null: a stream of them follows); noted for the call's log line.
  std::expected<Caller, Failure> Enter(Context& context, std::string_view method, const Bytes* message) const;

  void PutNow(const Caller& caller, const Bytes& request, CompileFlow::PutEnd done);
  void Describe(v1::StatsReply& reply) const;

  Confirmation ConfirmationOf(const Caller& caller, std::string_view method) const;

  template <class Reply>
  Unary* Maintain(Context* context, Bytes* response, std::function<std::expected<Reply, Failure>()> task);

  const Parts parts_;
  TenantBudget manifests_{parts_.manifest_memory_bytes};
  const cache::SteadyTime started_ = parts_.clock.SteadyNow();
};

}  // namespace kiln::server
