// SPDX-License-Identifier: Apache-2.0
//
// kiln.v1.Kiln. Handlers run on gRPC's few threads: they look in memory, hand over, and return.
#pragma once

#include <chrono>
#include <functional>

#include <grpcpp/grpcpp.h>

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

// The methods on the hot path take and give bytes; the others messages.
using KilnMethods = v1::Kiln::WithRawCallbackMethod_Compile<v1::Kiln::WithRawCallbackMethod_CompileStream<
    v1::Kiln::WithRawCallbackMethod_Lookup<v1::Kiln::WithCallbackMethod_Put<v1::Kiln::WithCallbackMethod_Stats<
        v1::Kiln::WithCallbackMethod_Capabilities<v1::Kiln::WithCallbackMethod_CacheList<
            v1::Kiln::WithCallbackMethod_CacheVerify<v1::Kiln::WithCallbackMethod_CacheGc<
                v1::Kiln::WithCallbackMethod_CacheExport<v1::Kiln::WithCallbackMethod_CacheImport<
                    v1::Kiln::WithCallbackMethod_EnsureKernels<v1::Kiln::WithCallbackMethod_Run<
                        v1::Kiln::Service>>>>>>>>>>>>>;

class KilnService final : public KilnMethods {
 public:
  struct Parts {
    CompileFlow& flow;
    RunFlow& runs;
    DevicePool& devices;
    Executor& executor;
    Maintenance& maintenance;
    StoreKeeper& store_keeper;
    cache::TieredCache& cache;
    Admission& admission;
    const WorkerPool& workers;
    const Telemetry& telemetry;
    const Metrics& metrics;
    const Gate& gate;
    Quotas& quotas;
    SelfDescription& description;
    bool accept_put;
    RequestLimits limits;
    std::size_t manifest_memory_bytes;
  };
  explicit KilnService(Parts parts);

 private:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;

  Unary* Compile(Context*, const Bytes*, Bytes*) override;
  grpc::ServerWriteReactor<Bytes>* CompileStream(Context*, const Bytes*) override;
  Unary* Lookup(Context*, const Bytes*, Bytes*) override;
  grpc::ServerWriteReactor<v1::EnsureProgress>* EnsureKernels(Context*, const v1::EnsureRequest*) override;
  Unary* Put(Context*, const v1::PutRequest*, v1::PutReply*) override;
  Unary* Stats(Context*, const v1::StatsRequest*, v1::StatsReply*) override;
  Unary* Capabilities(Context*, const v1::CapabilitiesRequest*, v1::CapabilitiesReply*) override;
  grpc::ServerWriteReactor<v1::CacheEntry>* CacheList(Context*, const v1::CacheListRequest*) override;
  Unary* CacheVerify(Context*, const v1::CacheVerifyRequest*, v1::CacheVerifyReply*) override;
  Unary* CacheGc(Context*, const v1::CacheGcRequest*, v1::CacheGcReply*) override;
  grpc::ServerWriteReactor<v1::CacheChunk>* CacheExport(Context*, const v1::CacheExportRequest*) override;
  grpc::ServerReadReactor<v1::CacheChunk>* CacheImport(Context*, v1::CacheImportReply*) override;
  grpc::ServerBidiReactor<v1::RunRequest, v1::RunReply>* Run(Context*) override;

  // Who calls, if they may; noted for the call's log line.
  std::expected<Caller, Failure> Enter(Context& context, std::string_view method) const;

  Confirmation ConfirmationOf(const Caller& caller, std::string_view method) const;

  template <class Reply>
  Unary* Maintain(Context* context, std::string_view method, Reply* reply, std::function<std::expected<Reply, Failure>()> task);

  const Parts parts_;
  TenantBudget manifests_{parts_.manifest_memory_bytes};
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace kiln::server
