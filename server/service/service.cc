// SPDX-License-Identifier: Apache-2.0
#include "server/service/service.h"

#include <optional>
#include <utility>

#include <fmt/format.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>

#include "server/door/call_watch.h"
#include "server/flow/ensure.h"
#include "server/flow/rank.h"
#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/service/reactors.h"
#include "server/service/run_reactor.h"
#include "server/service/tune_reactor.h"
#include "server/system/process_usage.h"
#include "server/upstream/via.h"
#include "server/wire/message_reader.h"
#include "server/wire/request_key.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

// As the code that is generated from a service's description does.
using grpc::internal::RpcMethod;
using grpc::internal::RpcServiceMethod;
using BidiHandler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;

constexpr std::size_t kOfARequest = 512;  // of a manifest, besides its bytes: a short one takes a multiple of these
constexpr std::size_t kOfAKey = 96;
constexpr std::size_t kCopiesOfAResult = 2;  // while it is put: as a message and sealed
constexpr int kMostRanked = 4096;            // candidates of one Rank
constexpr unsigned kForwards = 32;           // of a manifest at one time, on a host without workers

void Answer(Call& call, const Failure& failure) { call.Answer(Refuse(call.context(), failure)); }

void Answer(Call& call, const Outcome& outcome) {
  if (!outcome) return Answer(call, outcome.error());
  NoteReply(call.context(), *outcome);
  call.response() = ToBuffer(*outcome);
  call.Answer(grpc::Status::OK);
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
  to.set_refused(from.stats.refused);
  to.set_state(!from.enabled ? "disabled" : from.stats.read_only ? "read-only" : "ok");
}

constexpr std::string_view kService = "/kiln.v1.Kiln/";

// Compile and CompileStream.
CompileFlow::Request RequestOf(grpc::CallbackServerContext& context, Caller caller, std::string bytes, const cache::Digest& digest) {
  return {.id = RequestIdOf(context),
          .caller = std::move(caller),
          .bytes = std::move(bytes),
          .digest = digest,
          .accepted = WasAccepted(context),
          .via = ViaOf(context),
          .notes = NotesOf(context)};
}

}  // namespace

