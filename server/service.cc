// SPDX-License-Identifier: Apache-2.0
#include "server/service.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "server/call_watch.h"
#include "server/ensure.h"
#include "server/process_usage.h"
#include "server/reactors.h"
#include "server/refusals.h"
#include "server/run_reactor.h"
#include "server/status_map.h"
#include "server/wire.h"

namespace kiln::server {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

grpc::Status Refuse(grpc::CallbackServerContext* context, const Failure& failure) {
  RecordOf(*context).reason = ReasonOf(failure.kind);
  return ToStatus(failure, DetailsLimit(*context));
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Failure& failure) {
  return Answer(context, Refuse(context, failure));
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Outcome& outcome, grpc::ByteBuffer& response) {
  if (!outcome) return Answer(context, outcome.error());
  NoteReply(*context, *outcome);
  response = ToBuffer(*outcome);
  return Answer(context, grpc::Status::OK);
}

void Describe(const cache::TieredCache::TierReport& from, v1::TierStats& to) {
  to.set_name(std::string(from.name));
  to.set_entries(from.stats.entries);
  to.set_bytes(from.stats.bytes);
  to.set_capacity_bytes(from.stats.capacity);
  to.set_hits(from.stats.hits);
  to.set_misses(from.stats.misses);
  to.set_evictions(from.stats.evictions);
  to.set_corrupt(from.stats.corrupt);
  to.set_state(!from.enabled ? "disabled" : from.stats.read_only ? "read-only" : "ok");
}

}  // namespace

KilnService::KilnService(Parts parts) : parts_(std::move(parts)) {}

std::expected<Caller, Failure> KilnService::Enter(Context& context, std::string_view method) const {
  auto caller = parts_.gate.Enter(context, method);
  NoteCaller(context, caller);
  return caller;
}

Confirmation KilnService::ConfirmationOf(const Caller& caller, std::string_view method) const {
  return [this, caller, method] { return parts_.gate.Confirm(caller, method); };
}

