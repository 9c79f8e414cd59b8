// SPDX-License-Identifier: Apache-2.0
#include "server/flow/rank.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/telemetry/telemetry.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

constexpr std::size_t kMaxUnwrittenBytes = 256 << 10;  // beyond that nothing more is started until the client has read

bool EndsTheCall(const Failure& failure) { return failure.kind == Failure::Kind::kDraining || failure.kind == Failure::Kind::kCancelled; }

}  // namespace

RankReactor::RankReactor(ArrivingCall& call, const Parts& parts, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted,
                         v1::RankRequest request)
    : Sender(call),
      parts_(parts),
      caller_(std::move(caller)),
      memory_(std::move(memory)),
      counted_(std::move(counted)),
      request_(std::move(request)),
      window_(2 * std::size_t{parts.workers} + 2),
      items_(static_cast<std::size_t>(request_.candidates_size())),
      todo_(items_.size()) {
  std::iota(todo_.begin(), todo_.end(), std::size_t{0});
  parts_.executor.Resume(caller_.tenant, [this] { Continue(); });
}

// Called by a holder of a count: starts as many items as allowed, then gives up the count.
void RankReactor::Continue() {
  for (;;) {
    StartSome();
    cache::MutexLock lock(mutex_);
    if (running_ == 1 && !failure_ && next_ < todo_.size() && !throttled_) continue;  // somebody else's place became free meanwhile
    --running_;
    const auto status = Advance();
    lock.Unlock();
    return End(status);
  }
}

// False ends the call.
bool RankReactor::MayGoOn() {
  auto confirmed = parts_.gate.Confirm(caller_, "Rank");
  if (confirmed) return true;
  cache::MutexLock lock(mutex_);
  if (!failure_) failure_ = std::move(confirmed.error());
  return false;
}

void RankReactor::StartSome() {
  while (MayGoOn()) {
    std::size_t index = 0;
    {
      cache::MutexLock lock(mutex_);
      if (failure_ || paused_ || throttled_ || next_ == todo_.size() || running_ > window_) return;
      if (unwritten_bytes_ > kMaxUnwrittenBytes) {
        throttled_ = true;
        ++running_;
        return;
      }
      index = todo_[next_++];
      items_[index].running = true;
      ++running_;
    }
    Start(index);
  }
}

void RankReactor::Start(std::size_t index) {
  v1::CompileRequest program = request_.candidates(static_cast<int>(index));
  const std::size_t given = program.ByteSizeLong();
  program.set_priority(v1::TUNING);
  program.clear_refresh();
  program.clear_durable();
  program.clear_explain();
  *program.mutable_explain()->mutable_estimate() = request_.options();
  if (given > parts_.limits.request_bytes) return Ended(index, std::unexpected(RequestTooLarge(given, parts_.limits)));
  std::string bytes = program.SerializeAsString();
  const cache::Digest digest = DigestOf("Rank", bytes);
  auto call = parts_.flow.Start({.id = RequestIdText(NextRequestNumber()),
                                 .caller = caller_,
                                 .bytes = std::move(bytes),
                                 .digest = digest,
                                 .accepted = parts_.accepted,
                                 .part_of_another = true,
                                 .held = true,
                                 .on_stage = {},
                                 .done = [this, index](Outcome outcome) { Ended(index, std::move(outcome)); }});
  // The item may have ended already, and this object with it, if the caller did not hold a count until StartSome has returned.
  cache::MutexLock lock(mutex_);
  if (!items_[index].running || items_[index].call) return;
  items_[index].call = call;
  const bool stop = failure_.has_value();
  lock.Unlock();
  if (stop) parts_.flow.Cancel(call);
}

void RankReactor::Ended(std::size_t index, Outcome outcome) {
  {
    cache::MutexLock lock(mutex_);
    items_[index].running = false;
    items_[index].call.reset();
    if (!outcome && outcome.error().kind == Failure::Kind::kQueueFull) {
      todo_.push_back(index);
      Pause(outcome.error().retry_after.value_or(std::chrono::seconds(1)));
    } else if (!outcome && EndsTheCall(outcome.error())) {
      if (!failure_) failure_ = std::move(outcome.error());
    } else {
      Note(index, outcome);
    }
  }
  // On the executor, for one that ended where it was started would start the next within itself.
  parts_.executor.Resume(caller_.tenant, [this] { Continue(); });
}

void RankReactor::Note(std::size_t index, const Outcome& outcome) {
  v1::RankedCandidate& ranked = *progress_.add_candidates();
  ranked.set_candidate(static_cast<std::uint32_t>(index));
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
  unwritten_bytes_ += ranked.ByteSizeLong();
}

void RankReactor::Pause(std::chrono::milliseconds time) {
  if (paused_ || failure_) return;
  paused_ = true;
  ++running_;
  alarm_ = std::make_unique<grpc::Alarm>();
  // gRPC's alarms ring by its own clock, which nobody can inject.
  alarm_->Set(std::chrono::system_clock::now() + time, [this](bool) {
    {
      cache::MutexLock lock(mutex_);
      paused_ = false;
    }
    parts_.executor.Resume(caller_.tenant, [this] { Continue(); });
  });
}

// Writes what is new, or gives the status if nothing runs any more. Once the mutex is free after that, this object may be gone.
std::optional<grpc::Status> RankReactor::Advance() {
  if (busy_) return std::nullopt;
  if (progress_.candidates_size() > 0 && !broken_) {
    writing_ = ToBuffer(progress_);
    progress_.Clear();
    unwritten_bytes_ = 0;
    busy_ = true;
    StartWrite(&writing_);
    return std::nullopt;
  }
  if (running_ > 0) return std::nullopt;
  busy_ = true;  // finished
  return failure_ ? ToStatus(*failure_) : grpc::Status::OK;
}

void RankReactor::End(const std::optional<grpc::Status>& status) {
  if (!status) return;
  counted_.reset();
  Finish(*status);
}

void RankReactor::OnWriteDone(bool ok) {
  cache::MutexLock lock(mutex_);
  busy_ = false;
  broken_ |= !ok;
  if (broken_ && !failure_) failure_ = Cancelled();
  const bool resume = std::exchange(throttled_, false);
  const auto status = Advance();
  lock.Unlock();
  End(status);
  if (resume) parts_.executor.Resume(caller_.tenant, [this] { Continue(); });
}

void RankReactor::OnCancel() {
  std::vector<std::shared_ptr<CompileFlow::Call>> calls;
  {
    cache::MutexLock lock(mutex_);
    if (!failure_) failure_ = Cancelled();
    for (const Item& item : items_) {
      if (item.call) calls.push_back(item.call);
    }
    if (paused_) alarm_->Cancel();
  }
  for (const auto& call : calls) parts_.flow.Cancel(call);
}

}  // namespace kiln::server
