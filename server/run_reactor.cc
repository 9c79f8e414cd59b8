// SPDX-License-Identifier: Apache-2.0
#include "server/run_reactor.h"

#include <algorithm>
#include <utility>

#include "server/call_watch.h"
#include "server/reactors.h"
#include "server/status_map.h"

namespace kiln::server {

RunReactor::RunReactor(grpc::CallbackServerContext& context, RunFlow& flow, Caller caller)
    : context_(context), flow_(flow), caller_(std::move(caller)) {
  context.AddTrailingMetadata("kiln-request-id", RequestIdOf(context));
  StartRead(&request_);
}

void RunReactor::OnReadDone(bool ok) {
  if (!ok) return AllRead();
  RecordOf(context_).bytes_in += request_.ByteSizeLong();
  if (const auto problem = Take()) return Finish(Refuse(*problem));
  StartRead(&request_);
}

grpc::Status RunReactor::Refuse(const Failure& failure) {
  RecordOf(context_).reason = ReasonOf(failure.kind);
  return ToStatus(failure, DetailsLimit(context_));
}

// One message.
std::optional<Failure> RunReactor::Take() {
  if (!call_ && request_.has_start()) {
    auto call = flow_.Begin(std::move(caller_), RequestIdOf(context_), NotesOf(context_), std::move(*request_.mutable_start()));
    if (!call) return std::move(call.error());
    std::lock_guard lock(mutex_);
    call_ = std::move(*call);
    return std::nullopt;
  }
  if (call_ && request_.part_case() == v1::RunRequest::kData) return flow_.Add(*call_, request_.data());
  return Failure{.kind = Failure::Kind::kMalformed,
                 .message = call_ ? "a Run sends one start, and then data only" : "the first message of a Run is its start"};
}

void RunReactor::AllRead() {
  if (!call_) {
    return Finish(Refuse({.kind = Failure::Kind::kMalformed, .message = "the first message of a Run is its start"}));
  }
  flow_.Run(call_, [this](RunFlow::Ran ran) { Answer(std::move(ran)); });
}

void RunReactor::Answer(RunFlow::Ran ran) {
  if (!ran) return Finish(Refuse(ran.error()));
  output_ = std::move(*ran);
  reply_.mutable_result()->Swap(&output_.result);
  RecordOf(context_).origin = reply_.result().origin();
  RecordOf(context_).bytes_out += reply_.ByteSizeLong();
  StartWrite(&reply_);
}

void RunReactor::OnWriteDone(bool ok) { ok ? Next() : Finish(grpc::Status::CANCELLED); }

void RunReactor::Next() {
  while (extent_ < output_.extents.size() && sent_ == output_.extents[extent_].bytes) {
    ++extent_;
    sent_ = 0;
  }
  if (extent_ == output_.extents.size()) return Finish(grpc::Status::OK);
  const RunFlow::Output::Extent& extent = output_.extents[extent_];
  std::string& data = *reply_.mutable_data();
  data.resize(std::min<std::uint64_t>(RunFlow::kPiece, extent.bytes - sent_));
  if (!output_.memory->Read(extent.position + sent_, data.data(), data.size())) {
    return Finish(Refuse({.kind = Failure::Kind::kStore, .message = "the outputs cannot be read back"}));
  }
  RecordOf(context_).bytes_out += data.size();
  sent_ += data.size();
  StartWrite(&reply_);
}

void RunReactor::OnCancel() {
  std::shared_ptr<RunFlow::Call> call;
  {
    std::lock_guard lock(mutex_);
    call = call_;
  }
  if (call) flow_.Cancel(call);
}

}  // namespace kiln::server
