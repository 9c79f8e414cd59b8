// SPDX-License-Identifier: Apache-2.0
#include "server/service/reactors.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/door/call_watch.h"
#include "server/queue/refusals.h"
#include "server/reply/status_map.h"
#include "server/wire/message_reader.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

constexpr std::size_t kChunk = 256 << 10;

Failure ScratchFull(const TemporaryFile& file) {
  return {.kind = Failure::Kind::kStore, .message = fmt::format("cannot write {}; is the disk of the state directory full?", file.path().string())};
}

Failure ScratchLost(const TemporaryFile& file) {
  return {.kind = Failure::Kind::kStore, .message = fmt::format("cannot read {} back; only a part of the bundle was sent", file.path().string())};
}

}  // namespace

namespace {

// `request` is answered through the call from now on.
void AnswerBy(CompileFlow::Request& request, Call& call) {
  grpc::CallbackServerContext& context = call.context();
  context.AddTrailingMetadata("kiln-request-id", request.id);
  request.done = [&call, details = DetailsLimit(context)](Outcome outcome) {
    NoteOutcome(call.context(), outcome);
    if (outcome) call.response() = ToBuffer(*outcome);
    call.Answer(outcome ? grpc::Status::OK : ToStatus(outcome.error(), details));
  };
}

}  // namespace

void AnswerFrom(CompileFlow& flow, CompileFlow::Request request, Call& call) {
  AnswerBy(request, call);
  call.WhenCancelled([&flow, started = flow.Start(std::move(request))] { flow.Cancel(started); });
}

void AnswerFrom(SpaceFlow& flow, CompileFlow::Request request, Call& call) {
  AnswerBy(request, call);
  call.WhenCancelled([&flow, started = flow.Start(std::move(request), {})] { flow.Cancel(started); });
}

ProgressReactor::ProgressReactor(ArrivingCall& call, Confirmation confirm, CompileFlow::Request& request) : Sender(call) {
  grpc::CallbackServerContext& context = call.context();
  context.AddTrailingMetadata("kiln-request-id", request.id);
  request.on_stage = [this](std::string_view stage) { Add(ToProgress(stage)); };
  request.done = [this, &context, confirm = std::move(confirm), details = DetailsLimit(context)](Outcome outcome) {
    if (auto confirmed = outcome ? confirm() : std::expected<void, Failure>(); !confirmed) outcome = std::unexpected(std::move(confirmed.error()));
    NoteOutcome(context, outcome);
    End(std::move(outcome), details);
  };
}

ProgressReactor::ProgressReactor(ArrivingCall& call, CompileFlow& flow, Confirmation confirm, CompileFlow::Request request)
    : ProgressReactor(call, std::move(confirm), request) {
  cancel_ = [&flow, started = flow.Start(std::move(request))] { flow.Cancel(started); };
}

ProgressReactor::ProgressReactor(ArrivingCall& call, SpaceFlow& flow, Confirmation confirm, CompileFlow::Request request)
    : ProgressReactor(call, std::move(confirm), request) {
  const auto tell = [this](const v1::TuneProgress& news) {
    v1::CompileProgress progress;
    *progress.mutable_tuning() = news;
    Add(ToBuffer(progress));
  };
  cancel_ = [&flow, started = flow.Start(std::move(request), tell)] { flow.Cancel(started); };
}

void ProgressReactor::Add(grpc::ByteBuffer message) {
  Advance([&]() KILN_REQUIRES(mutex_) { waiting_.push_back(std::move(message)); });
}

void ProgressReactor::End(Outcome outcome, std::size_t details) {
  Advance([&]() KILN_REQUIRES(mutex_) {
    if (outcome) waiting_.push_back(ToProgress(*outcome));
    end_ = outcome ? grpc::Status::OK : ToStatus(outcome.error(), details);
  });
}

void ProgressReactor::OnWriteDone(bool ok) {
  Advance([&]() KILN_REQUIRES(mutex_) {
    busy_ = false;
    broken_ |= !ok;
  });
}

// After Finish this object may be gone, so a thread that does not have to call Finish touches nothing after the lock.
template <class Change>
void ProgressReactor::Advance(Change change) {
  std::optional<grpc::Status> finish;
  {
    cache::MutexLock lock(mutex_);
    change();
    if (busy_ || finished_) return;
    if (!waiting_.empty() && !broken_) {
      busy_ = true;
      writing_ = std::move(waiting_.front());
      waiting_.pop_front();
      StartWrite(&writing_);
    } else if (end_) {
      finished_ = true;
      finish = std::move(end_);
    }
  }
  if (finish) Finish(*finish);
}

template <class Message>
ListReactor<Message>::ListReactor(ArrivingCall& call, Maintenance& maintenance, List list, Confirmation confirm, Quotas::InFlight counted)
    : Counted(std::move(counted), call), confirm_(std::move(confirm)) {
  const bool posted = maintenance.Post([this, &context = call.context(), list = std::move(list)] {
    if (context.IsCancelled()) return this->End(grpc::Status::CANCELLED);
    auto listed = list();
    if (!listed) return this->End(ToStatus(listed.error()));
    entries_ = std::move(*listed);
    Next();
  });
  if (!posted) this->End(ToStatus(MaintenanceFull()));
}