KilnService::KilnService(const Parts& parts, const Doorway& doorway) : parts_(parts), doorway_(doorway) {
  AddUnary("/kiln.v1.Kiln/Compile", &KilnService::Compile);
  AddUnary("/kiln.v1.Kiln/Lookup", &KilnService::Lookup);
  AddUnary("/kiln.v1.Kiln/Fetch", &KilnService::Fetch);
  AddUnary("/kiln.v1.Kiln/Put", &KilnService::Put);
  AddUnary("/kiln.v1.Kiln/Stats", &KilnService::Stats);
  AddUnary("/kiln.v1.Kiln/Capabilities", &KilnService::Capabilities);
  AddUnary("/kiln.v1.Kiln/CacheVerify", &KilnService::CacheVerify);
  AddUnary("/kiln.v1.Kiln/CacheGc", &KilnService::CacheGc);
  AddStream("/kiln.v1.Kiln/CompileStream", &KilnService::CompileStream);
  AddStream("/kiln.v1.Kiln/EnsureKernels", &KilnService::EnsureKernels);
  AddStream("/kiln.v1.Kiln/Rank", &KilnService::Rank);
  AddStream("/kiln.v1.Kiln/Watch", &KilnService::Watch);
  AddStream("/kiln.v1.Kiln/CacheList", &KilnService::CacheList);
  AddStream("/kiln.v1.Kiln/CacheHot", &KilnService::CacheHot);
  AddStream("/kiln.v1.Kiln/CacheExport", &KilnService::CacheExport);
  AddMethod(new RpcServiceMethod("/kiln.v1.Kiln/CacheImport", RpcMethod::CLIENT_STREAMING, nullptr));
  MarkMethodRawCallback(methods_++, new grpc::internal::CallbackClientStreamingHandler<Bytes, Bytes>(
                                        [this](Context* context, Bytes* response) { return CacheImport(*context, *response); }));
  AddMethod(new RpcServiceMethod("/kiln.v1.Kiln/Run", RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(methods_++, new BidiHandler([this](Context* context) { return Run(*context); }));
  AddMethod(new RpcServiceMethod("/kiln.v1.Kiln/Tune", RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(methods_++, new BidiHandler([this](Context* context) { return Tune(*context); }));
}

void KilnService::AddUnary(const char* path, UnaryHandler handler) {
  const std::string_view method = std::string_view(path).substr(kService.size());
  if (doorway_.room() != nullptr) {
    AddMethod(new RpcServiceMethod(path, RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(methods_++, new BidiHandler([=, this](Context* context) { return Begin(*context, method, handler); }));
    return;
  }
  AddMethod(new RpcServiceMethod(path, RpcMethod::NORMAL_RPC, nullptr));
  const auto whole = [=, this](Context* context, const Bytes* request, Bytes* response) {
    auto* call = new WholeCall(*context, *response);
    auto caller = doorway_.Enter(*context, method);
    if (!caller) Answer(*call, caller.error());
    if (caller && Takes(*call, *request)) (this->*handler)(*call, std::move(*caller), *request);
    return call;
  };
  MarkMethodRawCallback(methods_++, new grpc::internal::CallbackUnaryHandler<Bytes, Bytes>(whole));
}

void KilnService::AddStream(const char* path, StreamHandler handler) {
  const std::string_view method = std::string_view(path).substr(kService.size());
  AddMethod(new RpcServiceMethod(path, RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(methods_++, new BidiHandler([=, this](Context* context) { return Begin(*context, method, handler); }));
}

template <class Handler>
KilnService::Exchange* KilnService::Begin(Context& context, std::string_view method, Handler handler) {
  auto caller = doorway_.Enter(context, method);
  if (!caller) return new RefusedExchange<Bytes, Bytes>(Refuse(context, caller.error()));
  return new ArrivingCall(context, doorway_.room(), doorway_.ConnectionOf(context), caller->tenant,
                          [this, handler, caller = *caller](ArrivingCall& call, const Bytes& request) {
                            if (Takes(call, request)) (this->*handler)(call, caller, request);
                          });
}

bool KilnService::Takes(Call& call, const Bytes& request) const {
  RecordOf(call.context()).bytes_in = request.Length();
  if (request.Length() <= parts_.message_bytes) return true;
  Answer(call, MessageTooLarge(request.Length(), parts_.message_bytes));
  return false;
}

Confirmation KilnService::ConfirmationOf(const Caller& caller, std::string_view method) const {
  return [this, caller, method] { return doorway_.gate().Confirm(caller, method); };
}

void KilnService::Compile(Call& call, Caller caller, const Bytes& request) {
  if (request.Length() > parts_.limits.request_bytes) return Answer(call, RequestTooLarge(request.Length(), parts_.limits));
  const cache::Digest digest = DigestOf("Compile", request);
  const auto wants_durable = [request] { return SettingsOf(ToString(request)).durable; };
  if (const auto hit = parts_.flow.FindHot(digest, caller.tenant, wants_durable)) return Answer(call, *hit);
  std::string bytes = TakeBytes(request);
  const bool has_space = SettingsOf(bytes).has_space;
  if (const auto refused = has_space ? std::nullopt : parts_.flow.RefusesUnread(digest, bytes, caller)) return Answer(call, *refused);
  CompileFlow::Request asked = RequestOf(call.context(), std::move(caller), std::move(bytes), digest);
  has_space ? AnswerFrom(parts_.spaces, std::move(asked), call) : AnswerFrom(parts_.flow, std::move(asked), call);
}

void KilnService::CompileStream(ArrivingCall& call, Caller caller, const Bytes& request) {
  const std::size_t length = request.Length();
  if (length > parts_.limits.request_bytes) return Answer(call, RequestTooLarge(length, parts_.limits));
  const cache::Digest digest = DigestOf("Compile", request);
  std::string bytes = TakeBytes(request);
  const bool has_space = SettingsOf(bytes).has_space;
  if (const auto refused = has_space ? std::nullopt : parts_.flow.RefusesUnread(digest, bytes, caller)) return Answer(call, *refused);
  auto confirm = ConfirmationOf(caller, "CompileStream");
  CompileFlow::Request asked = RequestOf(call.context(), std::move(caller), std::move(bytes), digest);
  call.SendBy(has_space ? *new ProgressReactor(call, parts_.spaces, std::move(confirm), std::move(asked))
                        : *new ProgressReactor(call, parts_.flow, std::move(confirm), std::move(asked)));
}

void KilnService::Lookup(Call& call, Caller caller, const Bytes& request) {
  if (request.Length() > parts_.limits.request_bytes) return Answer(call, RequestTooLarge(request.Length(), parts_.limits));
  const cache::Digest digest = DigestOf("Lookup", request);
  if (const auto hit = parts_.flow.FindHot(digest, caller.tenant, {})) return Answer(call, *hit);
  v1::LookupRequest lookup;
  if (const auto read = ReadMessage(request, lookup); !read) return Answer(call, read.error());
  if (lookup.has_request()) {
    return AnswerFrom(parts_.flow,
                      {.id = RequestIdOf(call.context()),
                       .caller = std::move(caller),
                       .bytes = lookup.request().SerializeAsString(),
                       .digest = digest,
                       .lookup_only = true,
                       .notes = NotesOf(call.context())},
                      call);
  }
  const auto key = cache::Digest::FromBytes(lookup.key());
  if (!key) {
    return Answer(call, Failure{.kind = Failure::Kind::kMalformed, .message = "Lookup takes a request, or a key of 32 bytes as in CompileReply.key"});
  }
  if (const auto hit = parts_.flow.FindHotKey(*key, caller.tenant)) return Answer(call, *hit);
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return Answer(call, in_flight.error());
  parts_.flow.Lookup(*key, caller.tenant,
                     [&call, notes = NotesOf(call.context()), counted = std::optional(std::move(*in_flight))](Outcome outcome) mutable {
                       notes->Mark("cache");
                       counted.reset();  // before the client may call again
                       NoteOutcome(call.context(), outcome);
                       if (outcome) call.response() = ToBuffer(*outcome);
                       call.Answer(outcome ? grpc::Status::OK : ToStatus(outcome.error()));
                     });
}

void KilnService::Fetch(Call& call, Caller caller, const Bytes& request) {
  v1::FetchRequest fetch;
  if (const auto read = ReadMessage(request, fetch); !read) return Answer(call, read.error());
  const auto key = cache::Digest::FromBytes(fetch.entry());
  if (!key) return Answer(call, Failure{.kind = Failure::Kind::kMalformed, .message = "Fetch takes the key of an entry, of 32 bytes"});
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return Answer(call, in_flight.error());
  parts_.flow.Fetch(
      *key, caller.tenant,
      [&call, notes = NotesOf(call.context()), counted = std::optional(std::move(*in_flight))](std::expected<cache::Entry, Failure> entry) mutable {
        notes->Mark("cache");
        counted.reset();  // before the client may call again
        if (!entry) return Answer(call, entry.error());
        v1::FetchReply reply;
        reply.set_sealed(std::string(entry->sealed()));
        call.response() = ToBuffer(reply);
        call.Answer(grpc::Status::OK);
      });
}

void KilnService::EnsureKernels(ArrivingCall& call, Caller caller, const Bytes& request) {
  const auto refuse = [&call](const Failure& failure) { return Answer(call, failure); };
  const Manifest::Size size = Manifest::Measure(request, parts_.limits);
  if (const auto problem = Manifest::ProblemOf(size, parts_.limits)) return refuse(*problem);
  if (size.memory > parts_.manifest_memory_bytes) return refuse(ManifestTooLarge(size.memory, parts_.manifest_memory_bytes));
  auto memory = parts_.manifests.Take(caller.tenant, size.memory);
  if (!memory) {
    ++parts_.metrics.counts.refused;
    return refuse(NoMemoryForManifest(caller.tenant, parts_.manifest_memory_bytes));
  }
  v1::EnsureRequest manifest;
  if (const auto read = ReadMessage(request, manifest, kOfARequest * size.requests); !read) return refuse(read.error());
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return refuse(in_flight.error());
  TellId(call.context());
  call.SendBy(*new EnsureReactor(call, PartsOf(call), NotesOf(call.context()), parts_.clock, std::move(caller), std::move(*memory),
                                 std::move(*in_flight), std::move(manifest)));
}

PartsStream::Parts KilnService::PartsOf(ArrivingCall& call) const {
  return {parts_.flow,   parts_.executor, parts_.flow.forwards() ? kForwards : parts_.workers.workers(),
          parts_.limits, doorway_.gate(), WasAccepted(call.context())};
}

void KilnService::Rank(ArrivingCall& call, Caller caller, const Bytes& request) {
  const auto refuse = [&call](const Failure& failure) { return Answer(call, failure); };
  auto memory = parts_.flow.Hold(caller.tenant, request.Length());
  if (!memory) return refuse(memory.error());
  v1::RankRequest candidates;
  if (const auto read = ReadMessage(request, candidates, kOfARequest * kMostRanked); !read) return refuse(read.error());
  if (candidates.candidates_size() > kMostRanked) {
    return refuse({.kind = Failure::Kind::kMalformed,
                   .message = fmt::format("{} candidates; rank them in parts of at most {}", candidates.candidates_size(), kMostRanked)});
  }
  const bool alone = candidates.candidates_size() == 1, none = candidates.candidates_size() == 0;
  if (candidates.space().empty() ? candidates.known_only() : none || (candidates.known_only() && !alone)) {
    return refuse({.kind = Failure::Kind::kMalformed,
                   .message = "a space has its candidates, and one that is only looked up (known_only) has its name and its first candidate"});
  }
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return refuse(in_flight.error());
  TellId(call.context());
  call.SendBy(
      *new RankReactor(call, PartsOf(call), parts_.rankings, std::move(caller), std::move(*memory), std::move(*in_flight), std::move(candidates)));
}

void KilnService::Watch(ArrivingCall& call, Caller caller, const Bytes& request) {
  v1::WatchRequest watched;
  if (const auto read = ReadMessage(request, watched); !read) return Answer(call, read.error());
  const auto key = cache::Digest::FromBytes(watched.key());
  if (!key) return Answer(call, Failure{.kind = Failure::Kind::kMalformed, .message = "the key of a Watch is 32 bytes, as a Tune gives them"});
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return Answer(call, in_flight.error());
  TellId(call.context());
  auto confirm = ConfirmationOf(caller, "Watch");
  call.SendBy(*new WatchReactor(call, parts_.tunings, std::move(caller), std::move(confirm), std::move(*in_flight), *key));
}

void KilnService::Put(Call& call, Caller caller, const Bytes& request) {
  if (!parts_.accept_put) {
    return Answer(call,
                  Failure{.kind = Failure::Kind::kRefused, .message = "this kilnd takes no results from others; start it with --accept-put=yes"});
  }
  auto memory = parts_.flow.Hold(caller.tenant, kCopiesOfAResult * request.Length());
  if (!memory) return Answer(call, memory.error());
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return Answer(call, in_flight.error());
  Executor::Task task = [this, &call, &request, caller, memory = std::optional(std::move(*memory)),
                         counted = std::optional(std::move(*in_flight))]() mutable {
    PutNow(caller, request, [&call, memory = std::move(memory), counted = std::move(counted)](std::expected<cache::Digest, Failure> key) mutable {
      memory.reset();
      counted.reset();  // before the client may call again
      v1::PutReply reply;
      if (key) reply.set_key(key->bytes.data(), key->bytes.size());
      if (key) call.response() = ToBuffer(reply);
      call.Answer(key ? grpc::Status::OK : Refuse(call.context(), key.error()));
    });
  };
  if (!parts_.flow.Post(parts_.heavy, caller.tenant, std::move(task))) Answer(call, ExecutorFull(caller.tenant));
}

void KilnService::PutNow(const Caller& caller, const Bytes& request, CompileFlow::PutEnd done) {
  v1::PutRequest put;
  if (auto read = ReadMessage(request, put); !read) return done(std::unexpected(std::move(read.error())));
  parts_.flow.Put(caller, std::move(put), std::move(done));
}

void KilnService::Stats(Call& call, Caller, const Bytes& request) {
  v1::StatsRequest asked;
  if (const auto read = ReadMessage(request, asked); !read) return Answer(call, read.error());
  const auto answer = [this, &call](std::vector<v1::DeviceStats> devices) {
    v1::StatsReply reply;
    Describe(reply);
    for (v1::DeviceStats& device : devices) *reply.add_devices() = std::move(device);
    call.response() = ToBuffer(reply);
    call.Answer(grpc::Status::OK);
  };
  asked.device_states() ? parts_.devices.Sense(answer) : answer(parts_.devices.Stats());
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
  *reply.mutable_tunings() = parts_.tunings.Stats();
  reply.set_state(parts_.flow.draining() ? "draining" : "serving");
}

void KilnService::Capabilities(Call& call, Caller, const Bytes& request) {
  v1::CapabilitiesRequest asked;
  if (const auto read = ReadMessage(request, asked); !read) return Answer(call, read.error());
  if (asked.at_once()) {
    call.response() = ToBuffer(parts_.description.Known());
    return call.Answer(grpc::Status::OK);
  }
  parts_.description.Ask([&call](const v1::CapabilitiesReply& known) {
    call.response() = ToBuffer(known);
    call.Answer(grpc::Status::OK);
  });
}

void KilnService::CacheList(ArrivingCall& call, Caller caller, const Bytes& request) {
  v1::CacheListRequest list;
  if (const auto read = ReadMessage(request, list); !read) return Answer(call, read.error());
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return Answer(call, in_flight.error());
  TellId(call.context());
  auto entries = [this, list = std::move(list)] { return parts_.maintenance.List(list); };
  call.SendBy(
      *new ListReactor<v1::CacheEntry>(call, parts_.maintenance, std::move(entries), ConfirmationOf(caller, "CacheList"), std::move(*in_flight)));
}

void KilnService::CacheHot(ArrivingCall& call, Caller caller, const Bytes& request) {
  constexpr std::uint32_t kDefault = 1000;
  v1::CacheHotRequest hot;
  if (const auto read = ReadMessage(request, hot); !read) return Answer(call, read.error());
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return Answer(call, in_flight.error());
  TellId(call.context());
  auto programs = [this, limit = hot.limit() == 0 ? kDefault : hot.limit(), tenant = caller.tenant] { return parts_.maintenance.Hot(limit, tenant); };
  call.SendBy(
      *new ListReactor<v1::ManifestEntry>(call, parts_.maintenance, std::move(programs), ConfirmationOf(caller, "CacheHot"), std::move(*in_flight)));
}

void KilnService::CacheVerify(Call& call, Caller, const Bytes& request) {
  v1::CacheVerifyRequest asked;
  if (const auto read = ReadMessage(request, asked); !read) return Answer(call, read.error());
  Maintain<v1::CacheVerifyReply>(call, [this] { return parts_.maintenance.Verify(); });
}

void KilnService::CacheGc(Call& call, Caller, const Bytes& request) {
  v1::CacheGcRequest gc;
  if (const auto read = ReadMessage(request, gc); !read) return Answer(call, read.error());
  Maintain<v1::CacheGcReply>(call, [this, target = gc.target_bytes()] { return parts_.maintenance.Gc(target); });
}

void KilnService::CacheExport(ArrivingCall& call, Caller caller, const Bytes& request) {
  v1::CacheExportRequest wanted;
  const std::size_t keys = request.Length() / sizeof(cache::Digest);  // a key is short, and has a list's and a string's share of memory
  if (const auto read = ReadMessage(request, wanted, kOfAKey * keys); !read) return Answer(call, read.error());
  auto in_flight = parts_.quotas.Hold(caller.tenant);
  if (!in_flight) return Answer(call, in_flight.error());
  TellId(call.context());
  call.SendBy(*new ExportReactor(call, parts_.maintenance, wanted, caller.tenant, ConfirmationOf(caller, "CacheExport"), std::move(*in_flight)));
}

grpc::ServerReadReactor<grpc::ByteBuffer>* KilnService::CacheImport(Context& context, Bytes& response) {
  const auto caller = doorway_.Enter(context, "CacheImport");
  if (!caller) return new RefusedUpload<Bytes>(Refuse(context, caller.error()));
  auto in_flight = parts_.quotas.Hold(caller->tenant);
  if (!in_flight) return new RefusedUpload<Bytes>(Refuse(context, in_flight.error()));
  return new ImportReactor(context, parts_.maintenance, parts_.store_keeper, response, parts_.message_bytes, ConfirmationOf(*caller, "CacheImport"),
                           std::move(*in_flight), doorway_.room(), doorway_.ConnectionOf(context), caller->tenant);
}

KilnService::Exchange* KilnService::Run(Context& context) {
  auto caller = doorway_.Enter(context, "Run");
  if (!caller) return new RefusedExchange<Bytes, Bytes>(Refuse(context, caller.error()));
  auto confirm = ConfirmationOf(*caller, "Run");
  return new RunReactor(context, parts_.runs, parts_.message_bytes, std::move(*caller), std::move(confirm), doorway_.room(),
                        doorway_.ConnectionOf(context));
}

KilnService::Exchange* KilnService::Tune(Context& context) {
  auto caller = doorway_.Enter(context, "Tune");
  if (!caller) return new RefusedExchange<Bytes, Bytes>(Refuse(context, caller.error()));
  auto confirm = ConfirmationOf(*caller, "Tune");
  return new TuneReactor(context, parts_.tunings, parts_.message_bytes, std::move(*caller), std::move(confirm), doorway_.room(),
                         doorway_.ConnectionOf(context));
}

template <class Reply>
void KilnService::Maintain(Call& call, std::function<std::expected<Reply, Failure>()> task) {
  const bool posted = parts_.maintenance.Post([&call, task = std::move(task)] {
    if (call.context().IsCancelled()) return call.Answer(grpc::Status::CANCELLED);
    const auto result = task();
    if (result) call.response() = ToBuffer(*result);
    call.Answer(result ? grpc::Status::OK : Refuse(call.context(), result.error()));
  });
  if (!posted) Answer(call, MaintenanceFull());
}

}  // namespace kiln::server
