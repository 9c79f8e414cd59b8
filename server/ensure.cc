// SPDX-License-Identifier: Apache-2.0
#include "server/ensure.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "server/refusals.h"
#include "server/status_map.h"
#include "server/telemetry.h"
#include "server/wire.h"

namespace kiln::server {
namespace {

constexpr std::size_t kLookups = 32;        // at one time
constexpr std::size_t kSampleForEstimate = 8;

double Seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

Failure TooMany(std::size_t items) {
  return {.kind = Failure::Kind::kMalformed,
          .message = fmt::format("the manifest has {} requests × targets; send it in parts of at most {}", items,
                                 EnsureReactor::kMaxItems)};
}

bool EndsTheCall(const Failure& failure) {
  return failure.kind == Failure::Kind::kDraining || failure.kind == Failure::Kind::kCancelled;
}

}  // namespace

EnsureReactor::EnsureReactor(CompileFlow& flow, Caller caller, const v1::EnsureRequest& request, unsigned workers)
    : flow_(flow), caller_(std::move(caller)), request_(request), window_(2 * std::size_t{workers} + 2) {
  Expand();
  Continue();
}

void EnsureReactor::Expand() {
  const auto requests = static_cast<std::size_t>(request_.requests_size());
  const std::size_t total = requests * std::max<std::size_t>(1, static_cast<std::size_t>(request_.targets_size()));
  if (total > kMaxItems) {
    failure_ = TooMany(total);
    return;
  }
  for (int i = 0; i < request_.requests_size(); ++i) {
    if (request_.targets().empty()) items_.push_back({.request = i, .target = request_.requests(i).target()});
    for (const std::string& target : request_.targets()) items_.push_back({.request = i, .target = target});
  }
  for (Item& item : items_) item.digest = DigestOf("Compile", std::string_view(BytesOf(item)));
  std::ranges::sort(items_, {}, &Item::digest);
  todo_.resize(items_.size());
  std::iota(todo_.begin(), todo_.end(), std::size_t{0});
  progress_.set_total(static_cast<std::uint32_t>(items_.size()));
  news_ = true;
}

std::string EnsureReactor::BytesOf(const Item& item) const {
  v1::CompileRequest request = request_.requests(item.request);
  request.set_target(item.target);
  request.clear_explain();
  if (request.priority() == v1::INTERACTIVE) request.set_priority(v1::BATCH);
  return request.SerializeAsString();
}

// Of whoever holds a count: starts what may be started, and gives the count up.
void EnsureReactor::Continue() {
  for (;;) {
    StartSome();
    std::unique_lock lock(mutex_);
    const bool alone = running_ == 1 && !failure_;
    if (alone && looking_ && next_ == todo_.size() && !misses_.empty()) {
      looking_ = false;
      todo_ = misses_;
      next_ = 0;
      continue;
    }
    if (alone && next_ < todo_.size()) continue;  // somebody else's place became free meanwhile
    --running_;
    return Advance(std::move(lock));
  }
}

void EnsureReactor::StartSome() {
  for (;;) {
    std::size_t index = 0;
    bool lookup = false;
    {
      std::lock_guard lock(mutex_);
      const std::size_t places = looking_ ? kLookups : window_;
      if (failure_ || paused_ || next_ == todo_.size() || running_ > places) return;
      index = todo_[next_++];
      lookup = looking_;
      items_[index].running = true;
      ++running_;
    }
    Start(index, lookup);
  }
}

void EnsureReactor::Start(std::size_t index, bool lookup) {
  const cache::Digest digest = items_[index].digest;
  auto call = flow_.Start({.id = RequestIdText(NextRequestNumber()),
                           .caller = caller_,
                           .bytes = BytesOf(items_[index]),
                           .digest = digest,
                           .lookup_only = lookup,
                           .remember_miss = lookup,
                           .on_stage = {},
                           .done = [this, index, lookup](Outcome outcome) { Ended(index, lookup, std::move(outcome)); }});
  // The item may have ended already, and with it this object: its caller holds a count until StartSome is through.
  std::unique_lock lock(mutex_);
  if (!items_[index].running || items_[index].call) return;
  items_[index].call = call;
  const bool stop = failure_.has_value();
  lock.unlock();
  if (stop) flow_.Cancel(call);
}

void EnsureReactor::Ended(std::size_t index, bool lookup, Outcome outcome) {
  {
    std::lock_guard lock(mutex_);
    items_[index].running = false;
    items_[index].call.reset();
    if (outcome) {
      Note(index, outcome);
    } else if (outcome.error().kind == Failure::Kind::kQueueFull) {
      todo_.push_back(index);
      Pause(outcome.error().retry_after.value_or(std::chrono::seconds(1)));
    } else if (lookup && outcome.error().kind == Failure::Kind::kNotFound) {
      misses_.push_back(index);
    } else if (EndsTheCall(outcome.error())) {
      if (!failure_) failure_ = std::move(outcome.error());
    } else {
      Note(index, outcome);
    }
  }
  Continue();
}

void EnsureReactor::Note(std::size_t index, const Outcome& outcome) {
  const Item& item = items_[index];
  v1::EnsuredKernel& kernel = *progress_.add_kernels();
  kernel.set_request(static_cast<std::uint32_t>(item.request));
  kernel.set_target(item.target);
  if (outcome) {
    kernel.set_key(outcome->key.bytes.data(), outcome->key.bytes.size());
    kernel.set_origin(outcome->origin);
    kernel.set_bytes(outcome->kept.size());
  } else {
    const Failure& failure = outcome.error();
    kernel.set_code(ToStatus(failure).error_code());
    kernel.set_message(failure.message);
    for (const v1::Diagnostic& diagnostic : failure.diagnostics) *kernel.mutable_failure()->add_diagnostics() = diagnostic;
    kernel.mutable_failure()->set_reproducer(failure.reproducer);
  }
  if (!looking_ && made_++ == 0) first_made_ = Clock::now();
  if (!outcome) {
    progress_.set_failed(progress_.failed() + 1);
  } else if (looking_) {
    progress_.set_known(progress_.known() + 1);
  } else {
    progress_.set_compiled(progress_.compiled() + 1);
  }
  news_ = true;
}

void EnsureReactor::Pause(std::chrono::milliseconds time) {
  if (paused_ || failure_) return;
  paused_ = true;
  ++running_;
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + time, [this](bool) {
    {
      std::lock_guard lock(mutex_);
      paused_ = false;
    }
    Continue();
  });
}

