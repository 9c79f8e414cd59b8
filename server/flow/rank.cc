// SPDX-License-Identifier: Apache-2.0
#include "server/flow/rank.h"

#include <utility>

#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/wire/wire.h"

namespace kiln::server {

RankReactor::RankReactor(ArrivingCall& call, const Parts& parts, const RankMemory& kept, Caller caller, TenantBudget::Charge memory,
                         Quotas::InFlight counted, v1::RankRequest request)
    : PartsStream(call, parts, "Rank", std::move(caller), std::move(memory), std::move(counted)), kept_(kept), request_(std::move(request)) {
  if (!request_.space().empty()) {
    kept_.executor().Resume(caller_.tenant, [this] { Recall(); });
    return;
  }
  {
    cache::MutexLock lock(mutex_);
    SetTodo(static_cast<std::size_t>(request_.candidates_size()));
  }
  parts_.executor.Resume(caller_.tenant, [this] { Continue(); });
}

// A program without a key is none: then its place in the ranking says so.
void RankReactor::Recall() {
  const auto key = kept_.KeyOf(request_);
  auto known = key ? kept_.Find(caller_.tenant, *key) : std::nullopt;
  // Of so many candidates as there are; who sends only the first one sees how many.
  if (known && !request_.known_only() && known->candidates_size() != request_.candidates_size()) known.reset();
  {
    cache::MutexLock lock(mutex_);
    if (known) {
      progress_.Swap(&*known);
    } else if (request_.known_only()) {
      FailWith({.kind = Failure::Kind::kNotFound, .message = "no ranking of this space is known; send all of its candidates"});
    } else {
      SetTodo(static_cast<std::size_t>(request_.candidates_size()));
      said_.resize(static_cast<std::size_t>(request_.candidates_size()));
      if (key) key_ = *key;
    }
  }
  Continue();
}

std::optional<Failure> RankReactor::ProblemOf(std::size_t part) {
  const std::size_t given = request_.candidates(static_cast<int>(part)).ByteSizeLong();
  return given > parts_.limits.request_bytes ? std::optional(RequestTooLarge(given, parts_.limits)) : std::nullopt;
}

CompileFlow::Request RankReactor::RequestOf(std::size_t part) {
  v1::CompileRequest program = request_.candidates(static_cast<int>(part));
  program.set_priority(v1::TUNING);
  program.clear_refresh();
  program.clear_durable();
  program.clear_explain();
  *program.mutable_explain()->mutable_estimate() = request_.options();
  CompileFlow::Request request;
  request.bytes = program.SerializeAsString();
  request.digest = DigestOf("Rank", request.bytes);
  request.held = true;
  return request;
}

void RankReactor::Note(std::size_t part, const Outcome& outcome) {
  v1::RankedCandidate& ranked = *progress_.add_candidates();
  ranked.set_candidate(static_cast<std::uint32_t>(part));
  v1::CompileReply reply;
  if (!outcome) {
    const grpc::Status status = ToStatus(outcome.error());
    ranked.set_code(static_cast<std::uint32_t>(status.error_code()));
    ranked.set_message(status.error_message());
  } else if (reply.ParseFromArray(outcome->kept.data(), static_cast<int>(outcome->kept.size())) && reply.has_estimate()) {
    ranked.mutable_estimate()->Swap(reply.mutable_estimate());
  } else {
    ranked.set_code(static_cast<std::uint32_t>(grpc::StatusCode::UNIMPLEMENTED));
    ranked.set_message("the kilnd that compiles for this one does not rank programs; let it be updated");
  }
  AddUnwritten(ranked.ByteSizeLong());
  if (!key_) return;
  said_[part] = ranked;
  // What failed for another cause may not fail the next time.
  using Kind = Failure::Kind;
  const bool lasts = outcome ? ranked.has_estimate() : outcome.error().kind == Kind::kInvalid || outcome.error().kind == Kind::kUnsupported;
  if (!lasts) key_.reset();
}

// All are told: before the caller knows that, who asks again is answered from the store. It is kept where the store may be waited for, which has
// a count of this call's.
bool RankReactor::NextRound() {
  if (!key_) return false;
  KeepCount();
  kept_.executor().Resume(caller_.tenant, [this, key = *std::exchange(key_, std::nullopt), said = std::exchange(said_, {})] {
    kept_.Keep(caller_.tenant, key, request_.candidates(0).target(), said);
    Continue();
  });
  return false;
}

grpc::ByteBuffer RankReactor::TakeNews() {
  grpc::ByteBuffer news = ToBuffer(progress_);
  progress_.Clear();
  return news;
}

}  // namespace kiln::server