template <class Message>
void ListReactor<Message>::OnWriteDone(bool ok) {
  ok ? Next() : this->End(grpc::Status::CANCELLED);
}

template <class Message>
void ListReactor<Message>::Next() {
  if (next_ == entries_.size()) return this->End(grpc::Status::OK);
  if (const auto confirmed = confirm_(); !confirmed) return this->End(ToStatus(confirmed.error()));
  writing_ = ToBuffer(entries_[next_++]);
  this->StartWrite(&writing_);
}

template class ListReactor<v1::CacheEntry>;
template class ListReactor<v1::ManifestEntry>;

ExportReactor::ExportReactor(ArrivingCall& call, Maintenance& maintenance, const v1::CacheExportRequest& request, std::string tenant,
                             Confirmation confirm, Quotas::InFlight counted)
    : Counted(std::move(counted), call), confirm_(std::move(confirm)) {
  const bool posted = maintenance.Post([this, &context = call.context(), &maintenance, request, tenant = std::move(tenant)] {
    if (context.IsCancelled()) return End(grpc::Status::CANCELLED);
    auto file = maintenance.Export(request, tenant);
    if (!file) return End(ToStatus(file.error()));
    file_ = std::move(*file);
    stream_.open(file_.path(), std::ios::binary | std::ios::ate);
    left_ = static_cast<std::uint64_t>(std::max<std::streamoff>(stream_.tellg(), 0));
    stream_.seekg(0);
    Next();
  });
  if (!posted) End(ToStatus(MaintenanceFull()));
}

void ExportReactor::OnWriteDone(bool ok) { ok ? Next() : End(grpc::Status::CANCELLED); }

void ExportReactor::Next() {
  if (const auto confirmed = confirm_(); !confirmed) return End(ToStatus(confirmed.error()));
  if (stream_ && left_ == 0) return End(grpc::Status::OK);
  std::string& data = *chunk_.mutable_data();
  data.resize(std::min<std::uint64_t>(kChunk, left_));
  if (!stream_.read(data.data(), static_cast<std::streamsize>(data.size()))) return End(ToStatus(ScratchLost(file_)));
  left_ -= data.size();
  writing_ = ToBuffer(chunk_);
  StartWrite(&writing_);
}

ImportReactor::ImportReactor(grpc::CallbackServerContext& context, Maintenance& maintenance, StoreKeeper& store_keeper, grpc::ByteBuffer& reply,
                             std::size_t message_bytes, Confirmation confirm, Quotas::InFlight counted, MessageRoom* room, int connection,
                             std::string tenant)
    : Counted(std::move(counted)),
      context_(context),
      maintenance_(maintenance),
      store_keeper_(store_keeper),
      reply_(reply),
      message_bytes_(message_bytes),
      confirm_(std::move(confirm)),
      waiter_(room, connection, std::move(tenant)) {
  TellId(context);
  if (!maintenance.options().accept_import) {
    End(ToStatus({.kind = Failure::Kind::kRefused, .message = "this kilnd takes no results from others; start it with --accept-put=yes"}));
    return;
  }
  file_ = maintenance.NewScratch();
  stream_.open(file_.path(), std::ios::binary | std::ios::trunc);
  Read();
}

void ImportReactor::Read() {
  waiter_.Wait([this](const Failure& failure) {
    RecordOf(context_).reason = ReasonOf(failure.kind);
    End(ToStatus(failure));
  });
  StartRead(&chunk_);
}

void ImportReactor::OnReadDone(bool ok) {
  if (!waiter_.Came()) return;
  if (const auto confirmed = confirm_(); !confirmed) return End(ToStatus(confirmed.error()));
  if (ok) {
    const auto taken = Take();
    return taken ? Read() : End(ToStatus(taken.error()));
  }
  stream_.close();
  if (!stream_.good()) return End(ToStatus(ScratchFull(file_)));  // the last bytes were written now
  StartSendInitialMetadata();                                     // which fails if this was no end but the client's going
}

void ImportReactor::OnSendInitialMetadataDone(bool ok) {
  if (!ok || context_.IsCancelled()) return End(grpc::Status::CANCELLED);
  const bool posted = maintenance_.Post([this] {
    if (context_.IsCancelled()) return End(grpc::Status::CANCELLED);
    auto imported = store_keeper_.Import(file_.path());
    if (imported) reply_ = ToBuffer(*imported);
    End(imported ? grpc::Status::OK : ToStatus(imported.error()));
  });
  if (!posted) End(ToStatus(MaintenanceFull()));
}

// One message.
std::expected<void, Failure> ImportReactor::Take() {
  if (chunk_.Length() > message_bytes_) return std::unexpected(MessageTooLarge(chunk_.Length(), message_bytes_));
  v1::CacheChunk chunk;
  if (auto read = ReadMessage(chunk_, chunk); !read) return read;
  received_ += chunk.data().size();
  stream_.write(chunk.data().data(), static_cast<std::streamsize>(chunk.data().size()));
  if (!stream_.good()) return std::unexpected(ScratchFull(file_));
  if (received_ <= maintenance_.options().max_import_bytes) return {};
  return std::unexpected(Failure{.kind = Failure::Kind::kMalformed, .message = "the bundle is larger than the store (--disk-cache)"});
}

}  // namespace kiln::server
