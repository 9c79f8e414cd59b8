// SPDX-License-Identifier: Apache-2.0
#include "server/flow/ensure.h"

#include <utility>

#include <fmt/format.h>

#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/telemetry/telemetry.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

constexpr std::size_t kLookups = 32;  // at one time

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

}  // namespace

EnsureReactor::EnsureReactor(ArrivingCall& call, const Parts& parts, std::shared_ptr<CallNotes> notes, const cache::Clock& clock, Caller caller,
                             TenantBudget::Charge memory, Quotas::InFlight counted, v1::EnsureRequest request)
    : PartsStream(call, parts, "EnsureKernels", std::move(caller), std::move(memory), std::move(counted)),
      notes_(std::move(notes)),
      clock_(clock),
      manifest_(std::move(request), parts.limits),
      estimate_(parts.workers) {
  if (const auto problem = manifest_.problem()) {
    {
      cache::MutexLock lock(mutex_);
      FailWith(*problem);
    }
    Continue();
  } else {
    ExpandSoon();
  }
}

void EnsureReactor::ExpandSoon() {
  if (parts_.flow.Post(parts_.executor, caller_.tenant, [this] { Expand(); })) return;
  {
    cache::MutexLock lock(mutex_);
    FailWith(ExecutorFull(caller_.tenant));
  }
  Continue();
}

void EnsureReactor::Expand() {
  {
    cache::MutexLock lock(mutex_);
    if (failed()) {
      lock.Unlock();
      return Continue();
    }
  }
  if (!manifest_.ExpandSome()) return parts_.executor.Resume(caller_.tenant, [this] { Expand(); });
  {
    cache::MutexLock lock(mutex_);
    items_.resize(manifest_.items().size());
    SetTodo(items_.size());
    progress_.set_total(static_cast<std::uint32_t>(items_.size()));
    news_ = true;
  }
  Continue();
}

std::size_t EnsureReactor::Window() const { return looking_ ? kLookups : PartsStream::Window(); }

// What was not found is compiled.
bool EnsureReactor::NextRound() {
  if (!looking_ || misses_.empty()) return false;
  looking_ = false;
  notes_->Mark("lookup");
  SetTodo(misses_);
  return true;
}

CompileFlow::Request EnsureReactor::RequestOf(std::size_t part) {
  const Manifest::Item& item = manifest_.items()[part];
  bool lookup = false;
  {
    cache::MutexLock lock(mutex_);
    lookup = looking_;
    items_[part].began = clock_.SteadyNow();
  }
  CompileFlow::Request request;
  request.bytes = manifest_.BytesOf(item);
  request.digest = item.digest;
  request.lookup_only = lookup;
  request.durable = true;
  request.remember_miss = lookup;
  return request;
}

void EnsureReactor::Note(std::size_t part, const Outcome& outcome) {
  if (looking_ && !outcome && outcome.error().kind == Failure::Kind::kNotFound) {
    misses_.push_back(part);
    items_[part].part = estimate_.Expect(manifest_.SizeOf(manifest_.items()[part]));
    return;
  }
  if (!looking_) notes_->Add("kernel", items_[part].began, clock_.SteadyNow() - items_[part].began);
  Tell(part, outcome);
}

void EnsureReactor::Tell(std::size_t part, const Outcome& outcome) {
  const Manifest::Item& item = manifest_.items()[part];
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
  AddUnwritten(kernel.ByteSizeLong());
  if (!looking_) estimate_.Done(items_[part].part, SpentMs(outcome), clock_.SteadyNow());
  if (!outcome) {
    progress_.set_failed(progress_.failed() + 1);
  } else if (looking_) {
    progress_.set_known(progress_.known() + 1);
  } else {
    progress_.set_compiled(progress_.compiled() + 1);
  }
  news_ = true;
}

grpc::ByteBuffer EnsureReactor::TakeNews() {
  const cache::SteadyTime now = clock_.SteadyNow();
  progress_.set_elapsed_seconds(Seconds(now - began_));
  progress_.clear_remaining_seconds();
  if (const auto remaining = looking_ ? std::nullopt : estimate_.RemainingSeconds(now)) progress_.set_remaining_seconds(*remaining);
  grpc::ByteBuffer news = ToBuffer(progress_);
  progress_.clear_kernels();
  news_ = false;
  return news;
}

}  // namespace kiln::server
