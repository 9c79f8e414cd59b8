// SPDX-License-Identifier: Apache-2.0
#include "server/flow/parts_stream.h"

#include <numeric>
#include <utility>

#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {
namespace {

constexpr std::size_t kMaxUnwrittenBytes = 256 << 10;  // beyond that nothing more is started until the client has read

bool EndsTheCall(const Failure& failure) { return failure.kind == Failure::Kind::kDraining || failure.kind == Failure::Kind::kCancelled; }

}  // namespace

PartsStream::PartsStream(ArrivingCall& call, const Parts& parts, std::string_view method, Caller caller, TenantBudget::Charge memory,
                         Quotas::InFlight counted)
    : Sender(call),
      parts_(parts),
      caller_(std::move(caller)),
      method_(method),
      memory_(std::move(memory)),
      counted_(std::move(counted)),
      window_(2 * std::size_t{parts.workers} + 2) {}

void PartsStream::SetTodo(std::size_t parts) {
  std::vector<std::size_t> todo(parts);
  std::iota(todo.begin(), todo.end(), std::size_t{0});
  all_.resize(parts);
  SetTodo(std::move(todo));
}

void PartsStream::SetTodo(std::vector<std::size_t> todo) {
  todo_ = std::move(todo);
  next_ = 0;
}

void PartsStream::FailWith(Failure failure) {
  if (!failure_) failure_ = std::move(failure);
}

void PartsStream::Continue() {
  for (;;) {
    StartSome();
    cache::MutexLock lock(mutex_);
    const bool alone = running_ == 1 && !failure_;
    if (alone && NothingLeft() && NextRound()) continue;
    if (alone && !NothingLeft()) continue;  // somebody else's place became free meanwhile
    --running_;
    const auto status = Advance();
    lock.Unlock();
    return End(status);
  }
}

// False ends the call.
bool PartsStream::MayGoOn() {
  auto confirmed = parts_.gate.Confirm(caller_, method_);
  if (confirmed) return true;
  cache::MutexLock lock(mutex_);
  FailWith(std::move(confirmed.error()));
  return false;
}

void PartsStream::StartSome() {
  while (MayGoOn()) {
    std::size_t part = 0;
    {
      cache::MutexLock lock(mutex_);
      if (failure_ || paused_ || throttled_ || NothingLeft() || running_ > Window()) return;
      if (unwritten_bytes_ > kMaxUnwrittenBytes) {
        throttled_ = true;
        ++running_;
        return;
      }
      part = todo_[next_++];
      if (auto problem = ProblemOf(part)) {
        Note(part, std::unexpected(std::move(*problem)));
        continue;
      }
      all_[part].running = true;
      ++running_;
    }
    Start(part);
  }
}

void PartsStream::Start(std::size_t part) {
  CompileFlow::Request request = RequestOf(part);
  request.id = RequestIdText(NextRequestNumber());
  request.caller = caller_;
  request.accepted = parts_.accepted;
  request.part_of_another = true;
  request.done = [this, part](Outcome outcome) { Ended(part, std::move(outcome)); };
  auto call = parts_.flow.Start(std::move(request));
  // The part may have ended already, and this object with it, if the caller did not hold a count until StartSome has returned.
  cache::MutexLock lock(mutex_);
  if (!all_[part].running || all_[part].call) return;
  all_[part].call = call;
  const bool stop = failure_.has_value();
  lock.Unlock();
  if (stop) parts_.flow.Cancel(call);
}

void PartsStream::Ended(std::size_t part, Outcome outcome) {
  bool starts_others = true;
  {
    cache::MutexLock lock(mutex_);
    all_[part].running = false;
    all_[part].call.reset();
    if (!outcome && outcome.error().kind == Failure::Kind::kQueueFull) {
      todo_.push_back(part);
      Pause(outcome.error().retry_after.value_or(std::chrono::seconds(1)));
    } else if (!outcome && EndsTheCall(outcome.error())) {
      FailWith(std::move(outcome.error()));
    } else {
      Note(part, outcome);
    }
    starts_others = !failure_;
  }
  // The end of the call waits for no thread of the executor, which may be busy for long.
  if (!starts_others) return Continue();
  // On the executor, for one that ended where it was started would start the next within itself.
  parts_.executor.Resume(caller_.tenant, [this] { Continue(); });
}

void PartsStream::Pause(std::chrono::milliseconds time) {
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
std::optional<grpc::Status> PartsStream::Advance() {
  if (busy_) return std::nullopt;
  if (HasNews() && !broken_) {
    writing_ = TakeNews();
    unwritten_bytes_ = 0;
    busy_ = true;
    StartWrite(&writing_);
    return std::nullopt;
  }
  if (running_ > 0) return std::nullopt;
  busy_ = true;  // finished
  return failure_ ? ToStatus(*failure_) : grpc::Status::OK;
}

void PartsStream::End(const std::optional<grpc::Status>& status) {
  if (!status) return;
  counted_.reset();
  Finish(*status);
}

void PartsStream::OnWriteDone(bool ok) {
  cache::MutexLock lock(mutex_);
  busy_ = false;
  broken_ |= !ok;
  if (broken_) FailWith(Cancelled());
  const bool resume = std::exchange(throttled_, false);
  const auto status = Advance();
  lock.Unlock();
  End(status);
  if (resume) parts_.executor.Resume(caller_.tenant, [this] { Continue(); });
}

void PartsStream::OnCancel() {
  std::vector<std::shared_ptr<CompileFlow::Call>> calls;
  {
    cache::MutexLock lock(mutex_);
    FailWith(Cancelled());
    for (const Part& part : all_) {
      if (part.call) calls.push_back(part.call);
    }
    if (paused_) alarm_->Cancel();
  }
  for (const auto& call : calls) parts_.flow.Cancel(call);
}

}  // namespace kiln::server
