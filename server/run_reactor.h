// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "kiln/v1/run.pb.h"
#include "server/run_flow.h"

namespace kiln::server {

// Run: the start and the tensors are read, then the result and the outputs are written; never both at one time. Deletes itself in
// OnDone.
class RunReactor final : public grpc::ServerBidiReactor<v1::RunRequest, v1::RunReply> {
 public:
  RunReactor(grpc::CallbackServerContext& context, RunFlow& flow, Caller caller);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

  std::optional<Failure> Take();
  grpc::Status Refuse(const Failure& failure);
  void AllRead();
  void Answer(RunFlow::Ran ran);
  void Next();

  grpc::CallbackServerContext& context_;
  RunFlow& flow_;
  Caller caller_;
  v1::RunRequest request_;
  v1::RunReply reply_;
  RunFlow::Output output_;
  std::size_t extent_ = 0;    // of which bytes are sent next
  std::uint64_t sent_ = 0;    // of it
  std::mutex mutex_;
  std::shared_ptr<RunFlow::Call> call_;  // guarded by mutex_, for OnCancel
};

}  // namespace kiln::server
