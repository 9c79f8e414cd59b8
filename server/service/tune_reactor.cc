// SPDX-License-Identifier: Apache-2.0
#include "server/service/tune_reactor.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "server/door/call_watch.h"
#include "server/door/refused_call.h"
#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/wire/message_reader.h"
#include "server/wire/wire.h"

namespace kiln::server {

TuneReactor::TuneReactor(grpc::CallbackServerContext& context, TuneFlow& flow, std::size_t message_bytes, Caller caller, Confirmation confirm,
                         MessageRoom* room, int connection)
    : NewsStream(context, std::move(confirm)),
      flow_(flow),
      message_bytes_(message_bytes),
      caller_(std::move(caller)),
      waiter_(room, connection, caller_.tenant),
      watched_(std::make_shared<Watched>()) {
  watched_->reactor = this;
  context.AddTrailingMetadata("kiln-request-id", RequestIdOf(context));
  // gRPC's alarms ring by its own clock, which nobody can inject.
  alarm_.Set(std::chrono::system_clock::now() + flow.transfer(), [watched = watched_](bool rang) {
    cache::MutexLock lock(watched->mutex);
    if (rang && watched->reactor != nullptr) watched->reactor->Expire();
  });
  Read();
}

// The MessageRoom may refuse at once. Not called under the lock, which a refusal takes.
void TuneReactor::Read() {
  waiter_.Wait([this](const Failure& failure) { EndReading(failure); });
  cache::MutexLock lock(mutex_);  // no read begins once the call was ended
  if (reads_) StartRead(&reading_);
}

// False where it had stopped before.
bool TuneReactor::StopReading() {
  cache::MutexLock lock(mutex_);
  return std::exchange(reads_, false);
}

void TuneReactor::EndReading(const Failure& failure) {
  if (!StopReading()) return;
  {
    cache::MutexLock lock(mutex_);
    call_.reset();  // with what it held, before the client may call again
  }
  Finish(Refuse(failure));
}

void TuneReactor::Expire() {
  EndReading({.kind = Failure::Kind::kTooMuch,
              .message = fmt::format("the candidates and tensors did not come within {} s, as long as this kilnd holds memory for them "
                                     "(--run-transfer); send less, or over a faster line",
                                     std::chrono::duration<double>(flow_.transfer()).count())});
}

void TuneReactor::OnDone() {
  {
    cache::MutexLock lock(watched_->mutex);
    watched_->reactor = nullptr;
  }
  delete this;
}

std::shared_ptr<TuneFlow::Call> TuneReactor::Call() {
  cache::MutexLock lock(mutex_);
  return call_;
}

void TuneReactor::OnReadDone(bool ok) {
  if (!waiter_.Came()) return;
  if (!ok) return StopReading() ? AllRead() : void();
  RecordOf(context()).bytes_in += reading_.Length();
  const auto problem = Take();
  problem ? EndReading(*problem) : Read();
}

// One message.
std::optional<Failure> TuneReactor::Take() {
  if (auto confirmed = Confirm(); !confirmed) return std::move(confirmed.error());
  if (reading_.Length() > message_bytes_) return MessageTooLarge(reading_.Length(), message_bytes_);
  if (auto read = ReadMessage(reading_, request_); !read) return std::move(read.error());
  const auto under_way = Call();
  if (!under_way && request_.has_start()) {
    auto call = flow_.Begin(std::move(caller_), RequestIdOf(context()), WasAccepted(context()), std::move(*request_.mutable_start()));
    if (!call) return std::move(call.error());
    cache::MutexLock lock(mutex_);
    call_ = std::move(*call);
    return std::nullopt;
  }
  if (under_way && request_.has_candidate()) return flow_.Add(*under_way, std::move(*request_.mutable_candidate()));
  if (under_way && request_.part_case() == v1::TuneRequest::kData) return flow_.Add(*under_way, request_.data());
  return Failure{.kind = Failure::Kind::kMalformed,
                 .message = under_way ? "a Tune sends one start, then candidates, then data" : "the first message of a Tune is its start"};
}

void TuneReactor::AllRead() {
  const auto call = Call();
  if (!call) return Finish(Refuse({.kind = Failure::Kind::kMalformed, .message = "the first message of a Tune is its start"}));
  flow_.Run(call, [this](const v1::TuneProgress& progress) { Tell(progress); }, [this](TuneFlow::Told told) { Answer(std::move(told)); });
}

void TuneReactor::OnCancel() {
  if (const auto call = Call()) flow_.Cancel(call);
}

WatchReactor::WatchReactor(ArrivingCall& call, TuneFlow& flow, Caller caller, Confirmation confirm, Quotas::InFlight counted,
                           const cache::Digest& key)
    : NewsStream(call.context(), std::move(confirm), call), flow_(flow) {
  call_ = flow_.Watch(
      std::move(caller), RequestIdOf(context()), std::move(counted), key, [this](const v1::TuneProgress& news) { Tell(news); },
      [this](TuneFlow::Told told) { Answer(std::move(told)); });
}

}  // namespace kiln::server
