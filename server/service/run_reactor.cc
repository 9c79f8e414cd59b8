// SPDX-License-Identifier: Apache-2.0
#include "server/service/run_reactor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "server/door/call_watch.h"
#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/service/reactors.h"
#include "server/wire/message_reader.h"
#include "server/wire/wire.h"

namespace kiln::server {

RunReactor::RunReactor(grpc::CallbackServerContext& context, RunFlow& flow, std::size_t message_bytes, Caller caller, Confirmation confirm,
                       MessageRoom* room, int connection)
    : context_(context),
      flow_(flow),
      message_bytes_(message_bytes),
      caller_(std::move(caller)),
      confirm_(std::move(confirm)),
      waiter_(room, connection, caller_.tenant),
      watched_(std::make_shared<Watched>()) {
  watched_->reactor = this;
  context.AddTrailingMetadata("kiln-request-id", RequestIdOf(context));
  Watch(Phase::kReading);
  Read();
}

// The MessageRoom may refuse at once, which changes the phase. Not called under the lock, which a refusal takes.
void RunReactor::Read() {
  waiter_.Wait([this](const Failure& failure) { EndReading(failure); });
  cache::MutexLock lock(mutex_);  // no read begins once the call was ended
  if (phase_ == Phase::kReading) StartRead(&reading_);
}

void RunReactor::EndReading(const Failure& failure) {
  if (!Advance(Phase::kReading, Phase::kEnded)) return;
  {
    cache::MutexLock lock(mutex_);
    call_.reset();  // with what it held, before the client may call again
  }
  Finish(Refuse(failure));
}

void RunReactor::OnDone() {
  {
    cache::MutexLock lock(watched_->mutex);
    watched_->reactor = nullptr;
  }
  delete this;
}

// From now on, for the phase that begins.
void RunReactor::Watch(Phase phase) {
  alarm_ = std::make_unique<grpc::Alarm>();
  // gRPC's alarms ring by its own clock, which nobody can inject.
  alarm_->Set(std::chrono::system_clock::now() + flow_.transfer(), [watched = watched_, phase](bool rang) {
    cache::MutexLock lock(watched->mutex);
    if (rang && watched->reactor != nullptr) watched->reactor->Expire(phase);
  });
}

void RunReactor::Expire(Phase watched) {
  if (!Advance(watched, Phase::kEnded)) return;
  if (watched == Phase::kWriting) return context_.TryCancel();  // who does not read sees no status
  const double limit = std::chrono::duration<double>(flow_.transfer()).count();
  Finish(Refuse({.kind = Failure::Kind::kTooMuch,
                 .message = fmt::format("the tensors did not come within {} s, as long as this kilnd holds memory for them "
                                        "(--run-transfer); send less, or over a faster line",
                                        limit)}));
}

// False where it is another phase by now.
bool RunReactor::Advance(Phase from, Phase to) {
  cache::MutexLock lock(mutex_);
  if (phase_ != from) return false;
  phase_ = to;
  return true;
}

std::shared_ptr<RunFlow::Call> RunReactor::Call() {
  cache::MutexLock lock(mutex_);
  return call_;
}

void RunReactor::OnReadDone(bool ok) {
  if (!waiter_.Came()) return;
  if (!ok) return Advance(Phase::kReading, Phase::kRunning) ? AllRead() : void();
  RecordOf(context_).bytes_in += reading_.Length();
  const auto problem = Take();
  problem ? EndReading(*problem) : Read();
}

grpc::Status RunReactor::Refuse(const Failure& failure) {
  RecordOf(context_).reason = ReasonOf(failure.kind);
  return ToStatus(failure, DetailsLimit(context_));
}

// One message.
std::optional<Failure> RunReactor::Take() {
  if (auto confirmed = confirm_(); !confirmed) return std::move(confirmed.error());
  if (reading_.Length() > message_bytes_) return MessageTooLarge(reading_.Length(), message_bytes_);
  if (auto read = ReadMessage(reading_, request_); !read) return std::move(read.error());
  const auto under_way = Call();
  if (!under_way && request_.has_start()) {
    auto call =
        flow_.Begin(std::move(caller_), RequestIdOf(context_), NotesOf(context_), WasAccepted(context_), std::move(*request_.mutable_start()));
    if (!call) return std::move(call.error());
    cache::MutexLock lock(mutex_);
    call_ = std::move(*call);
    return std::nullopt;
  }
  if (under_way && request_.part_case() == v1::RunRequest::kData) return flow_.Add(*under_way, request_.data());
  return Failure{.kind = Failure::Kind::kMalformed,
                 .message = under_way ? "a Run sends one start, and then data only" : "the first message of a Run is its start"};
}

void RunReactor::AllRead() {
  const auto call = Call();
  if (!call) {
    return Finish(Refuse({.kind = Failure::Kind::kMalformed, .message = "the first message of a Run is its start"}));
  }
  flow_.Run(call, [this](RunFlow::Ran ran) { Answer(std::move(ran)); });
}

void RunReactor::Answer(RunFlow::Ran ran) {
  if (auto confirmed = ran ? confirm_() : std::expected<void, Failure>(); !confirmed) ran = std::unexpected(std::move(confirmed.error()));
  if (!ran) return Finish(Refuse(ran.error()));
  output_ = std::move(*ran);
  reply_.mutable_result()->Swap(&output_.result);
  RecordOf(context_).origin = reply_.result().origin();
  RecordOf(context_).bytes_out += reply_.ByteSizeLong();
  Advance(Phase::kRunning, Phase::kWriting);
  Watch(Phase::kWriting);
  Send();
}

void RunReactor::OnWriteDone(bool ok) { ok ? Next() : Finish(grpc::Status::CANCELLED); }

void RunReactor::Next() {
  while (extent_ < output_.extents.size() && sent_ == output_.extents[extent_].bytes) {
    ++extent_;
    sent_ = 0;
  }
  if (extent_ == output_.extents.size()) {
    output_.memory.reset();
    return Finish(grpc::Status::OK);
  }
  if (const auto confirmed = confirm_(); !confirmed) return Finish(Refuse(confirmed.error()));
  const RunFlow::Output::Extent& extent = output_.extents[extent_];
  std::string& data = *reply_.mutable_data();
  data.resize(std::min<std::uint64_t>(RunFlow::kPiece, extent.bytes - sent_));
  if (!output_.memory->Read(extent.position + sent_, data.data(), data.size())) {
    return Finish(Refuse({.kind = Failure::Kind::kStore, .message = "the outputs cannot be read back"}));
  }
  RecordOf(context_).bytes_out += data.size();
  sent_ += data.size();
  Send();
}

void RunReactor::Send() {
  writing_ = ToBuffer(reply_);
  StartWrite(&writing_);
}

void RunReactor::OnCancel() {
  const auto call = Call();
  if (call) flow_.Cancel(call);
}

}  // namespace kiln::server
