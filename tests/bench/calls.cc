// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/calls.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <grpcpp/alarm.h>

namespace kiln::bench {
namespace {

constexpr std::chrono::seconds kLimit{300};

struct Call {
  grpc::ClientContext context;
  v1::CompileReply reply;
};

// gRPC 1.51 frees the threads of its call backs when the last channel that had one goes, and may do so under one that is just
// made. One channel that never goes keeps them.
void KeepCallbackThreads() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct Forever {
      std::unique_ptr<v1::Kiln::Stub> stub = v1::Kiln::NewStub(Dial("unix:/nonexistent/kiln.sock"));
      v1::StatsRequest request;
      v1::StatsReply reply;
      grpc::ClientContext context;
    };
    static auto* const forever = new Forever;
    forever->stub->async()->Stats(&forever->context, &forever->request, &forever->reply, [](const grpc::Status&) {});
  });
}

struct Retry {
  v1::Kiln::Stub& stub;
  v1::CompileRequest request;
  OnAnswer on_answer;
  double spent_ms = 0;
  std::unique_ptr<grpc::Alarm> alarm;
};

void Try(const std::shared_ptr<Retry>& retry) {
  CompileAsync(retry->stub, retry->request, [retry](Answer answer) {
    retry->spent_ms += answer.milliseconds;
    if (!answer.refused()) {
      answer.milliseconds = retry->spent_ms;
      return retry->on_answer(std::move(answer));
    }
    constexpr std::chrono::milliseconds kPause{100};
    retry->spent_ms += static_cast<double>(kPause.count());
    retry->alarm = std::make_unique<grpc::Alarm>();  // the last one's call back may still run
    retry->alarm->Set(std::chrono::system_clock::now() + kPause, [retry](bool) { Try(retry); });
  });
}

}  // namespace

double Answer::compile_ms() const {
  double sum = 0;
  for (const v1::Timing& timing : reply.timings()) {
    if (timing.stage() != "queue") sum += timing.milliseconds();
  }
  return sum;
}

void CompileAsync(v1::Kiln::Stub& stub, const v1::CompileRequest& request, OnAnswer on_answer) {
  KeepCallbackThreads();
  auto call = std::make_shared<Call>();
  call->context.set_deadline(std::chrono::system_clock::now() + kLimit);
  const auto began = Clock::now();
  stub.async()->Compile(&call->context, &request, &call->reply, [call, began, on_answer = std::move(on_answer)](const grpc::Status& status) {
    Answer answer{.status = status, .reply = {}, .milliseconds = Milliseconds(Clock::now() - began)};
    answer.reply.Swap(&call->reply);
    answer.has_retry_info = status.error_details().find("google.rpc.RetryInfo") != std::string::npos;
    on_answer(std::move(answer));
  });
}

void CompilePatiently(v1::Kiln::Stub& stub, const v1::CompileRequest& request, OnAnswer on_answer) {
  Try(std::make_shared<Retry>(Retry{stub, request, std::move(on_answer), 0, nullptr}));
}

void Pending::Add(std::size_t count) {
  std::lock_guard lock(mutex_);
  count_ += count;
}

void Pending::Done() {
  std::lock_guard lock(mutex_);
  --count_;
  changed_.notify_all();
}

void Pending::WaitUntilAtMost(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return count_ <= count; });
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1, static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

}  // namespace kiln::bench
