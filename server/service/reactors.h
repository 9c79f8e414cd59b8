// SPDX-License-Identifier: Apache-2.0
//
// The calls that outlive their handler. Each deletes itself in OnDone.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cache/mutex.h"
#include "kiln/v1/service.pb.h"
#include "server/access/quotas.h"
#include "server/door/arriving_call.h"
#include "server/door/call.h"
#include "server/door/message_room.h"
#include "server/door/refused_call.h"
#include "server/flow/compile_flow.h"
#include "server/flow/maintenance.h"
#include "server/flow/store_keeper.h"
#include "server/tune/space_flow.h"

namespace kiln::server {

// Compile, and Lookup of a request.
void AnswerFrom(CompileFlow& flow, CompileFlow::Request request, Call& call);
void AnswerFrom(SpaceFlow& flow, CompileFlow::Request request, Call& call);

// CompileStream: stages, or how far a tuning is, then the reply. They come from other threads; one write is under way at a time.
class ProgressReactor final : public Sender {
 public:
  // `confirm` is asked before the reply goes out.
  ProgressReactor(ArrivingCall& call, CompileFlow& flow, Confirmation confirm, CompileFlow::Request request);
  ProgressReactor(ArrivingCall& call, SpaceFlow& flow, Confirmation confirm, CompileFlow::Request request);

 private:
  ProgressReactor(ArrivingCall& call, Confirmation confirm, CompileFlow::Request& request);
  void OnWriteDone(bool ok) override;
  void OnCancel() override { cancel_(); }
  void OnDone() override { delete this; }

  void Add(grpc::ByteBuffer message);
  void End(Outcome outcome, std::size_t details);
  template <class Change>
  void Advance(Change change);

  cache::Mutex mutex_;
  std::deque<grpc::ByteBuffer> waiting_ KILN_GUARDED_BY(mutex_);
  grpc::ByteBuffer writing_ KILN_GUARDED_BY(mutex_);
  bool busy_ KILN_GUARDED_BY(mutex_) = false;
  bool broken_ KILN_GUARDED_BY(mutex_) = false;
  bool finished_ KILN_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ KILN_GUARDED_BY(mutex_);
  std::function<void()> cancel_;
};

// A call that counts as one of its tenant's until the client may make the next: once it is answered or has gone.
template <class Reactor>
class Counted : public Reactor {
 protected:
  template <class... Arguments>
  explicit Counted(Quotas::InFlight counted, Arguments&... arguments) : Reactor(arguments...), counted_(std::move(counted)) {}
  void End(const grpc::Status& status) {
    GiveBack();
    this->Finish(status);
  }
  void OnCancel() override { GiveBack(); }

 private:
  void GiveBack() {
    cache::MutexLock lock(mutex_);
    counted_.reset();
  }

  cache::Mutex mutex_;
  std::optional<Quotas::InFlight> counted_ KILN_GUARDED_BY(mutex_);
};

// CacheList and CacheHot.
template <class Message>
class ListReactor final : public Counted<Sender> {
 public:
  using List = std::function<std::expected<std::vector<Message>, Failure>()>;  // on the maintenance thread
  ListReactor(ArrivingCall& call, Maintenance& maintenance, List list, Confirmation confirm, Quotas::InFlight counted);

 private:
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }
  void Next();

  const Confirmation confirm_;
  std::vector<Message> entries_;
  std::size_t next_ = 0;
  grpc::ByteBuffer writing_;
};

// CacheExport: the bundle is written to a file first, so that a slow client holds no lock of the store's.
class ExportReactor final : public Counted<Sender> {
 public:
  ExportReactor(ArrivingCall& call, Maintenance& maintenance, const v1::CacheExportRequest& request, std::string tenant, Confirmation confirm,
                Quotas::InFlight counted);

 private:
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }
  void Next();

  const Confirmation confirm_;
  TemporaryFile file_;
  std::ifstream stream_;
  std::uint64_t left_ = 0;  // of the file
  v1::CacheChunk chunk_;
  grpc::ByteBuffer writing_;
};

// CacheImport. Nothing is taken of a bundle whose client went away before its end.
class ImportReactor final : public Counted<grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  ImportReactor(grpc::CallbackServerContext& context, Maintenance& maintenance, StoreKeeper& store_keeper, grpc::ByteBuffer& reply,
                std::size_t message_bytes, Confirmation confirm, Quotas::InFlight counted, MessageRoom* room, int connection, std::string tenant);

 private:
  void Read();
  void OnReadDone(bool ok) override;
  void OnSendInitialMetadataDone(bool ok) override;
  void OnDone() override { delete this; }
  std::expected<void, Failure> Take();

  grpc::CallbackServerContext& context_;
  Maintenance& maintenance_;
  StoreKeeper& store_keeper_;
  grpc::ByteBuffer& reply_;
  const std::size_t message_bytes_;  // that one may have
  const Confirmation confirm_;
  MessageRoom::Waiter waiter_;
  TemporaryFile file_;
  std::ofstream stream_;
  std::uint64_t received_ = 0;
  grpc::ByteBuffer chunk_;
};

}  // namespace kiln::server
