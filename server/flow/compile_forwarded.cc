// SPDX-License-Identifier: Apache-2.0
//
// CompileFlow on a host without workers: its upstream kilnd compiles.
//
// The request goes there with its priority, as its tenant's, and once for all who wait for the key. When the last of them has left, by its
// deadline or otherwise, the call is cancelled, and with it the compile there. No deadline is sent: a caller's ends its own waiting here, and
// must not end that of others who have more time. Whether this host forwards is said by --workers=0 and by no other option: a host that has
// workers compiles what nobody has, since only the upstream kilnd knows how busy it is, and a host that is not to compile needs none.
//
// What comes back is a result once it has the seal of a trusted key for this program, build and tenant. Then it is sealed again and kept as if
// it had been compiled here, but for the compile-seconds, which are the tenant's there. A program's refusal is fetched by the key under which
// the upstream kilnd keeps it, with its seal: its diagnostics come back as they are, and are kept, too. That of an explained compile is kept
// nowhere, and is passed on.
//
// Threads. The answers come on gRPC's threads, which hand over to the executor.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/flow/compile_flow.h"
#include "server/flow/compile_under_way.h"
#include "server/flow/two_layers.h"
#include "server/queue/refusals.h"
#include "server/upstream/answer.h"
#include "server/upstream/upstream_tier.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

// Times a compile's limit: there is a queue before it, which refuses at once what it has no place for.
constexpr int kLimits = 10;
constexpr std::size_t kMostLogged = 500;  // bytes of what the upstream kilnd says
constexpr std::chrono::seconds kToFetch{10};
constexpr std::chrono::seconds kUntilItIsThere{1}, kUntilItIsMended{30};

std::string_view OutcomeName(const Outcome& made) {
  if (made) return "ok";
  switch (made.error().kind) {
    case Kind::kInvalid:
    case Kind::kUnsupported:
    case Kind::kMalformed:
    case Kind::kTooMuch: return "refused";
    case Kind::kDefect: return "defect";
    case Kind::kQueueFull: return "busy";
    case Kind::kCancelled:
    case Kind::kDraining: return "cancelled";
    case Kind::kNoWorker: return "unavailable";
    default: return "forbidden";
  }
}

}  // namespace

std::expected<void, Failure> CompileFlow::MayForward(std::string_view via) const {
  if (!options_.forwards) return {};
  const Peer& upstream = *parts_.upstream;
  const auto not_now = [&](std::string_view why, std::chrono::milliseconds retry) {
    return std::unexpected(NobodyCompiles(upstream.address(), why, retry));
  };
  if (HasName(via, upstream.name())) {
    return not_now("it forwarded the request to this one itself: these kilnds are each other's --upstream, in a circle", kUntilItIsMended);
  }
  if (Hops(via) >= kMostHops) {
    return not_now(fmt::format("the request has come through {} kilnds already, none of which has workers", kMostHops), kUntilItIsMended);
  }
  const auto described = upstream.description();
  if (!described) {
    const std::string trouble = upstream.trouble();
    return not_now(trouble.empty() ? "it has not yet said what it is" : std::string_view(trouble), kUntilItIsThere);
  }
  if (described->compiler() != options_.build_id) {
    return not_now(fmt::format("its compiler is {}, and this kilnd keeps what {} compiles; install one version of Kiln on both hosts, or give this "
                               "one workers (--workers)",
                               described->compiler(), options_.build_id),
                   kUntilItIsMended);
  }
  return {};
}

void CompileFlow::Forward(std::shared_ptr<Compile> compile) {
  stages_.Publish(compile->flight.key(), kUpstreamTier);
  compile->request.set_durable(false);  // here is where it is kept
  Peer::Question question{"Compile", compile->caller.tenant, compile->via, compile->request.SerializeAsString(), options_.compile_limit * kLimits};
  const std::stop_token stop = compile->flight.stop_token();
  parts_.upstream->Start(std::move(question), stop, [this, compile = std::move(compile)](std::shared_ptr<Peer::Answer> answer) mutable {
    parts_.executor.PostFirst([this, compile = std::move(compile), answer = std::move(answer)] { LandForwarded(compile, *answer); });
  });
}

void CompileFlow::LandForwarded(const std::shared_ptr<Compile>& compile, const Peer::Answer& answer) {
  compile->notes->Mark(kUpstreamTier);
  if (closed_) return EndForwarded(*compile, std::unexpected(Draining()));
  if (compile->flight.stop_token().stop_requested()) return EndForwarded(*compile, std::unexpected(Cancelled()));
  if (answer.status.ok()) return EndForwarded(*compile, KeepForwarded(*compile, answer.reply));
  Failure failure = FailureOf(answer.status, parts_.upstream->address());
  if (failure.kind == Kind::kNoWorker) parts_.upstream->LookAgain();
  const bool of_the_program = failure.kind == Kind::kInvalid || failure.kind == Kind::kUnsupported;
  if (of_the_program && !compile->request.has_explain()) return AskForRefusal(compile, std::move(failure));
  EndForwarded(*compile, std::unexpected(std::move(failure)));
}

