// SPDX-License-Identifier: Apache-2.0
#include "server/flow/ensure.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/telemetry/telemetry.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

constexpr std::size_t kLookups = 32;                   // at one time
constexpr std::size_t kMaxUnwrittenBytes = 256 << 10;  // beyond that nothing more is started until the client has read

// Milliseconds of the worker; nullopt if the result was known already.
std::optional<double> SpentMs(const Outcome& outcome) {
  if (!outcome || outcome->timings.empty()) return std::nullopt;
  double sum = 0;
  for (const v1::Timing& timing : outcome->timings) {
    if (timing.stage() != kQueueStage) sum += timing.milliseconds();
  }
  return sum;
}

double Seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

bool EndsTheCall(const Failure& failure) { return failure.kind == Failure::Kind::kDraining || failure.kind == Failure::Kind::kCancelled; }

}  // namespace

EnsureReactor::EnsureReactor(ArrivingCall& call, const Parts& parts, Caller caller, TenantBudget::Charge memory, Quotas::InFlight counted,
                             v1::EnsureRequest request)
    : Sender(call),
      parts_(parts),
      caller_(std::move(caller)),
      memory_(std::move(memory)),
      counted_(std::move(counted)),
      manifest_(std::move(request), parts.limits),
      window_(2 * std::size_t{parts.workers} + 2),
      estimate_(parts.workers),
      failure_(manifest_.problem()) {
  failure_ ? Continue() : ExpandSoon();
}

void EnsureReactor::ExpandSoon() {
  if (parts_.flow.Post(parts_.executor, caller_.tenant, [this] { Expand(); })) return;
  {
    cache::MutexLock lock(mutex_);
    if (!failure_) failure_ = ExecutorFull(caller_.tenant);
  }
  Continue();
}

void EnsureReactor::Expand() {
  {
    cache::MutexLock lock(mutex_);
    if (failure_) {
      lock.Unlock();
      return Continue();
    }
  }
  if (!manifest_.ExpandSome()) return parts_.executor.Resume(caller_.tenant, [this] { Expand(); });
  {
    cache::MutexLock lock(mutex_);
    items_.resize(manifest_.items().size());
    todo_.resize(items_.size());
    std::iota(todo_.begin(), todo_.end(), std::size_t{0});
    progress_.set_total(static_cast<std::uint32_t>(items_.size()));
    news_ = true;
  }
  Continue();
}

// Called by a holder of a count: starts as many items as allowed, then gives up the count.
void EnsureReactor::Continue() {
  for (;;) {
    StartSome();
    cache::MutexLock lock(mutex_);
    const bool alone = running_ == 1 && !failure_;
    if (alone && looking_ && next_ == todo_.size() && !misses_.empty()) {
      looking_ = false;
      parts_.notes->Mark("lookup");
      todo_ = misses_;
      next_ = 0;
      continue;
    }
    if (alone && next_ < todo_.size()) continue;  // somebody else's place became free meanwhile
    --running_;
    const auto status = Advance();
    lock.Unlock();
    return End(status);
  }
}

// False ends the call.
bool EnsureReactor::MayGoOn() {
  auto confirmed = parts_.gate.Confirm(caller_, "EnsureKernels");
  if (confirmed) return true;
  cache::MutexLock lock(mutex_);
  if (!failure_) failure_ = std::move(confirmed.error());
  return false;
}

void EnsureReactor::StartSome() {
  while (MayGoOn()) {
    std::size_t index = 0;
    bool lookup = false;
    {
      cache::MutexLock lock(mutex_);
      const std::size_t places = looking_ ? kLookups : window_;
      if (failure_ || paused_ || throttled_ || next_ == todo_.size() || running_ > places) return;
      if (unwritten_bytes_ > kMaxUnwrittenBytes) {
        throttled_ = true;
        ++running_;
        return;
      }
      index = todo_[next_++];
      if (NoteProblem(index)) continue;
      lookup = looking_;
      items_[index].running = true;
      items_[index].began = parts_.clock.SteadyNow();
      ++running_;
    }
    Start(index, lookup);
  }
}