grpc::ServerUnaryReactor* KilnService::Compile(Context* context, const Bytes* request, Bytes* response) {
  RecordOf(*context).bytes_in = request->Length();
  auto caller = Enter(*context, "Compile");
  if (!caller) return Answer(context, caller.error());
  if (request->Length() > parts_.limits.request_bytes) return Answer(context, RequestTooLarge(request->Length(), parts_.limits));
  const cache::Digest digest = DigestOf("Compile", *request);
  if (const auto hit = parts_.flow.FindHot(digest, caller->tenant)) return Answer(context, *hit, *response);
  std::string bytes = ToString(*request);
  if (const auto refused = parts_.flow.RefusesUnread(digest, bytes, *caller)) return Answer(context, *refused);
  return new CompileReactor(*context, parts_.flow,
                            {.id = RequestIdOf(*context),
                             .caller = std::move(*caller),
                             .bytes = std::move(bytes),
                             .digest = digest,
                             .accepted = WasAccepted(*context),
                             .notes = NotesOf(*context)},
                            *response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KilnService::CompileStream(Context* context, const Bytes* request) {
  RecordOf(*context).bytes_in = request->Length();
  auto caller = Enter(*context, "CompileStream");
  if (!caller) return new RefusedStream<Bytes>(ToStatus(caller.error()));
  if (request->Length() > parts_.limits.request_bytes) return new RefusedStream<Bytes>(Refuse(context, RequestTooLarge(request->Length(), parts_.limits)));
  const cache::Digest digest = DigestOf("Compile", *request);
  std::string bytes = ToString(*request);
  if (const auto refused = parts_.flow.RefusesUnread(digest, bytes, *caller)) return new RefusedStream<Bytes>(Refuse(context, *refused));
  return new ProgressReactor(
      *context, parts_.flow,
      {.id = RequestIdOf(*context),
       .caller = std::move(*caller),
       .bytes = std::move(bytes),
       .digest = digest,
       .accepted = WasAccepted(*context),
       .notes = NotesOf(*context)});
}

grpc::ServerUnaryReactor* KilnService::Lookup(Context* context, const Bytes* request, Bytes* response) {
  RecordOf(*context).bytes_in = request->Length();
  auto caller = Enter(*context, "Lookup");
  if (!caller) return Answer(context, caller.error());
  if (request->Length() > parts_.limits.request_bytes) return Answer(context, RequestTooLarge(request->Length(), parts_.limits));
  const cache::Digest digest = DigestOf("Lookup", *request);
  if (const auto hit = parts_.flow.FindHot(digest, caller->tenant)) return Answer(context, *hit, *response);
  v1::LookupRequest lookup;
  const bool parsed = lookup.ParseFromString(ToString(*request));
  if (parsed && lookup.has_request()) {
    return new CompileReactor(*context, parts_.flow,
                              {.id = RequestIdOf(*context),
                               .caller = std::move(*caller),
                               .bytes = lookup.request().SerializeAsString(),
                               .digest = digest,
                               .lookup_only = true,
                               .notes = NotesOf(*context)},
                              *response);
  }
  const auto key = cache::Digest::FromBytes(lookup.key());
  if (!parsed || !key) {
    return Answer(context, Failure{.kind = Failure::Kind::kMalformed,
                                   .message = "Lookup takes a request, or a key of 32 bytes as in CompileReply.key"});
  }
  if (const auto hit = parts_.flow.FindHotKey(*key, caller->tenant)) return Answer(context, *hit, *response);
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return Answer(context, in_flight.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  parts_.flow.Lookup(*key, caller->tenant, [context, reactor, response, notes = NotesOf(*context),
                                            counted = std::optional(std::move(*in_flight))](Outcome outcome) mutable {
    notes->Mark("cache");
    counted.reset();  // before the client may call again
    NoteOutcome(*context, outcome);
    if (outcome) *response = ToBuffer(*outcome);
    reactor->Finish(outcome ? grpc::Status::OK : ToStatus(outcome.error()));
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::EnsureProgress>* KilnService::EnsureKernels(Context* context, const v1::EnsureRequest* request) {
  auto caller = Enter(*context, "EnsureKernels");
  if (!caller) return new RefusedStream<v1::EnsureProgress>(ToStatus(caller.error()));
  auto memory = manifests_.Take(caller->tenant, Manifest::MemoryOf(*request));
  if (!memory) return new RefusedStream<v1::EnsureProgress>(Refuse(context, NoMemoryForManifest(caller->tenant, parts_.manifest_memory_bytes)));
  return new EnsureReactor({parts_.flow, parts_.executor, parts_.workers.workers(), parts_.limits, parts_.gate, WasAccepted(*context), NotesOf(*context)},
                           std::move(*caller), std::move(*memory), *request);
}

grpc::ServerUnaryReactor* KilnService::Put(Context* context, const v1::PutRequest* request, v1::PutReply* reply) {
  const auto caller = Enter(*context, "Put");
  if (!caller) return Answer(context, caller.error());
  if (!parts_.accept_put) {
    return Answer(context, Failure{.kind = Failure::Kind::kRefused,
                                   .message = "this kilnd takes no results from others; start it with --accept-put=yes"});
  }
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return Answer(context, in_flight.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Executor::Task task = [this, context, reactor, request, reply, caller = *caller, counted = std::optional(std::move(*in_flight))]() mutable {
    const auto key = parts_.flow.Put(caller, *request);
    counted.reset();  // before the client may call again
    if (key) reply->set_key(key->bytes.data(), key->bytes.size());
    reactor->Finish(key ? grpc::Status::OK : Refuse(context, key.error()));
  };
  if (!parts_.executor.Post(task)) {
    task = nullptr;  // with what it counts
    reactor->Finish(Refuse(context, ExecutorFull()));
  }
  return reactor;
}

grpc::ServerUnaryReactor* KilnService::Stats(Context* context, const v1::StatsRequest*, v1::StatsReply* reply) {
  if (const auto caller = Enter(*context, "Stats"); !caller) return Answer(context, caller.error());
  const Telemetry& telemetry = parts_.telemetry;
  reply->set_uptime_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count());
  for (const auto& tier : parts_.cache.Report()) Describe(tier, *reply->add_tiers());
  reply->set_requests(telemetry.requests);
  reply->set_hits(telemetry.hits);
  reply->set_compiles(telemetry.compiles);
  reply->set_joined(telemetry.joined);
  reply->set_refused(telemetry.refused);
  reply->set_failed(telemetry.failed);
  reply->set_worker_crashes(telemetry.worker_crashes);
  reply->set_workers(parts_.workers.workers());
  reply->set_workers_busy(parts_.workers.busy());
  reply->set_queued(static_cast<std::uint32_t>(parts_.admission.queued()));
  reply->set_compile_p50_ms(telemetry.CompileTimes().p50);
  reply->set_compile_p99_ms(telemetry.CompileTimes().p99);
  reply->set_flights(static_cast<std::uint32_t>(parts_.flow.flights()));
  reply->set_queue_capacity(static_cast<std::uint32_t>(parts_.admission.capacity()));
  for (const auto& tier : parts_.cache.Report()) reply->set_wal_bytes(reply->wal_bytes() + tier.stats.wal_bytes);
  reply->set_memory_bytes(ReadProcessUsage().resident_bytes);
  parts_.metrics.Describe(*reply);
  reply->set_state(parts_.flow.draining() ? "draining" : "serving");
  for (v1::DeviceStats& device : parts_.devices.Stats()) *reply->add_devices() = std::move(device);
  return Answer(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* KilnService::Capabilities(Context* context, const v1::CapabilitiesRequest* request,
                                                    v1::CapabilitiesReply* reply) {
  if (const auto caller = Enter(*context, "Capabilities"); !caller) return Answer(context, caller.error());
  if (request->at_once()) {
    *reply = parts_.description.Known();
    return Answer(context, grpc::Status::OK);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  parts_.description.Ask([reactor, reply](const v1::CapabilitiesReply& known) {
    *reply = known;
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::CacheEntry>* KilnService::CacheList(Context* context, const v1::CacheListRequest* request) {
  const auto caller = Enter(*context, "CacheList");
  if (!caller) return new RefusedStream<v1::CacheEntry>(ToStatus(caller.error()));
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return new RefusedStream<v1::CacheEntry>(Refuse(context, in_flight.error()));
  return new ListReactor(parts_.maintenance, *request, ConfirmationOf(*caller, "CacheList"), std::move(*in_flight));
}

grpc::ServerUnaryReactor* KilnService::CacheVerify(Context* context, const v1::CacheVerifyRequest*,
                                                   v1::CacheVerifyReply* reply) {
  return Maintain<v1::CacheVerifyReply>(context, "CacheVerify", reply, [this] { return parts_.maintenance.Verify(); });
}

grpc::ServerUnaryReactor* KilnService::CacheGc(Context* context, const v1::CacheGcRequest* request,
                                               v1::CacheGcReply* reply) {
  return Maintain<v1::CacheGcReply>(
      context, "CacheGc", reply, [this, target = request->target_bytes()] { return parts_.maintenance.Gc(target); });
}

grpc::ServerWriteReactor<v1::CacheChunk>* KilnService::CacheExport(Context* context, const v1::CacheExportRequest* request) {
  const auto caller = Enter(*context, "CacheExport");
  if (!caller) return new RefusedStream<v1::CacheChunk>(ToStatus(caller.error()));
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return new RefusedStream<v1::CacheChunk>(Refuse(context, in_flight.error()));
  return new ExportReactor(parts_.maintenance, *request, caller->tenant, ConfirmationOf(*caller, "CacheExport"), std::move(*in_flight));
}

grpc::ServerReadReactor<v1::CacheChunk>* KilnService::CacheImport(Context* context, v1::CacheImportReply* reply) {
  const auto caller = Enter(*context, "CacheImport");
  if (!caller) return new RefusedUpload<v1::CacheChunk>(ToStatus(caller.error()));
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return new RefusedUpload<v1::CacheChunk>(Refuse(context, in_flight.error()));
  return new ImportReactor(*context, parts_.maintenance, parts_.store_keeper, *reply, ConfirmationOf(*caller, "CacheImport"), std::move(*in_flight));
}

grpc::ServerBidiReactor<v1::RunRequest, v1::RunReply>* KilnService::Run(Context* context) {
  auto caller = Enter(*context, "Run");
  if (!caller) return new RefusedExchange<v1::RunRequest, v1::RunReply>(ToStatus(caller.error()));
  return new RunReactor(*context, parts_.runs, std::move(*caller));
}

template <class Reply>
grpc::ServerUnaryReactor* KilnService::Maintain(Context* context, std::string_view method, Reply* reply,
                                                std::function<std::expected<Reply, Failure>()> task) {
  if (const auto caller = Enter(*context, method); !caller) return Answer(context, caller.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool posted = parts_.maintenance.Post([context, reactor, reply, task = std::move(task)] {
    auto result = task();
    if (result) *reply = std::move(*result);
    reactor->Finish(result ? grpc::Status::OK : Refuse(context, result.error()));
  });
  if (!posted) reactor->Finish(Refuse(context, ExecutorFull()));
  return reactor;
}

}  // namespace kiln::server
