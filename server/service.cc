// SPDX-License-Identifier: Apache-2.0
#include "server/service.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "server/call_watch.h"
#include "server/ensure.h"
#include "server/message_reader.h"
#include "server/process_usage.h"
#include "server/reactors.h"
#include "server/refusals.h"
#include "server/request_key.h"
#include "server/run_reactor.h"
#include "server/status_map.h"
#include "server/wire.h"

namespace kiln::server {
namespace {

constexpr std::size_t kOfARequest = 512;     // of a manifest, besides its bytes: a short one takes a multiple of these
constexpr std::size_t kOfAKey = 96;
constexpr std::size_t kCopiesOfAResult = 2;  // while it is put: as a message and sealed

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// By which clients tell what kilnd says from what gRPC says where there is none. Hits do without.
void TellId(grpc::CallbackServerContext& context) { context.AddTrailingMetadata("kiln-request-id", RequestIdOf(context)); }

grpc::Status Refuse(grpc::CallbackServerContext* context, const Failure& failure) {
  RecordOf(*context).reason = ReasonOf(failure.kind);
  TellId(*context);
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

void DescribeTier(const cache::TieredCache::TierReport& from, v1::TierStats& to) {
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

std::expected<Caller, Failure> KilnService::Enter(Context& context, std::string_view method, const Bytes* message) const {
  CallRecord& record = RecordOf(context);
  if (message != nullptr) record.bytes_in = message->Length();
  auto caller = parts_.gate.Enter(context, method);
  NoteCaller(context, caller);
  if (!caller || message == nullptr || message->Length() <= parts_.message_bytes) return caller;
  Failure too_large = MessageTooLarge(message->Length(), parts_.message_bytes);
  record.reason = ReasonOf(too_large.kind);
  return std::unexpected(std::move(too_large));
}

Confirmation KilnService::ConfirmationOf(const Caller& caller, std::string_view method) const {
  return [this, caller, method] { return parts_.gate.Confirm(caller, method); };
}

grpc::ServerUnaryReactor* KilnService::Compile(Context* context, const Bytes* request, Bytes* response) {
  auto caller = Enter(*context, "Compile", request);
  if (!caller) return Answer(context, caller.error());
  if (request->Length() > parts_.limits.request_bytes) return Answer(context, RequestTooLarge(request->Length(), parts_.limits));
  const cache::Digest digest = DigestOf("Compile", *request);
  const auto wants_durable = [request] { return SettingsOf(ToString(*request)).durable; };
  if (const auto hit = parts_.flow.FindHot(digest, caller->tenant, wants_durable)) return Answer(context, *hit, *response);
  std::string bytes = TakeBytes(*request);
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
  auto caller = Enter(*context, "CompileStream", request);
  if (!caller) return new RefusedStream<Bytes>(ToStatus(caller.error()));
  const std::size_t length = request->Length();
  if (length > parts_.limits.request_bytes) return new RefusedStream<Bytes>(Refuse(context, RequestTooLarge(length, parts_.limits)));
  const cache::Digest digest = DigestOf("Compile", *request);
  std::string bytes = TakeBytes(*request);
  if (const auto refused = parts_.flow.RefusesUnread(digest, bytes, *caller)) return new RefusedStream<Bytes>(Refuse(context, *refused));
  auto confirm = ConfirmationOf(*caller, "CompileStream");
  return new ProgressReactor(
      *context, parts_.flow, std::move(confirm),
      {.id = RequestIdOf(*context),
       .caller = std::move(*caller),
       .bytes = std::move(bytes),
       .digest = digest,
       .accepted = WasAccepted(*context),
       .notes = NotesOf(*context)});
}

grpc::ServerUnaryReactor* KilnService::Lookup(Context* context, const Bytes* request, Bytes* response) {
  auto caller = Enter(*context, "Lookup", request);
  if (!caller) return Answer(context, caller.error());
  if (request->Length() > parts_.limits.request_bytes) return Answer(context, RequestTooLarge(request->Length(), parts_.limits));
  const cache::Digest digest = DigestOf("Lookup", *request);
  if (const auto hit = parts_.flow.FindHot(digest, caller->tenant, {})) return Answer(context, *hit, *response);
  v1::LookupRequest lookup;
  if (const auto read = ReadMessage(*request, lookup); !read) return Answer(context, read.error());
  if (lookup.has_request()) {
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
  if (!key) {
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

grpc::ServerWriteReactor<grpc::ByteBuffer>* KilnService::EnsureKernels(Context* context, const Bytes* request) {
  auto caller = Enter(*context, "EnsureKernels", request);
  if (!caller) return new RefusedStream<Bytes>(ToStatus(caller.error()));
  const auto refuse = [context](const Failure& failure) { return new RefusedStream<Bytes>(Refuse(context, failure)); };
  const Manifest::Size size = Manifest::Measure(*request, parts_.limits);
  if (const auto problem = Manifest::ProblemOf(size, parts_.limits)) return refuse(*problem);
  if (size.memory > parts_.manifest_memory_bytes) return refuse(ManifestTooLarge(size.memory, parts_.manifest_memory_bytes));
  auto memory = manifests_.Take(caller->tenant, size.memory);
  if (!memory) {
    ++parts_.metrics.counts.refused;
    return refuse(NoMemoryForManifest(caller->tenant, parts_.manifest_memory_bytes));
  }
  v1::EnsureRequest manifest;
  if (const auto read = ReadMessage(*request, manifest, kOfARequest * size.requests); !read) return refuse(read.error());
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return refuse(in_flight.error());
  TellId(*context);
  return new EnsureReactor({parts_.flow, parts_.executor, parts_.workers.workers(), parts_.limits, parts_.gate, WasAccepted(*context),
                            NotesOf(*context), parts_.clock},
                           std::move(*caller), std::move(*memory), std::move(*in_flight), std::move(manifest));
}

grpc::ServerUnaryReactor* KilnService::Put(Context* context, const Bytes* request, Bytes* response) {
  const auto caller = Enter(*context, "Put", request);
  if (!caller) return Answer(context, caller.error());
  if (!parts_.accept_put) {
    return Answer(context, Failure{.kind = Failure::Kind::kRefused,
                                   .message = "this kilnd takes no results from others; start it with --accept-put=yes"});
  }
  auto memory = parts_.flow.Hold(caller->tenant, kCopiesOfAResult * request->Length());
  if (!memory) return Answer(context, memory.error());
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return Answer(context, in_flight.error());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Executor::Task task = [this, context, reactor, request, response, caller = *caller, memory = std::optional(std::move(*memory)),
                         counted = std::optional(std::move(*in_flight))]() mutable {
    PutNow(caller, *request, [context, reactor, response, memory = std::move(memory),
                              counted = std::move(counted)](std::expected<cache::Digest, Failure> key) mutable {
      memory.reset();
      counted.reset();  // before the client may call again
      v1::PutReply reply;
      if (key) reply.set_key(key->bytes.data(), key->bytes.size());
      if (key) *response = ToBuffer(reply);
      reactor->Finish(key ? grpc::Status::OK : Refuse(context, key.error()));
    });
  };
  if (!parts_.flow.Post(parts_.heavy, caller->tenant, std::move(task))) {
    reactor->Finish(Refuse(context, ExecutorFull(caller->tenant)));
  }
  return reactor;
}

void KilnService::PutNow(const Caller& caller, const Bytes& request, CompileFlow::PutEnd done) {
  v1::PutRequest put;
  if (auto read = ReadMessage(request, put); !read) return done(std::unexpected(std::move(read.error())));
  parts_.flow.Put(caller, std::move(put), std::move(done));
}

grpc::ServerUnaryReactor* KilnService::Stats(Context* context, const Bytes* request, Bytes* response) {
  if (const auto caller = Enter(*context, "Stats", request); !caller) return Answer(context, caller.error());
  v1::StatsRequest asked;
  if (const auto read = ReadMessage(*request, asked); !read) return Answer(context, read.error());
  v1::StatsReply reply;
  Describe(reply);
  *response = ToBuffer(reply);
  return Answer(context, grpc::Status::OK);
}

void KilnService::Describe(v1::StatsReply& reply) const {
  reply.set_uptime_seconds(std::chrono::duration<double>(parts_.clock.SteadyNow() - started_).count());
  for (const auto& tier : parts_.cache.Report()) DescribeTier(tier, *reply.add_tiers());
  reply.set_workers(parts_.workers.workers());
  reply.set_workers_busy(parts_.workers.busy());
  reply.set_queued(static_cast<std::uint32_t>(parts_.admission.queued()));
  reply.set_flights(static_cast<std::uint32_t>(parts_.flow.flights()));
  reply.set_queue_capacity(static_cast<std::uint32_t>(parts_.admission.capacity()));
  for (const auto& tier : parts_.cache.Report()) reply.set_wal_bytes(reply.wal_bytes() + tier.stats.wal_bytes);
  reply.set_memory_bytes(ReadProcessUsage().resident_bytes);
  parts_.metrics.Describe(reply);
  reply.set_state(parts_.flow.draining() ? "draining" : "serving");
  for (v1::DeviceStats& device : parts_.devices.Stats()) *reply.add_devices() = std::move(device);
}

grpc::ServerUnaryReactor* KilnService::Capabilities(Context* context, const Bytes* request, Bytes* response) {
  if (const auto caller = Enter(*context, "Capabilities", request); !caller) return Answer(context, caller.error());
  v1::CapabilitiesRequest asked;
  if (const auto read = ReadMessage(*request, asked); !read) return Answer(context, read.error());
  if (asked.at_once()) {
    *response = ToBuffer(parts_.description.Known());
    return Answer(context, grpc::Status::OK);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  parts_.description.Ask([reactor, response](const v1::CapabilitiesReply& known) {
    *response = ToBuffer(known);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KilnService::CacheList(Context* context, const Bytes* request) {
  const auto caller = Enter(*context, "CacheList", request);
  if (!caller) return new RefusedStream<Bytes>(ToStatus(caller.error()));
  v1::CacheListRequest list;
  if (const auto read = ReadMessage(*request, list); !read) return new RefusedStream<Bytes>(Refuse(context, read.error()));
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return new RefusedStream<Bytes>(Refuse(context, in_flight.error()));
  TellId(*context);
  return new ListReactor(*context, parts_.maintenance, list, ConfirmationOf(*caller, "CacheList"), std::move(*in_flight));
}

grpc::ServerUnaryReactor* KilnService::CacheVerify(Context* context, const Bytes* request, Bytes* response) {
  if (const auto caller = Enter(*context, "CacheVerify", request); !caller) return Answer(context, caller.error());
  v1::CacheVerifyRequest asked;
  if (const auto read = ReadMessage(*request, asked); !read) return Answer(context, read.error());
  return Maintain<v1::CacheVerifyReply>(context, response, [this] { return parts_.maintenance.Verify(); });
}

grpc::ServerUnaryReactor* KilnService::CacheGc(Context* context, const Bytes* request, Bytes* response) {
  if (const auto caller = Enter(*context, "CacheGc", request); !caller) return Answer(context, caller.error());
  v1::CacheGcRequest gc;
  if (const auto read = ReadMessage(*request, gc); !read) return Answer(context, read.error());
  return Maintain<v1::CacheGcReply>(context, response, [this, target = gc.target_bytes()] { return parts_.maintenance.Gc(target); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KilnService::CacheExport(Context* context, const Bytes* request) {
  const auto caller = Enter(*context, "CacheExport", request);
  if (!caller) return new RefusedStream<Bytes>(ToStatus(caller.error()));
  v1::CacheExportRequest wanted;
  const std::size_t keys = request->Length() / sizeof(cache::Digest);  // a key is short, and has a list's and a string's share of memory
  if (const auto read = ReadMessage(*request, wanted, kOfAKey * keys); !read) return new RefusedStream<Bytes>(Refuse(context, read.error()));
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return new RefusedStream<Bytes>(Refuse(context, in_flight.error()));
  TellId(*context);
  return new ExportReactor(*context, parts_.maintenance, wanted, caller->tenant, ConfirmationOf(*caller, "CacheExport"), std::move(*in_flight));
}

grpc::ServerReadReactor<grpc::ByteBuffer>* KilnService::CacheImport(Context* context, Bytes* response) {
  const auto caller = Enter(*context, "CacheImport", nullptr);
  if (!caller) return new RefusedUpload<Bytes>(ToStatus(caller.error()));
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return new RefusedUpload<Bytes>(Refuse(context, in_flight.error()));
  TellId(*context);
  return new ImportReactor(*context, parts_.maintenance, parts_.store_keeper, *response, parts_.message_bytes, ConfirmationOf(*caller, "CacheImport"),
                           std::move(*in_flight));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KilnService::Run(Context* context) {
  auto caller = Enter(*context, "Run", nullptr);
  if (!caller) return new RefusedExchange<Bytes, Bytes>(ToStatus(caller.error()));
  auto confirm = ConfirmationOf(*caller, "Run");
  return new RunReactor(*context, parts_.runs, parts_.message_bytes, std::move(*caller), std::move(confirm));
}

template <class Reply>
grpc::ServerUnaryReactor* KilnService::Maintain(Context* context, Bytes* response, std::function<std::expected<Reply, Failure>()> task) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool posted = parts_.maintenance.Post([context, reactor, response, task = std::move(task)] {
    if (context->IsCancelled()) return reactor->Finish(grpc::Status::CANCELLED);
    const auto result = task();
    if (result) *response = ToBuffer(*result);
    reactor->Finish(result ? grpc::Status::OK : Refuse(context, result.error()));
  });
  if (!posted) reactor->Finish(Refuse(context, MaintenanceFull()));
  return reactor;
}

}  // namespace kiln::server