// Of what must be compiled: as it went since the first was there, for what came before that was waiting. Nothing before there is
// a sample.
std::optional<double> EnsureReactor::Remaining() const {
  if (looking_) return std::nullopt;
  const std::size_t left = misses_.size() - made_;
  if (left == 0) return 0.0;
  if (made_ < 2 || (made_ < kSampleForEstimate && made_ * 10 < misses_.size())) return std::nullopt;
  return Seconds(Clock::now() - first_made_) * static_cast<double>(left) / static_cast<double>(made_ - 1);
}

// Writes what is new, or finishes when nothing runs any more; after that this object may be gone.
void EnsureReactor::Advance(std::unique_lock<std::mutex> lock) {
  if (busy_) return;
  if (news_ && !broken_) {
    progress_.set_elapsed_seconds(Seconds(Clock::now() - began_));
    progress_.clear_remaining_seconds();
    if (const auto remaining = Remaining()) progress_.set_remaining_seconds(*remaining);
    writing_ = progress_;
    progress_.clear_kernels();
    news_ = false;
    busy_ = true;
    StartWrite(&writing_);
    return;
  }
  if (running_ > 0) return;
  const grpc::Status status = failure_ ? ToStatus(*failure_) : grpc::Status::OK;
  busy_ = true;  // finished
  lock.unlock();
  Finish(status);
}

void EnsureReactor::OnWriteDone(bool ok) {
  std::unique_lock lock(mutex_);
  busy_ = false;
  broken_ |= !ok;
  Advance(std::move(lock));
}

void EnsureReactor::OnCancel() {
  std::vector<std::shared_ptr<CompileFlow::Call>> calls;
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = Cancelled();
    for (const Item& item : items_) {
      if (item.call) calls.push_back(item.call);
    }
    if (paused_) alarm_->Cancel();
  }
  for (const auto& call : calls) flow_.Cancel(call);
}

}  // namespace kiln::server