void EnsureReactor::Start(std::size_t index, bool lookup) {
  const Manifest::Item& item = manifest_.items()[index];
  auto call = parts_.flow.Start({.id = RequestIdText(NextRequestNumber()),
                                 .caller = caller_,
                                 .bytes = manifest_.BytesOf(item),
                                 .digest = item.digest,
                                 .accepted = parts_.accepted,
                                 .lookup_only = lookup,
                                 .durable = true,
                                 .part_of_another = true,
                                 .remember_miss = lookup,
                                 .on_stage = {},
                                 .done = [this, index, lookup](Outcome outcome) { Ended(index, lookup, std::move(outcome)); }});
  // The item may have ended already, and this object with it, if the caller did not hold a count until StartSome has returned.
  cache::MutexLock lock(mutex_);
  if (!items_[index].running || items_[index].call) return;
  items_[index].call = call;
  const bool stop = failure_.has_value();
  lock.Unlock();
  if (stop) parts_.flow.Cancel(call);
}

void EnsureReactor::Ended(std::size_t index, bool lookup, Outcome outcome) {
  {
    cache::MutexLock lock(mutex_);
    items_[index].running = false;
    items_[index].call.reset();
    if (!lookup) parts_.notes->Add("kernel", items_[index].began, parts_.clock.SteadyNow() - items_[index].began);
    if (outcome) {
      Note(index, outcome);
    } else if (outcome.error().kind == Failure::Kind::kQueueFull) {
      todo_.push_back(index);
      Pause(outcome.error().retry_after.value_or(std::chrono::seconds(1)));
    } else if (lookup && outcome.error().kind == Failure::Kind::kNotFound) {
      misses_.push_back(index);
      items_[index].part = estimate_.Expect(manifest_.SizeOf(manifest_.items()[index]));
    } else if (EndsTheCall(outcome.error())) {
      if (!failure_) failure_ = std::move(outcome.error());
    } else {
      Note(index, outcome);
    }
  }
  Continue();
}

void EnsureReactor::Note(std::size_t index, const Outcome& outcome) {
  const Manifest::Item& item = manifest_.items()[index];
  v1::EnsuredKernel& kernel = *progress_.add_kernels();
  kernel.set_request(item.request);
  kernel.set_target(std::string(manifest_.TargetOf(item)));
  if (outcome) {
    kernel.set_key(outcome->key.bytes.data(), outcome->key.bytes.size());
    kernel.set_origin(outcome->origin);
    kernel.set_bytes(outcome->kept.size());
    kernel.set_durable(outcome->durable);
  } else {
    const Failure& failure = outcome.error();
    const grpc::Status status = ToStatus(failure);
    kernel.set_code(status.error_code());
    kernel.set_message(status.error_message());
    *kernel.mutable_failure() = FittingFailure(failure, kDefaultDetailsBytes);
  }
  unwritten_bytes_ += kernel.ByteSizeLong();
  if (!looking_) estimate_.Done(items_[index].part, SpentMs(outcome), parts_.clock.SteadyNow());
  if (!outcome) {
    progress_.set_failed(progress_.failed() + 1);
  } else if (looking_) {
    progress_.set_known(progress_.known() + 1);
  } else {
    progress_.set_compiled(progress_.compiled() + 1);
  }
  news_ = true;
}

// Notes an item that cannot be compiled, and so needs no lookup; false if it has no problem.
bool EnsureReactor::NoteProblem(std::size_t index) {
  auto problem = manifest_.ProblemOf(manifest_.items()[index]);
  if (problem) Note(index, std::unexpected(std::move(*problem)));
  return problem.has_value();
}

void EnsureReactor::Pause(std::chrono::milliseconds time) {
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

// Writes new progress, or the status if nothing runs any more. Once the mutex is free after that, this object may be gone.
std::optional<grpc::Status> EnsureReactor::Advance() {
  if (busy_) return std::nullopt;
  if (news_ && !broken_) {
    const cache::SteadyTime now = parts_.clock.SteadyNow();
    progress_.set_elapsed_seconds(Seconds(now - began_));
    progress_.clear_remaining_seconds();
    if (const auto remaining = looking_ ? std::nullopt : estimate_.RemainingSeconds(now)) progress_.set_remaining_seconds(*remaining);
    writing_ = ToBuffer(progress_);
    progress_.clear_kernels();
    unwritten_bytes_ = 0;
    news_ = false;
    busy_ = true;
    StartWrite(&writing_);
    return std::nullopt;
  }
  if (running_ > 0) return std::nullopt;
  busy_ = true;  // finished
  return failure_ ? ToStatus(*failure_) : grpc::Status::OK;
}

void EnsureReactor::End(const std::optional<grpc::Status>& status) {
  if (!status) return;
  counted_.reset();
  Finish(*status);
}

void EnsureReactor::OnWriteDone(bool ok) {
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

void EnsureReactor::OnCancel() {
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
