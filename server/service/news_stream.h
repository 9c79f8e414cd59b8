// SPDX-License-Identifier: Apache-2.0
//
// The answer to who asks how far a tuning is: a client that reads slowly gets the latest news and misses those before. One write is under way at
// a time. `Stream` is the reactor that the messages go through.
#pragma once

#include <optional>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "cache/mutex.h"
#include "kiln/v1/tune.pb.h"
#include "server/access/gate.h"
#include "server/door/call_watch.h"
#include "server/door/refused_call.h"
#include "server/reply/status_map.h"
#include "server/tune/tune_flow.h"
#include "server/wire/wire.h"

namespace kiln::server {

template <class Stream>
class NewsStream : public Stream {
 protected:
  // `confirm` is asked before the last message goes.
  template <class... Arguments>
  NewsStream(grpc::CallbackServerContext& context, Confirmation confirm, Arguments&... arguments)
      : Stream(arguments...), context_(context), confirm_(std::move(confirm)) {}
  ~NewsStream() = default;

  grpc::CallbackServerContext& context() { return context_; }
  std::expected<void, Failure> Confirm() const { return confirm_(); }

  grpc::Status Refuse(const Failure& failure) {
    RecordOf(context_).reason = ReasonOf(failure.kind);
    return ToStatus(failure, DetailsLimit(context_));
  }

  void Tell(const v1::TuneProgress& progress) {
    {
      cache::MutexLock lock(mutex_);
      next_ = ToBuffer(progress);
    }
    Advance();
  }

  // The last one, and the end.
  void Answer(TuneFlow::Told told) {
    if (auto confirmed = told ? confirm_() : std::expected<void, Failure>(); !confirmed) told = std::unexpected(std::move(confirmed.error()));
    grpc::Status status = told ? grpc::Status::OK : Refuse(told.error());
    {
      cache::MutexLock lock(mutex_);
      if (told) {
        next_ = ToBuffer(*told);
        RecordOf(context_).origin = told->origin();
        RecordOf(context_).bytes_out += next_->Length();
      } else {
        next_.reset();
      }
      end_ = std::move(status);
    }
    Advance();
  }

 private:
  void OnWriteDone(bool ok) final {
    {
      cache::MutexLock lock(mutex_);
      busy_ = false;
      if (!ok) next_.reset();  // nobody reads any more
    }
    Advance();
  }

  // The next message, or the end. After the end this object may be gone.
  void Advance() {
    cache::MutexLock lock(mutex_);
    if (busy_) return;
    if (next_) {
      busy_ = true;
      writing_ = std::move(*next_);
      next_.reset();
      this->StartWrite(&writing_);
      return;
    }
    if (!end_) return;
    busy_ = true;
    const grpc::Status status = *end_;
    lock.Unlock();
    this->Finish(status);
  }

  grpc::CallbackServerContext& context_;
  const Confirmation confirm_;
  cache::Mutex mutex_;
  std::optional<grpc::ByteBuffer> next_ KILN_GUARDED_BY(mutex_);
  grpc::ByteBuffer writing_ KILN_GUARDED_BY(mutex_);
  bool busy_ KILN_GUARDED_BY(mutex_) = false;  // a write is under way, or the call has ended
  std::optional<grpc::Status> end_ KILN_GUARDED_BY(mutex_);
};

}  // namespace kiln::server