void CompileFlow::AskForRefusal(const std::shared_ptr<Compile>& compile, Failure said) {
  const cache::Digest key = FailureKey(compile->kept_under, compile->request.module());
  v1::FetchRequest request;
  request.set_entry(key.bytes.data(), key.bytes.size());
  Peer::Question question{"Fetch", compile->caller.tenant, compile->via, request.SerializeAsString(), kToFetch};
  const std::stop_token stop = compile->flight.stop_token();
  parts_.upstream->Start(std::move(question), stop, [this, compile = compile, said = std::move(said)](std::shared_ptr<Peer::Answer> answer) mutable {
    parts_.executor.PostFirst([this, compile = std::move(compile), said = std::move(said), answer = std::move(answer)] {
      EndForwarded(*compile, RefusalFrom(*compile, *answer, said));
    });
  });
}

// With what the upstream kilnd has said of the program already.
CompileFlow::Made CompileFlow::RefusalFrom(Compile& compile, const Peer::Answer& answer, const Failure& said) {
  const auto doubtful = [&](std::string_view why) {
    return Distrust(compile, fmt::format("it refuses the program, and nobody vouches for that ({}): {}", why, said.message));
  };
  if (closed_) return std::unexpected(Draining());
  if (!answer.status.ok()) return doubtful(answer.status.error_message());
  v1::FetchReply reply;
  if (!reply.ParseFromString(ToString(answer.reply))) return doubtful("its entry is no message");
  const cache::Digest key = FailureKey(compile.kept_under, compile.request.module());
  const auto entry = FetchedEntry(key, std::move(*reply.mutable_sealed()));
  if (!entry) return doubtful(entry.error().message);
  auto taken = parts_.sealer.TakeIn(*entry, Sealer::From::kStore);
  if (!taken) return doubtful(taken.error());
  const std::string& tenant = compile.caller.tenant;
  auto refusal = OutcomeFrom(*taken, tenant, v1::CLUSTER, false);
  if (!refusal || *refusal) return doubtful("its entry is no refusal");
  const std::size_t bytes = taken->sealed().size();
  if (parts_.store_keeper.Fits(tenant, bytes)) {
    parts_.cache.Put(std::move(*taken));
    parts_.store_keeper.Note(tenant, bytes);
    if (!compile.request.refresh()) index_.Remember(compile.asked, key, compile.generation);
  }
  return std::move(*refusal);
}

CompileFlow::Made CompileFlow::KeepForwarded(Compile& compile, const grpc::ByteBuffer& bytes) {
  const std::string& tenant = compile.caller.tenant;
  auto reply = ReadForwarded(bytes);
  if (!reply) return Distrust(compile, reply.error());
  const std::string_view program = ProgramToKeep(compile.request);
  const bool is_of_it = cache::Sha256(program).view() == reply->provenance.ir_sha256();  // and not of another that has the same key
  const auto entry = EntryOf(*reply, {compile.key, compile.kept_under, tenant, options_.build_id, is_of_it ? program : std::string_view()});
  if (!entry) return Distrust(compile, entry.error());
  auto taken = parts_.sealer.TakeIn(*entry, Sealer::From::kStore);
  if (!taken) return Distrust(compile, taken.error());
  if (reply->sealed.artifact().size() > options_.limits.artifact_bytes) {
    return std::unexpected(ArtifactTooLarge(reply->sealed.artifact().size(), options_.limits));
  }
  const std::size_t sealed_bytes = taken->sealed().size();
  if (auto fits = parts_.store_keeper.Fits(tenant, sealed_bytes); !fits) return std::unexpected(std::move(fits.error()));
  Reply kept = **OutcomeFrom(*taken, tenant, v1::CLUSTER, false);
  if (compile.request.has_explain()) {
    v1::CompileReply rest;
    for (v1::PassDump& dump : reply->dumps) *rest.add_dumps() = std::move(dump);
    auto whole = std::make_shared<const std::string>(std::string(kept.kept) + rest.SerializeAsString());
    kept = {.key = compile.key, .owner = whole, .kept = *whole, .origin = v1::CLUSTER};
  } else {
    parts_.cache.Put(std::move(*taken));
    parts_.store_keeper.Note(tenant, sealed_bytes);
    compile.notes->Mark("put");
  }
  kept.timings = std::move(reply->timings);
  return kept;
}

std::unexpected<Failure> CompileFlow::Distrust(Compile& compile, std::string_view why) {
  compile.distrusted = true;
  parts_.telemetry.Log(Level::kWarning, "refused-entry",
                       {{"tier", kUpstreamTier},
                        {"request", std::string_view(compile.request_id)},
                        {"key", compile.kept_under.ToHex().substr(0, 16)},
                        {"why", why.substr(0, kMostLogged)}});
  parts_.upstream->LookAgain();  // it may be another build by now, or have another ptxas
  return std::unexpected(NobodyCompiles(parts_.upstream->address(), fmt::format("what it answers is not taken in: {}", why), kUntilItIsThere));
}

void CompileFlow::EndForwarded(Compile& compile, Made made) {
  const std::string_view outcome = compile.distrusted ? "distrusted" : OutcomeName(made);
  parts_.metrics.NoteForward(outcome);
  const bool quiet = outcome == "ok" || outcome == "refused" || outcome == "cancelled";
  parts_.telemetry.Log(quiet ? Level::kDebug : Level::kWarning, "forward",
                       {{"request", std::string_view(compile.request_id)},
                        {"key", compile.key.ToHex().substr(0, 16)},
                        {"target", std::string_view(compile.request.target())},
                        {"outcome", outcome},
                        {"message", quiet ? std::string_view() : std::string_view(made.error().message).substr(0, kMostLogged)}});
  compile.flight.Finish(std::move(made));
}

}  // namespace kiln::server
